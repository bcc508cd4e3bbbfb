package lifecycle

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdgate/pdgate/events"
)

// serviceName is what `nats micro ls` shows. One instance stands for a
// partition's commands on its preferred replica, one for the commands that every
// replica hears, one for queries.
const serviceName = "pdgate-lifecycle"

// replyPrefix is what a reply subject must begin with to be answered. A peer
// chooses the subject; it must not be able to aim an answer at anything but a
// client's inbox.
const replyPrefix = "_INBOX."

// caller is who waits for the answer to a command.
type caller struct {
	reply string // "": nobody
	since time.Time
	cmd   events.CommandType
	span  trace.Span
}

// requestCommands and opsCommands are the endpoints of the two kinds of
// partitions.
var (
	requestCommands = []events.CommandType{
		events.CmdAdmit, events.CmdReject, events.CmdPrefilled, events.CmdGrant, events.CmdTransferred,
		events.CmdDecoded, events.CmdFail, events.CmdCancel, events.CmdReleased,
	}
	opsCommands = []events.CommandType{events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit}
)

func partitionName(p int) string {
	if p == events.OpsPartition {
		return "ops"
	}
	return strconv.Itoa(p)
}

func (s *Service) addService(description string, metadata map[string]string) (micro.Service, error) {
	metadata["replica"] = s.cfg.Name
	svc, err := micro.AddService(s.cfg.Bus, micro.Config{
		Name: serviceName, Version: Version, Description: description, Metadata: metadata, QueueGroupDisabled: true,
	})
	if err != nil {
		return nil, fmt.Errorf("micro service: %w", err)
	}
	return svc, nil
}

// servePartition opens the endpoints of a partition that this replica is
// preferred for.
func (s *Service) servePartition(p int) (micro.Service, error) {
	svc, err := s.addService("pdgate commands of partition "+partitionName(p), map[string]string{"partition": partitionName(p)})
	if err != nil {
		return nil, err
	}
	commands := requestCommands
	if p == events.OpsPartition {
		commands = opsCommands
	}
	for _, c := range commands {
		if err := s.endpoint(svc, string(c), events.CommandSubject("*", "*", c, p)); err != nil {
			return nil, err
		}
	}
	return svc, nil
}

// serveAny opens the subjects that every replica hears. There is no queue group:
// it would keep feeding a replica that hangs. All may append; the log makes one
// of them count.
func (s *Service) serveAny() (micro.Service, error) {
	svc, err := s.addService("pdgate commands to every replica", map[string]string{"partition": "any"})
	if err != nil {
		return nil, err
	}
	for _, c := range events.AllCommandTypes() {
		subject := strings.TrimSuffix(events.CommandSubjectAny("*", "*", c, 0), "0") + "*"
		if err := s.endpoint(svc, string(c), subject); err != nil {
			return nil, err
		}
	}
	return svc, nil
}

func (s *Service) endpoint(svc micro.Service, name, subject string) error {
	err := svc.AddEndpoint(name, micro.HandlerFunc(s.command), micro.WithEndpointSubject(subject),
		micro.WithEndpointQueueGroupDisabled(), micro.WithEndpointPendingLimits(-1, -1))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", subject, err)
	}
	return nil
}

// command takes one command off the bus. It never waits: the endpoint's next
// command is behind it.
func (s *Service) command(req micro.Request) { s.take(req.Subject(), req.Reply(), req.Data()) }

func (s *Service) take(subject, reply string, payload []byte) {
	if reply != "" && !strings.HasPrefix(reply, replyPrefix) {
		s.log.Warn("command names a reply subject that is no inbox, and is ignored", "subject", subject)
		return
	}
	now := s.now()
	a, err := events.ParseAddress(subject)
	if err != nil {
		s.refuse(reply, events.NewError(events.CodeMalformed, err.Error()))
		return
	}
	t := events.CommandType(a.Verb)
	if !a.Role.May(t) {
		s.metrics.refused(t)
		s.refuse(reply, events.NewError(events.CodeForbidden, "role "+quote(string(a.Role))+" may not send "+quote(a.Verb)))
		return
	}
	c, err := events.DecodeCommand(t, payload)
	if err != nil {
		s.metrics.refused(t)
		s.refuse(reply, events.NewError(events.CodeMalformed, err.Error()))
		return
	}
	c.Role, c.Principal = a.Role, a.Principal
	n := s.nodeOf(t, c.Subject)
	if n.partition != a.Partition && !a.Any {
		// Where every replica hears it, the token says nothing: people need not
		// compute it.
		s.metrics.refused(t)
		s.refuse(reply, events.NewError(events.CodeMalformed, "the subject names partition "+partitionName(a.Partition)+", the request belongs to "+partitionName(n.partition)))
		return
	}
	n.submit(c, &caller{reply: reply, since: now, cmd: t, span: s.startSpan(c)}, now)
}

// quote bounds what a subject's token adds to a message.
func quote(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strconv.Quote(s)
}

// nodeOf is the node that a command belongs to.
func (s *Service) nodeOf(t events.CommandType, subject string) *node {
	switch t {
	case events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit, events.CmdTrim:
		return s.opsNode
	}
	return s.nodes[events.PartitionOf(subject, len(s.nodes))]
}

// respond gives a caller what became of its command.
func (s *Service) respond(c *caller, a *events.Answer, err *events.Error) {
	s.metrics.answered(s.now(), c, a, err)
	endSpan(c.span, a, err)
	switch {
	case c.reply == "" || s.silent.Load():
	case err != nil:
		s.refuse(c.reply, err)
	default:
		s.answer(c.reply, a)
	}
}

// refuse answers with an error: the command is not recorded.
func (s *Service) refuse(reply string, e *events.Error) {
	if reply == "" {
		return
	}
	m := nats.NewMsg(reply)
	setError(m.Header, e.Code, e.HTTPStatus())
	m.Data = encodeError(e)
	s.send(m)
}

// setError sets the headers by which NATS tools tell an error. They are stored
// as they are: canonical forms would not be the micro protocol's.
func setError(h nats.Header, code events.Code, status int) {
	h[micro.ErrorHeader] = []string{string(code)}
	h[micro.ErrorCodeHeader] = []string{strconv.Itoa(status)}
}

// send publishes a reply. An error means a closed connection or a full buffer:
// the caller asks again.
func (s *Service) send(m *nats.Msg) { _ = s.publish(m) }

// answer sends a recorded answer. A denial is an answer whose headers say 409,
// so that tools that know nothing of pdgate show it as an error.
func (s *Service) answer(reply string, a *events.Answer) {
	b, err := events.AppendAnswer(make([]byte, 0, 512), a)
	if err != nil {
		s.log.Error("answer cannot be encoded", "request_id", a.Subject, "err", err)
		return
	}
	m := &nats.Msg{Subject: reply, Data: b}
	if a.Denied != nil {
		m.Header = nats.Header{}
		setError(m.Header, a.Denied.Code, 409)
	}
	s.send(m)
}
