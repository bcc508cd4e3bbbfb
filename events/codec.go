package events

//go:generate go run ./internal/codecgen

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

const (
	wantN       = "want the subject, a dot and the event's number N; with N 0, any name but that"
	wantType    = "want the type of the event's data"
	wantSize    = "want a shorter event: one log entry holds 65535 bytes"
	wantLine    = "want a line of 0 or more, and none without a sequence"
	wantPresent = "want a value: it is never empty"
)

// Append appends e's canonical bytes, without a newline. Times are cut to
// microseconds. An event that [Decode] would not take is an error that names
// the field, and leaves dst as it was.
func Append(dst []byte, e *Event) ([]byte, error) {
	b, err := e.appendJSON(dst)
	if err != nil {
		return dst, err
	}
	if len(b)-len(dst) > MaxEvent {
		return dst, wrong("", wantSize)
	}
	return b, nil
}

func (e *Event) appendJSON(b []byte) ([]byte, error) {
	d, ok := e.Data.(payload)
	if !ok {
		return b, wrong("data", wantData)
	}
	if !e.Type.Known() || d.EventType() != e.Type {
		return b, wrong("type", wantType)
	}
	if err := e.checkAttributes(); err != nil {
		return b, err
	}
	if b, ok = appendString(append(b, `{"specversion":"1.0","id":`...), e.ID); !ok {
		return b, wrong("id", wantText)
	}
	if b, ok = appendString(append(b, `,"source":`...), e.Source); !ok {
		return b, wrong("source", wantText)
	}
	b = appendWord(append(b, `,"type":`...), string(e.Type))
	if b, ok = appendString(append(b, `,"subject":`...), e.Subject); !ok {
		return b, wrong("subject", wantText)
	}
	if b, ok = appendTime(append(b, `,"time":`...), e.Time); !ok {
		return b, wrong("time", wantTime)
	}
	b = append(b, `,"datacontenttype":"application/json"`...)
	if e.Command != "" {
		if b, ok = appendString(append(b, `,"command":`...), e.Command); !ok {
			return b, wrong("command", wantText)
		}
	}
	if e.Principal != "" {
		if b, ok = appendString(append(b, `,"principal":`...), e.Principal); !ok {
			return b, wrong("principal", wantText)
		}
	}
	if !e.Prev.IsZero() {
		b = appendUint(append(b, `,"prev":"`...), e.Prev.Seq)
		b = appendInt(append(b, '.'), int64(e.Prev.Line))
		b = append(b, '"')
	}
	if e.Tenant != "" {
		if b, ok = appendString(append(b, `,"tenant":`...), e.Tenant); !ok {
			return b, wrong("tenant", wantText)
		}
	}
	if e.TenantSeq != 0 {
		b = appendUint(append(b, `,"tenantseq":`...), e.TenantSeq)
	}
	if e.TenantPrev != "" {
		if b, ok = appendString(append(b, `,"tenantprev":`...), e.TenantPrev); !ok {
			return b, wrong("tenantprev", wantText)
		}
	}
	if e.Traceparent != "" {
		if b, ok = appendString(append(b, `,"traceparent":`...), e.Traceparent); !ok {
			return b, wrong("traceparent", wantText)
		}
	}
	b, err := d.appendJSON(append(b, `,"data":`...))
	if err != nil {
		return b, within("data", err)
	}
	return append(b, '}'), nil
}

// checkAttributes holds for what is written and for what is read.
func (e *Event) checkAttributes() error {
	switch {
	case e.ID == "":
		return wrong("id", wantPresent)
	case e.Source == "":
		return wrong("source", wantPresent)
	case e.Subject == "":
		return wrong("subject", wantPresent)
	case e.N < 0 || e.N != number(e.ID, e.Subject):
		return wrong("id", wantN)
	case e.Prev.Line < 0 || e.Prev.Line > math.MaxInt32 || e.Prev.IsZero() && e.Prev.Line != 0:
		return wrong("prev", wantLine)
	}
	return nil
}

// number is N of an id of the form subject + "." + N, and 0 for other names.
func number(id, subject string) int {
	if len(id) <= len(subject)+1 || id[len(subject)] != '.' || !strings.HasPrefix(id, subject) {
		return 0
	}
	digits := id[len(subject)+1:]
	if digits[0] < '1' || digits[0] > '9' { // '+1' and '01' are names
		return 0
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0
	}
	return int(n)
}

var eventFields = []string{
	"specversion", "id", "source", "type", "subject", "time", "datacontenttype",
	"command", "principal", "prev", "tenant", "tenantseq", "tenantprev", "traceparent", "data",
}

const eventRequired = 0x407f // all but those from command to traceparent

// Decode decodes one canonical event: exactly the bytes that [Append] makes of
// it. Anything else is a *[FieldError], and a type or version that is not known
// is [ErrUnknownType]. An older version comes back as the newest one.
func Decode(line []byte) (*Event, error) {
	if len(line) <= MaxEvent {
		e, p := new(Event), scan{s: view(line)}
		if p.event(e, nil) {
			return e, nil
		}
	}
	return decode(line, forms)
}

func decode(line []byte, forms map[Type]form) (*Event, error) {
	if len(line) > MaxEvent {
		return nil, &FieldError{Reason: wantSize, Offset: MaxEvent}
	}
	p := parser{b: line, strict: true}
	e := new(Event)
	var d payload
	var o object
	for p.member(&o) {
		switch string(o.key) {
		case "specversion":
			if p.field(&o, 0) {
				p.literal("1.0")
			}
		case "id":
			if p.field(&o, 1) {
				e.ID = p.string()
			}
		case "source":
			if p.field(&o, 2) {
				e.Source = p.string()
			}
		case "type":
			if p.field(&o, 3) {
				e.Type, d = p.form(forms)
			}
		case "subject":
			if p.field(&o, 4) {
				e.Subject = p.subject(e.ID)
			}
		case "time":
			if p.field(&o, 5) {
				e.Time = p.time()
			}
		case "datacontenttype":
			if p.field(&o, 6) {
				p.literal("application/json")
			}
		case "command":
			if p.field(&o, 7) {
				e.Command = p.string()
				p.present(e.Command != "")
			}
		case "principal":
			if p.field(&o, 8) {
				e.Principal = p.string()
				p.present(e.Principal != "")
			}
		case "prev":
			if p.field(&o, 9) {
				e.Prev = p.position()
			}
		case "tenant":
			if p.field(&o, 10) {
				e.Tenant = p.string()
				p.present(e.Tenant != "")
			}
		case "tenantseq":
			if p.field(&o, 11) {
				e.TenantSeq = p.uint(math.MaxUint64)
				p.present(e.TenantSeq != 0)
			}
		case "tenantprev":
			if p.field(&o, 12) {
				e.TenantPrev = p.string()
				p.present(e.TenantPrev != "")
			}
		case "traceparent":
			if p.field(&o, 13) {
				e.Traceparent = p.string()
				p.present(e.Traceparent != "")
			}
		case "data":
			if p.field(&o, 14) {
				p.data(d)
			}
		default:
			p.unknown(&o)
		}
	}
	p.close(&o, eventRequired, eventFields)
	p.end()
	if p.err != nil {
		return nil, p.err
	}
	e.N = number(e.ID, e.Subject)
	if err := e.checkAttributes(); err != nil {
		return nil, err
	}
	d = upcast(forms, d)
	e.Type, e.Data = d.EventType(), d
	return e, nil
}

// form reads a type and makes an empty payload of it.
func (p *parser) form(forms map[Type]form) (Type, payload) {
	at := p.i
	raw, plain := p.quoted()
	if p.err != nil {
		return "", nil
	}
	f, ok := forms[Type(raw)]
	if !ok || !plain {
		p.failAt(at, ErrUnknownType.Error())
		p.err.Err = ErrUnknownType
		return "", nil
	}
	d := f.fresh()
	return d.EventType(), d
}

func (p *parser) data(d payload) {
	if d == nil {
		p.fail("stands before the type")
		return
	}
	d.readJSON(p)
}

// subject reads the subject, which shares the memory of most ids.
func (p *parser) subject(id string) string {
	at := p.i
	raw, plain := p.quoted()
	if plain && len(raw) <= len(id) && string(raw) == id[:len(raw)] {
		return id[:len(raw)]
	}
	p.i = at
	return p.string()
}

// position reads "SEQ.LINE", which names an event.
func (p *parser) position() (pos Position) {
	at := p.i
	raw, _ := p.quoted()
	seq, line, ok := bytes.Cut(raw, []byte("."))
	s, l := parser{b: seq, strict: true}, parser{b: line, strict: true}
	pos.Seq, pos.Line = s.uint(math.MaxUint64), int(l.uint(math.MaxInt32))
	s.end()
	l.end()
	if !ok || s.err != nil || l.err != nil || pos.IsZero() {
		p.failAt(at, "want SEQ.LINE")
	}
	return pos
}
