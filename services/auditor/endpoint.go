package auditor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
)

// serviceName is what `nats micro ls` shows.
const serviceName = "pdgate-auditor"

// ReceiptQuery asks for a receipt's proof on events.ReceiptSubject; the answer is
// a C2SP tlog-proof.
type ReceiptQuery struct {
	Receipt string `json:"receipt"` // SEQ.LINE;HASH, as the gateway's header has it
}

// serveReceipts answers receipts over NATS until ctx ends.
func (a *Auditor) serveReceipts(ctx context.Context) error {
	svc, err := micro.AddService(a.cfg.Conn, micro.Config{
		Name: serviceName, Version: "1.0.0", Description: "pdgate receipts", Metadata: map[string]string{"replica": a.cfg.Name},
	})
	if err != nil {
		return fmt.Errorf("micro service: %w", err)
	}
	handler := micro.HandlerFunc(func(req micro.Request) {
		b, f := a.receiptRequest(ctx, req.Subject(), req.Data())
		if f == nil {
			_ = req.Respond(b) // a closed connection or a full buffer: the caller asks again
			return
		}
		h := nats.Header{}
		if f.retry > 0 {
			h.Set("Retry-After", strconv.Itoa(int(f.retry.Seconds()+.999)))
		}
		_ = req.Error(strconv.Itoa(f.status), string(f.code), f.body(), micro.WithHeaders(micro.Headers(h)))
	})
	if err := svc.AddEndpoint("receipt", handler, micro.WithEndpointSubject(events.ReceiptAll)); err != nil {
		return fmt.Errorf("micro endpoint: %w", err)
	}
	<-ctx.Done()
	if err := svc.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		a.cfg.Logger.Warn("endpoints are not closed", "err", err)
	}
	return ctx.Err()
}

// receiptRequest answers one request. The subject names who asks, and the NATS
// user's permissions pin it. A gateway gets what it can name by hash, which is what
// it was given for its own clients; it may not walk the log.
func (a *Auditor) receiptRequest(ctx context.Context, subject string, data []byte) ([]byte, *refusal) {
	tokens := strings.Split(subject, ".")
	role, principal := events.Role(tokens[len(tokens)-2]), tokens[len(tokens)-1]
	if role != events.RoleGateway && role != events.RoleAuditor {
		return nil, refuse(http.StatusForbidden, events.CodeForbidden, "role %q may not ask for receipts", role)
	}
	var q ReceiptQuery
	if len(data) > 256 || json.Unmarshal(data, &q) != nil {
		return nil, refuse(http.StatusBadRequest, events.CodeMalformed, `want {"receipt":"SEQ.LINE;HASH"}`)
	}
	if role == events.RoleGateway && !strings.Contains(q.Receipt, ";") {
		return nil, refuse(http.StatusBadRequest, events.CodeMalformed, "receipt: want SEQ.LINE;HASH from a gateway")
	}
	return a.answerReceipt(ctx, q.Receipt, string(role)+"/"+principal, "nats")
}
