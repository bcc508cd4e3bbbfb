package lifecycle

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// open is a replica on a server without accounts and permissions: whatever it
// refuses, it refuses by itself.
func open(t *testing.T) (*replica, *nats.Conn) {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), logs: &logBuffer{}}
	ns, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: r.dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("server is not ready")
	}
	connect := func() *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(ns))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	x := &replica{rig: r, log: connect(), bus: connect(), done: make(chan error, 1)}
	key := []byte(strings.Repeat("k", 32))
	if x.journal, err = journal.OpenJetStream(t.Context(), x.log, journal.Config{Key: key, Partitions: testPartitions}); err != nil {
		t.Fatal(err)
	}
	x.Service, err = New(Config{
		Name: "lc1", Journal: x.journal, Bus: x.bus, Partitions: testPartitions, Logger: r.logger("lc1"),
		GrantKey: testGrantKey, DigestSecret: key, LogKey: key, BootQuiet: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	x.run()
	<-x.Ready()
	return x, connect()
}

// reply is what a peer got: an answer, or an error that is not recorded.
func reply(t *testing.T, nc *nats.Conn, subject string, payload []byte) (*events.Answer, *events.Error, nats.Header) {
	t.Helper()
	m, err := nc.Request(subject, payload, 5*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	if a, err := events.DecodeAnswer(m.Data); err == nil {
		return a, nil, m.Header
	}
	var e events.Error
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatalf("%s: reply is neither an answer nor an error: %s", subject, m.Data)
	}
	return nil, &e, m.Header
}

// example is a well-formed payload of each command.
func example(t *testing.T, c events.CommandType, principal string) (subject string, payload []byte) {
	t.Helper()
	p := &party{name: principal, epoch: 7}
	id := newID(t)
	pre := p.prefill()
	d := map[events.CommandType]events.CommandData{
		events.CmdAdmit: admit(), events.CmdReject: &events.Reject{WorkerEpoch: 7, Error: *events.NewError(events.CodeContextLength, "too long")},
		events.CmdPrefilled: pre, events.CmdGrant: p.grant(1), events.CmdTransferred: p.transfer(id, pre, 1), events.CmdDecoded: p.output(),
		events.CmdFail:     &events.Fail{Stage: "prefill", Error: *events.NewError(events.CodePrefillFailed, "no")},
		events.CmdCancel:   &events.Cancel{Reason: events.CodeCancelled},
		events.CmdReleased: &events.Release{Worker: principal, WorkerEpoch: 7, Role: events.RolePrefill, Generation: 1, Pages: 1, Reason: "done"},
		events.CmdRegister: p.registration(), events.CmdLeave: &events.Leave{Epoch: 7, Reason: "shutdown"},
		events.CmdQuarantine: &events.Quarantine{Reason: "test"}, events.CmdRestore: &events.Restore{Reason: "test"},
		events.CmdErase:  &events.Erase{TenantKey: "0123456789abcdef"},
		events.CmdCanary: &events.Canary{Model: testModel, Verdict: events.CanaryClean},
		events.CmdNotify: &events.Notify{Incident: "INC-1", Channel: "email", Content: strings.Repeat("a0", 32), SentAt: time.Unix(1_800_000_000, 0)},
		events.CmdAudit:  &events.Audit{Reader: "first", Kind: events.ReadEntries, Via: "http", Reads: 1},
	}[c]
	subject = id
	switch c {
	case events.CmdRegister, events.CmdLeave, events.CmdErase, events.CmdNotify:
		subject = principal
	case events.CmdQuarantine, events.CmdRestore:
		subject = testModel
	}
	b, err := events.AppendCommand(nil, &events.Command{Type: c, Subject: subject, Data: d})
	if err != nil {
		t.Fatal(err)
	}
	return subject, b
}

func addressOf(c events.CommandType, subject string) int {
	switch c {
	case events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit:
		return events.OpsPartition
	}
	return events.PartitionOf(subject, testPartitions)
}

// Whatever the server's permissions say, the service takes a command only from
// the roles that may send it; nothing of a refused one is recorded.
func TestRolesAndCommands(t *testing.T) {
	x, nc := open(t)
	for _, role := range append(events.AllRoles(), "stranger") {
		for _, c := range events.AllCommandTypes() {
			if c == events.CmdTrim {
				continue // the service's own: it has no endpoint
			}
			subject, payload := example(t, c, "someone")
			for _, to := range []string{
				events.CommandSubject(role, "someone", c, addressOf(c, subject)),
				events.CommandSubjectAny(role, "someone", c, addressOf(c, subject)),
			} {
				was := x.logSeq.Load()
				a, e, h := reply(t, nc, to, payload)
				switch {
				case role.May(c) && a == nil:
					t.Errorf("%s: refused: %v", to, e)
				case !role.May(c) && (e == nil || e.Code != events.CodeForbidden || h.Get(micro.ErrorCodeHeader) != "403" || h.Get(micro.ErrorHeader) != "forbidden"):
					t.Errorf("%s: %+v %v %v", to, a, e, h)
				case !role.May(c) && x.logSeq.Load() != was:
					t.Errorf("%s: something was recorded", to)
				}
			}
		}
	}
}

// A payload that is not a command is refused with the field's name, and nothing
// of it comes back or is logged.
func TestMalformed(t *testing.T) {
	x, nc := open(t)
	subject, good := example(t, events.CmdAdmit, "gw1")
	at := addressOf(events.CmdAdmit, subject)
	canary := "kanarienvogel"
	for name, c := range map[string]struct{ payload, to, want string }{
		"garbage":         {canary, "", "byte 0"},
		"empty":           {"", "", ""},
		"jetstream reply": {`{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404}}`, "", "type"},
		"unknown member":  {strings.Replace(string(good), `"data":{`, `"data":{"zz":"`+canary+`",`, 1), "", "data.zz"},
		"missing member":  {strings.Replace(string(good), `"model":"ref-1.0",`, "", 1), "", "model"},
		"wrong type":      {strings.Replace(string(good), `"prompt_tokens":1000`, `"prompt_tokens":"`+canary+`"`, 1), "", "prompt_tokens"},
		"no uuid":         {strings.Replace(string(good), subject, canary, 1), "", "request_id"},
		"another's partition": {string(good), events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, (at+1)%testPartitions),
			"partition"},
	} {
		t.Run(name, func(t *testing.T) {
			to := c.to
			if to == "" {
				to = events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, at)
			}
			a, e, h := reply(t, nc, to, []byte(c.payload))
			if a != nil || e.Code != events.CodeMalformed || h.Get(micro.ErrorCodeHeader) != "400" {
				t.Fatalf("%+v %v", a, e)
			}
			if !strings.Contains(e.Message, c.want) || strings.Contains(e.Message, canary) {
				t.Errorf("message %q, want it to name %q and to repeat nothing", e.Message, c.want)
			}
		})
	}
	if x.logSeq.Load() != 0 {
		t.Error("something was recorded")
	}
	if strings.Contains(x.rig.logs.String(), canary) {
		t.Error("a payload is in the log")
	}
}

// A denial is an answer, and its headers let tools that know nothing of pdgate
// show it as an error.
func TestDenialHeaders(t *testing.T) {
	_, nc := open(t)
	subject, payload := example(t, events.CmdPrefilled, "p1")
	to := events.CommandSubject(events.RolePrefill, "p1", events.CmdPrefilled, addressOf(events.CmdPrefilled, subject))
	a, _, h := reply(t, nc, to, payload)
	if a == nil || a.Denied == nil || a.Denied.Code != events.CodeUnknownRequest || a.Position == "" || a.Type != events.TypeDenied {
		t.Fatalf("%+v", a)
	}
	if h.Get(micro.ErrorHeader) != "unknown_request" || h.Get(micro.ErrorCodeHeader) != "409" {
		t.Errorf("headers %v", h)
	}
	again, _, _ := reply(t, nc, to, payload)
	if again.ID != a.ID || again.Position != a.Position {
		t.Errorf("repeated: %+v, at first %+v", again, a)
	}
}

// A command whose reply subject is no inbox is ignored: a peer cannot aim an
// answer at a command, an event or another's mail.
func TestReplySubjects(t *testing.T) {
	x, nc := open(t)
	for _, aim := range []string{"pdgate.v1.operator.op.quarantine.ops", "pdgate.log.9", "pdgate.notify.m.x", "elsewhere", "_inbox.x"} {
		sub, err := nc.SubscribeSync(aim)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{
			events.QuerySubject(events.RoleOperator, "op", events.QueryInfo),
			events.QuerySubject(events.RoleOperator, "op", events.QueryGet),
		} {
			if err := nc.PublishRequest(to, aim, nil); err != nil {
				t.Fatal(err)
			}
		}
		subject, payload := example(t, events.CmdAdmit, "gw1")
		at := addressOf(events.CmdAdmit, subject)
		if err := nc.PublishRequest(events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, at), aim, payload); err != nil {
			t.Fatal(err)
		}
		// Commands of one subject are handled in order: when this one is answered,
		// the one before has been.
		subject, payload = example(t, events.CmdAdmit, "gw1")
		for addressOf(events.CmdAdmit, subject) != at {
			subject, payload = example(t, events.CmdAdmit, "gw1")
		}
		reply(t, nc, events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, at), payload)
		reply(t, nc, events.QuerySubject(events.RoleOperator, "op", events.QueryHistory), nil)
		if n, _, _ := sub.Pending(); n != 0 {
			t.Errorf("%d messages reached %s", n, aim)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(x.rig.logs.String(), "reply subject that is no inbox") {
		t.Error("nothing was logged")
	}
}
