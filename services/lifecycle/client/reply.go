package client

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
)

// refusal reads the error in a reply: the code stands in the header
// Nats-Service-Error, the whole error in the body. nil: the reply is no error.
func refusal(m *nats.Msg) *events.Error {
	code := m.Header.Get(micro.ErrorHeader)
	if code == "" {
		return nil
	}
	var e events.Error
	if err := json.Unmarshal(m.Data, &e); err == nil && e.Code != "" {
		return &e
	}
	return events.NewError(events.Code(code), "the service gave no more detail")
}

// forbidden says whether the connection's last error is the server's refusal to
// let this user publish to subject.
func forbidden(nc *nats.Conn, subject string) bool {
	err := nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`)
}

// ops says whether a command belongs to pdgate.log.ops.
func ops(t events.CommandType) bool {
	switch t {
	case events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit:
		return true
	}
	return false
}
