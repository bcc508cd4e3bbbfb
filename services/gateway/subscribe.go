package gateway

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
)

// takeNotice folds the events of requests that this gateway opened. All requests
// of the cluster pass here: a look tells ours before anything is decoded.
func (g *Gateway) takeNotice(m *nats.Msg) {
	err := events.ReadNotice(m.Header.Get(events.HeaderPosition), m.Data, func(pos events.Position, line []byte) {
		f := g.flightOf(events.PeekSubject(line))
		if f == nil {
			return
		}
		e, err := events.Decode(line)
		if err != nil || e.Subject != f.id {
			// The poll reads the history instead.
			g.cfg.Logger.Warn("notification cannot be read", "request_id", f.id)
			return
		}
		f.observe(e, line, pos.String())
	})
	if err != nil {
		g.cfg.Logger.Warn("notifications cannot be read", "error", err)
	}
}

// takeOutput keeps one piece of output. Who sent it is a token of the subject:
// pdgate.output.<gateway>.<worker>.<request id>.
func (g *Gateway) takeOutput(m *nats.Msg) {
	t := strings.Split(m.Subject, ".")
	if len(t) != 5 {
		return
	}
	f := g.flight(t[4])
	if f == nil {
		return
	}
	c, err := events.ParseOutputChunk(m.Data)
	if err != nil {
		g.cfg.Logger.Warn("output cannot be read", "request_id", f.id, "worker_id", t[3])
		return
	}
	f.arrived(t[3], c)
}

// servePrompt answers a worker that asks for a part of a request:
// pdgate.prompt.<gateway>.<role>.<worker>.<request id>.
//
// The prompt goes to prefill workers; decode works from KV, and gets only how to
// continue, unless its engine reads the client's body itself. Answers are binary frames to inboxes: nothing that a client wrote
// can become a command, wherever a reply subject points.
func (g *Gateway) servePrompt(m *nats.Msg) {
	t := strings.Split(m.Subject, ".")
	if len(t) != 6 || !strings.HasPrefix(m.Reply, "_INBOX.") {
		return
	}
	q, err := events.DecodePromptRequest(m.Data)
	if err != nil {
		g.refusePrompt(m, events.CodeMalformed)
		return
	}
	role := events.Role(t[3])
	f := g.flight(t[5])
	may := role == events.RolePrefill && (q.Part == events.PartPrompt || q.Part == events.PartSampling) ||
		role == events.RoleDecode && (q.Part == events.PartSampling || q.Part == events.PartPrompt && f != nil && f.call.relay)
	switch {
	case !may:
		g.refusePrompt(m, events.CodeForbidden)
		return
	case f == nil:
		g.refusePrompt(m, events.CodePromptUnavailable)
		return
	}
	part := f.part(q.Part)
	total := int64(len(part))
	switch {
	case part == nil:
		g.refusePrompt(m, events.CodePromptUnavailable)
		return
	case q.Offset < 0 || q.Offset > total:
		g.refusePrompt(m, events.CodeMalformed)
		return
	}
	chunk := events.PromptChunk{Total: total, Offset: q.Offset, Bytes: part[q.Offset:min(q.Offset+events.MaxPromptChunk, total)]}
	g.reply(f.id, m.Respond(events.AppendPromptChunk(nil, chunk)))
}

// refusePrompt answers without content, so that a worker need not wait.
func (g *Gateway) refusePrompt(m *nats.Msg, code events.Code) {
	a := nats.NewMsg(m.Reply)
	a.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(code.HTTPStatus()))
	a.Header.Set(micro.ErrorHeader, string(code))
	g.reply("", m.RespondMsg(a))
}

func (g *Gateway) reply(id string, err error) {
	if err != nil { // the worker asks again
		g.cfg.Logger.Warn("prompt is not sent", "request_id", id, "error", err)
	}
}
