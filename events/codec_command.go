package events

import "slices"

type commandPayload interface {
	CommandData
	appendJSON(b []byte) ([]byte, error)
	readJSON(p *parser)
	check() error
}

func newCommandData(t CommandType) commandPayload {
	switch t {
	case CmdAdmit:
		return new(Admit)
	case CmdReject:
		return new(Reject)
	case CmdPrefilled:
		return new(Prefill)
	case CmdGrant:
		return new(GrantTransfer)
	case CmdTransferred:
		return new(Transfer)
	case CmdDecoded:
		return new(DecodeDone)
	case CmdFail:
		return new(Fail)
	case CmdCancel:
		return new(Cancel)
	case CmdReleased:
		return new(Release)
	case CmdRegister:
		return new(Register)
	case CmdLeave:
		return new(Leave)
	case CmdQuarantine:
		return new(Quarantine)
	case CmdRestore:
		return new(Restore)
	case CmdErase:
		return new(Erase)
	case CmdCanary:
		return new(Canary)
	case CmdNotify:
		return new(Notify)
	case CmdAudit:
		return new(Audit)
	case CmdTrim:
		return new(Trim)
	}
	return nil
}

// AppendCommand appends the wire form of a command, and sets c.Raw:
// {"request_id":…,"traceparent":…,"data":{…}}. Type, role and principal travel
// in the subject. It refuses what cannot be encoded; [Command.Check] says what
// else the service would refuse.
func AppendCommand(dst []byte, c *Command) ([]byte, error) {
	d, ok := c.Data.(commandPayload)
	if !ok {
		return dst, wrong("data", wantData)
	}
	if d.CommandType() != c.Type {
		return dst, wrong("data", "want the data of the command's type")
	}
	// Raw is a copy of its own: the caller may use dst again.
	raw, err := d.appendJSON(nil)
	if err != nil {
		return dst, within("data", err)
	}
	b, ok := appendString(append(dst, `{"request_id":`...), c.Subject)
	if !ok {
		return dst, wrong("request_id", wantText)
	}
	if c.Traceparent != "" {
		if b, ok = appendString(append(b, `,"traceparent":`...), c.Traceparent); !ok {
			return dst, wrong("traceparent", wantText)
		}
	}
	c.Raw = raw
	b = append(b, `,"data":`...)
	b = append(b, raw...)
	return append(b, '}'), nil
}

var commandFields = []string{"request_id", "traceparent", "data"}

// DecodeCommand decodes a command's payload; type, role and principal are the
// subject's. Members may come in any order and spacing, since people send
// commands too; an unknown, missing or doubled one, a wrong type, trailing bytes
// and values that [Command.Check] refuses are *[FieldError]s. Raw is canonical
// however the payload was written, so [Command.Key] is the sender's.
func DecodeCommand(t CommandType, payload []byte) (*Command, error) {
	d := newCommandData(t)
	if d == nil {
		return nil, wrong("command", wantKnown)
	}
	c := &Command{Type: t, Data: d}
	p := parser{b: payload}
	p.space()
	var o object
	for p.member(&o) {
		switch string(o.key) {
		case "request_id":
			if p.field(&o, 0) {
				c.Subject = p.string()
			}
		case "traceparent":
			if p.field(&o, 1) {
				c.Traceparent = p.string()
			}
		case "data":
			if p.field(&o, 2) {
				d.readJSON(&p)
			}
		default:
			p.unknown(&o)
		}
	}
	p.close(&o, 0b101, commandFields)
	p.end()
	if p.err != nil {
		return nil, p.err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	raw, err := d.appendJSON(nil)
	if err != nil {
		return nil, within("data", err)
	}
	c.Raw = slices.Clip(raw)
	return c, nil
}

// Check says whether the command's values can be right: names, digests, keys
// and counts have their form, and page lists name each page once. It knows
// nothing of the request's state. Reported counts may be 0, so that a worker's
// wrong count is denied on the record and not turned away at the door.
func (c *Command) Check() error {
	d, ok := c.Data.(commandPayload)
	if !ok {
		return wrong("data", wantData)
	}
	subject := "request"
	switch c.Type {
	case CmdRegister, CmdLeave, CmdErase, CmdNotify, CmdTrim:
		subject = "name"
		ok = ValidName(c.Subject)
	case CmdQuarantine, CmdRestore:
		subject = "model"
		ok = ValidModel(c.Subject)
	default:
		ok = isRequest(c.Subject)
	}
	if !ok {
		return wrong("request_id", want[subject])
	}
	if c.Traceparent != "" && !isTrace(c.Traceparent) {
		return wrong("traceparent", want["trace"])
	}
	if err := d.check(); err != nil {
		return within("data", err)
	}
	if p, ok := d.(*Prefill); ok && len(p.Pages) == 0 && p.Reference == "" {
		return wrong("data.pages", "want the pages of the KV, or the digest of an engine's reference to them")
	}
	return nil
}
