package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

type wire struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            Type            `json:"type"`
	Subject         string          `json:"subject"`
	Time            time.Time       `json:"time"`
	DataContentType string          `json:"datacontenttype"`
	Command         string          `json:"command,omitempty"`
	Principal       string          `json:"principal,omitempty"`
	Prev            string          `json:"prev,omitempty"`
	Tenant          string          `json:"tenant,omitempty"`
	TenantSeq       uint64          `json:"tenantseq,omitempty"`
	TenantPrev      string          `json:"tenantprev,omitempty"`
	Traceparent     string          `json:"traceparent,omitempty"`
	Data            json.RawMessage `json:"data"`
}

// Append appends e's canonical bytes, without a newline.
func Append(dst []byte, e *Event) ([]byte, error) {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return dst, fmt.Errorf("encode %s: %w", e.Type, err)
	}
	b, err := json.Marshal(wire{"1.0", e.ID, e.Source, e.Type, e.Subject, e.Time, "application/json", e.Command, e.Principal, e.Prev.String(), e.Tenant, e.TenantSeq, e.TenantPrev, e.Traceparent, data})
	return append(dst, b...), err
}

// Decode decodes one canonical event. An error names the field.
func Decode(line []byte) (*Event, error) {
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return nil, err
	}
	d := newData(w.Type)
	if d == nil {
		return nil, fmt.Errorf("type: %q is not known to this build", w.Type)
	}
	if err := json.Unmarshal(w.Data, d); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	p, err := ParsePosition(w.Prev)
	if err != nil {
		return nil, fmt.Errorf("prev: %w", err)
	}
	n := 0
	if s, ok := strings.CutPrefix(w.ID, w.Subject+"."); ok {
		n, _ = strconv.Atoi(s)
	}
	return &Event{w.ID, w.Source, w.Type, w.Subject, w.Time, n, w.Command, w.Principal, p, w.Tenant, w.TenantSeq, w.TenantPrev, w.Traceparent, d}, nil
}

func newData(t Type) Data {
	switch t {
	case TypeAdmitted:
		return new(RequestAdmitted)
	case TypeRejected:
		return new(RequestRejected)
	case TypePrefilled:
		return new(RequestPrefilled)
	case TypeTransferGranted:
		return new(TransferGranted)
	case TypeTransferred:
		return new(RequestTransferred)
	case TypeDecoded:
		return new(RequestDecoded)
	case TypeFailed:
		return new(RequestFailed)
	case TypeCancelled:
		return new(RequestCancelled)
	case TypeReleased:
		return new(RequestReleased)
	case TypeDenied:
		return new(CommandDenied)
	case TypeWorkerJoined:
		return new(WorkerJoined)
	case TypeWorkerLeft:
		return new(WorkerLeft)
	case TypeModelQuarantined:
		return new(ModelQuarantined)
	case TypeModelRestored:
		return new(ModelRestored)
	}
	return nil
}

// MarshalJSON writes [start, count, generation].
func (r PageRun) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]uint64{uint64(r.Start), uint64(r.Count), r.Generation})
}

// UnmarshalJSON reads [start, count, generation].
func (r *PageRun) UnmarshalJSON(b []byte) error {
	var v []uint64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if len(v) != 3 || v[0] > 1<<32-1 || v[1] == 0 || v[1] > 1<<32-1 {
		return fmt.Errorf("page run %s: want [start, count, generation]", bytes.TrimSpace(b))
	}
	*r = PageRun{uint32(v[0]), uint32(v[1]), v[2]}
	return nil
}

// AppendCommand appends the wire form of a command, and sets c.Raw:
// {"request_id":…,"traceparent":…,"data":{…}}.
func AppendCommand(dst []byte, c *Command) ([]byte, error) {
	data, err := json.Marshal(c.Data)
	if err != nil {
		return dst, err
	}
	c.Raw = data
	b, err := json.Marshal(struct {
		Subject     string          `json:"request_id"`
		Traceparent string          `json:"traceparent,omitempty"`
		Data        json.RawMessage `json:"data"`
	}{c.Subject, c.Traceparent, data})
	return append(dst, b...), err
}

// DecodeCommand decodes a command's payload; type, role and principal are the
// subject's. Members may come in any order; an unknown, missing or doubled one,
// a wrong type and trailing bytes are errors that name the field.
func DecodeCommand(t CommandType, payload []byte) (*Command, error) {
	var w struct {
		Subject     string          `json:"request_id"`
		Traceparent string          `json:"traceparent"`
		Data        json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(payload, &w); err != nil {
		return nil, err
	}
	var d CommandData
	switch t {
	case CmdAdmit:
		d = new(Admit)
	case CmdReject:
		d = new(Reject)
	case CmdPrefilled:
		d = new(Prefill)
	case CmdGrant:
		d = new(GrantTransfer)
	case CmdTransferred:
		d = new(Transfer)
	case CmdDecoded:
		d = new(DecodeDone)
	case CmdFail:
		d = new(Fail)
	case CmdCancel:
		d = new(Cancel)
	case CmdReleased:
		d = new(Release)
	case CmdRegister:
		d = new(Register)
	case CmdLeave:
		d = new(Leave)
	case CmdQuarantine:
		d = new(Quarantine)
	case CmdRestore:
		d = new(Restore)
	default:
		return nil, fmt.Errorf("command %q is not known", t)
	}
	if err := json.Unmarshal(w.Data, d); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(d)
	return &Command{Type: t, Subject: w.Subject, Traceparent: w.Traceparent, Data: d, Raw: raw}, err
}
