package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

const requestID = "01976f3e-7c1b-7000-8000-000000000001"

// forbidden says whether the server refused the subject. The refusal is handled
// by the connection's reader before the PONG that ends Flush.
func forbidden(t *testing.T, nc *nats.Conn, subject string) bool {
	t.Helper()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	err := nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), fmt.Sprintf("%q", subject))
}

// everySubject is one subject of each kind that exists, over all principals.
func everySubject() []string {
	subjects := []string{
		"pdgate.log.0", "pdgate.log.ops", "pdgate.notify.ref." + requestID, "pdgate.replica.r1",
		"pdgate.work.ref.prefill", "pdgate.work.ref.decode", "pdgate.audit.signed", "pdgate.disclosed.acme." + requestID, "_R_.x", "foreign", "$SRV.PING", "$SYS.REQ.SERVER.PING",
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.OTHER",
	}
	for _, role := range []events.Role{events.RoleGateway, events.RolePrefill, events.RoleDecode, events.RoleOperator, events.RoleLifecycle, events.RoleAuditor, events.RoleCanary} {
		for _, name := range principals(role) {
			for _, c := range allCommands {
				subjects = append(subjects, events.CommandSubject(role, name, c, 3), events.CommandSubjectAny(role, name, c, 3))
			}
			subjects = append(subjects, events.QuerySubject(role, name, "list"), events.HeartbeatSubject(role, name), events.ReceiptSubject(role, name), "_INBOX."+string(role)+"-"+name+".x")
		}
	}
	for _, gw := range testNames.Gateways {
		for _, w := range []string{"1", "2"} {
			subjects = append(subjects, events.PromptSubject(gw, events.RolePrefill, "p"+w, requestID),
				events.PromptSubject(gw, events.RoleDecode, "d"+w, requestID), events.OutputSubject(gw, "d"+w, requestID))
		}
	}
	for _, op := range []string{"STREAM.INFO.PDGATE", "STREAM.UPDATE.PDGATE", "STREAM.DELETE.PDGATE", "STREAM.PURGE.PDGATE", "STREAM.MSG.GET.PDGATE",
		"STREAM.MSG.DELETE.PDGATE", "DIRECT.GET.PDGATE", "CONSUMER.CREATE.PDGATE.c", "CONSUMER.DELETE.PDGATE.c", "CONSUMER.INFO.PDGATE.c", "CONSUMER.MSG.NEXT.PDGATE.c", "STREAM.INFO.PDGATE_WORK"} {
		subjects = append(subjects, "$JS.log.API."+op)
	}
	for _, stream := range []string{events.LogStream, events.WorkStream, events.AuditStream, events.DisclosureStream} {
		for _, op := range []string{"INFO", "CREATE", "UPDATE", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "SNAPSHOT", "RESTORE", "PEER.REMOVE", "LEADER.STEPDOWN"} {
			subjects = append(subjects, js+"STREAM."+op+"."+stream, "$JS.work.API.STREAM."+op+"."+stream, "$JS.audit.API.STREAM."+op+"."+stream, "$JS.disclosures.API.STREAM."+op+"."+stream)
		}
		subjects = append(subjects, js+"DIRECT.GET."+stream)
		for _, c := range []string{events.WorkConsumer("ref", events.RolePrefill), events.WorkConsumer("ref", events.RoleDecode), events.WorkConsumer("other", events.RolePrefill)} {
			for _, op := range []string{"CREATE", "DURABLE.CREATE", "DELETE", "INFO", "PAUSE", "UNPIN", "MSG.NEXT"} {
				subjects = append(subjects, js+"CONSUMER."+op+"."+stream+"."+c, "$JS.work.API.CONSUMER."+op+"."+stream+"."+c)
			}
			subjects = append(subjects, "$JS.ACK."+stream+"."+c+".1.1.1.1.0")
		}
	}
	return subjects
}

var allCommands = []events.CommandType{
	events.CmdAdmit, events.CmdReject, events.CmdPrefilled, events.CmdGrant, events.CmdTransferred, events.CmdDecoded, events.CmdFail,
	events.CmdCancel, events.CmdReleased, events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit,
}

func principals(r events.Role) []string {
	switch r {
	case events.RoleGateway:
		return testNames.Gateways
	case events.RolePrefill:
		return testNames.Prefill
	case events.RoleDecode:
		return testNames.Decode
	case events.RoleOperator:
		return []string{"operator", "other"}
	case events.RoleLifecycle:
		return []string{"lifecycle-bus", "lifecycle-log", "lifecycle-trim"}
	case events.RoleAuditor:
		return []string{"auditor"}
	case events.RoleCanary:
		return []string{"canary"}
	}
	return nil
}

// TestPublish tries every subject as every user. What is allowed is written out
// here, user by user, and everything else must be refused: the expectation is
// independent of the table that the configuration is made from.
func TestPublish(t *testing.T) {
	b, ring := startBroker(t)
	pre, dec := events.WorkConsumer("ref", events.RolePrefill), events.WorkConsumer("ref", events.RoleDecode)
	logReads := []string{
		"$JS.API.STREAM.INFO.PDGATE", "$JS.API.STREAM.MSG.GET.PDGATE", "$JS.API.DIRECT.GET.PDGATE",
		"$JS.API.CONSUMER.CREATE.PDGATE.*", "$JS.API.CONSUMER.INFO.PDGATE.*", "$JS.API.CONSUMER.MSG.NEXT.PDGATE.*",
	}
	for _, tt := range []struct {
		user  keyring.User
		allow []string // NATS patterns
	}{
		{keyring.Worker(events.RolePrefill, "p1"), []string{
			"pdgate.v1.prefill.p1.reject.>", "pdgate.v1.prefill.p1.prefilled.>", "pdgate.v1.prefill.p1.fail.>",
			"pdgate.v1.prefill.p1.released.>", "pdgate.v1.prefill.p1.register.>", "pdgate.v1.prefill.p1.leave.>",
			"pdgate.v1.prefill.p1.query.>", "pdgate.v1.prefill.p1.heartbeat", "pdgate.prompt.*.prefill.p1.*",
			"$JS.API.CONSUMER.MSG.NEXT.PDGATE_WORK." + pre, "$JS.ACK.PDGATE_WORK." + pre + ".>",
		}},
		{keyring.Worker(events.RoleDecode, "d1"), []string{
			"pdgate.v1.decode.d1.grant.>", "pdgate.v1.decode.d1.transferred.>", "pdgate.v1.decode.d1.decoded.>",
			"pdgate.v1.decode.d1.fail.>", "pdgate.v1.decode.d1.released.>", "pdgate.v1.decode.d1.register.>",
			"pdgate.v1.decode.d1.leave.>", "pdgate.v1.decode.d1.query.>", "pdgate.v1.decode.d1.heartbeat",
			"pdgate.prompt.*.decode.d1.*", "pdgate.output.*.d1.*",
			"$JS.API.CONSUMER.MSG.NEXT.PDGATE_WORK." + dec, "$JS.ACK.PDGATE_WORK." + dec + ".>",
		}},
		{keyring.Gateway("gw1"), []string{
			"pdgate.v1.gateway.gw1.admit.>", "pdgate.v1.gateway.gw1.cancel.>", "pdgate.v1.gateway.gw1.fail.>",
			"pdgate.v1.gateway.gw1.query.>", "_INBOX.prefill-p1.>", "_INBOX.prefill-p2.>", "_INBOX.decode-d1.>", "_INBOX.decode-d2.>",
			"pdgate.audit.receipt.gateway.gw1", "pdgate.disclosed.acme." + requestID,
		}},
		{keyring.Operator, []string{
			"pdgate.v1.operator.operator.cancel.>", "pdgate.v1.operator.operator.quarantine.>",
			"pdgate.v1.operator.operator.restore.>", "pdgate.v1.operator.operator.erase.>", "pdgate.v1.operator.operator.notify.>", "pdgate.v1.operator.operator.query.>", "$SRV.>",
		}},
		{keyring.Auditor, []string{
			"$JS.log.API.STREAM.INFO.PDGATE", "$JS.log.API.STREAM.MSG.GET.PDGATE", "$JS.log.API.DIRECT.GET.PDGATE",
			"$JS.log.API.CONSUMER.CREATE.PDGATE.*", "$JS.log.API.CONSUMER.INFO.PDGATE.*", "$JS.log.API.CONSUMER.MSG.NEXT.PDGATE.*",
			"$JS.API.STREAM.INFO.PDGATE_AUDIT", "$JS.API.STREAM.CREATE.PDGATE_AUDIT", "$JS.API.STREAM.MSG.GET.PDGATE_AUDIT", "pdgate.audit.signed",
			"pdgate.audit.receipt.auditor.auditor", "_INBOX.auditor-auditor.>", "_R_.>", "$SRV.>",
		}},
		{keyring.Canary, []string{"pdgate.v1.canary.canary.quarantine.>", "pdgate.v1.canary.canary.canary.>", "pdgate.v1.canary.canary.query.>"}},
		{keyring.AuditorBus, []string{"pdgate.v1.auditor.auditor.audit.>", "pdgate.v1.auditor.auditor.query.>"}},
		{keyring.LifecycleTrim, []string{"$JS.log.API.STREAM.INFO.PDGATE", "$JS.log.API.STREAM.PURGE.PDGATE"}},
		{keyring.LifecycleLog, append([]string{
			"pdgate.log.>", "$JS.API.INFO", "$JS.API.STREAM.CREATE.PDGATE", "$JS.API.CONSUMER.DURABLE.CREATE.PDGATE.*",
			"$JS.API.CONSUMER.DELETE.PDGATE.*", "$JS.ACK.PDGATE.>",
			"$JS.audit.API.STREAM.MSG.GET.PDGATE_AUDIT"}, logReads...)},
		{keyring.LifecycleBus, []string{
			"_INBOX.>", "pdgate.notify.>", "pdgate.work.>", "pdgate.replica.>",
			"$JS.work.API.STREAM.INFO.PDGATE_WORK", "$JS.work.API.STREAM.CREATE.PDGATE_WORK",
			"$JS.work.API.CONSUMER.CREATE.PDGATE_WORK.>", "$JS.work.API.CONSUMER.INFO.PDGATE_WORK.*",
			"$JS.disclosures.API.STREAM.INFO.PDGATE_DISCLOSURES", "$JS.disclosures.API.STREAM.CREATE.PDGATE_DISCLOSURES",
		}},
		{keyring.Eraser, []string{
			"$JS.API.STREAM.INFO.PDGATE_DISCLOSURES", "$JS.API.STREAM.MSG.GET.PDGATE_DISCLOSURES", "$JS.API.STREAM.PURGE.PDGATE_DISCLOSURES",
			"$JS.audit.API.STREAM.MSG.GET.PDGATE_AUDIT",
		}},
	} {
		nc := connect(t, b, ring, tt.user)
		used := map[string]bool{}
		for _, s := range everySubject() {
			if err := nc.Publish(s, nil); err != nil {
				t.Fatal(err)
			}
			want := true
			for _, p := range tt.allow {
				if match(p, s) {
					want = false
					used[p] = true
				}
			}
			if got := forbidden(t, nc, s); got != want {
				t.Errorf("%s publishes %s: forbidden is %v, want %v", tt.user, s, got, want)
			}
		}
		for _, p := range tt.allow {
			if !used[p] {
				t.Errorf("%s: no subject of the test is covered by %s", tt.user, p)
			}
		}
	}
}

func TestSubscribe(t *testing.T) {
	b, ring := startBroker(t)
	probe := append(everySubject(), ">", "pdgate.>", "pdgate.v1.>", "pdgate.log.>", "pdgate.prompt.>", "pdgate.output.>", "pdgate.work.>",
		"_INBOX.>", "_INBOX.*.>", "$JS.>", "$JS.API.>", "*.>", "pdgate.notify.>", "_R_.>", "$SRV.>", "_INBOX.lifecycle-bus.x", "_INBOX.lifecycle-log.x", "_INBOX.eraser.x", "pdgate.disclosed.>")
	for _, tt := range []struct {
		user  keyring.User
		allow []string
	}{
		{keyring.Worker(events.RolePrefill, "p1"), []string{"_INBOX.prefill-p1.>", "pdgate.notify.>"}},
		{keyring.Worker(events.RoleDecode, "d1"), []string{"_INBOX.decode-d1.>", "pdgate.notify.>"}},
		{keyring.Gateway("gw1"), []string{"_INBOX.gateway-gw1.>", "pdgate.notify.>", "pdgate.prompt.gw1.>", "pdgate.output.gw1.>"}},
		{keyring.Operator, []string{"_INBOX.operator-operator.>", "pdgate.notify.>"}},
		{keyring.Auditor, []string{"_INBOX.auditor-auditor.>", "pdgate.audit.receipt.*.*", "$SRV.>"}},
		{keyring.Canary, []string{"_INBOX.canary-canary.>"}},
		{keyring.AuditorBus, []string{"_INBOX.auditor-auditor.>"}},
		{keyring.Eraser, []string{"_INBOX.eraser.>"}},
		{keyring.LifecycleLog, []string{"_INBOX.lifecycle-log.>"}},
		{keyring.LifecycleTrim, []string{"_INBOX.lifecycle-trim.>"}},
		{keyring.LifecycleBus, []string{"_INBOX.lifecycle-bus.>", "pdgate.v1.>", "pdgate.replica.>", "$SRV.>", "pdgate.notify.>"}},
	} {
		nc := connect(t, b, ring, tt.user)
		for _, s := range probe {
			sub, err := nc.SubscribeSync(s)
			if err != nil {
				t.Fatal(err)
			}
			want := true
			for _, p := range tt.allow {
				if match(p, s) {
					want = false
				}
			}
			if got := forbidden(t, nc, s); got != want {
				t.Errorf("%s subscribes %s: forbidden is %v, want %v", tt.user, s, got, want)
			}
			sub.Unsubscribe()
		}
	}
}

// match says whether a NATS pattern covers a subject or a narrower pattern.
func match(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, tok := range p {
		if tok == ">" {
			return len(s) > i
		}
		if i >= len(s) || (tok != s[i] && (tok != "*" || s[i] == ">")) {
			return false
		}
	}
	return len(p) == len(s)
}

// openLog makes the stream as lifecycle would, holding one event.
func openLog(t *testing.T, b *Broker, ring *keyring.Ring) jetstream.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	log, err := jetstream.New(connect(t, b, ring, keyring.LifecycleLog))
	if err != nil {
		t.Fatal(err)
	}
	s, err := log.CreateStream(ctx, jetstream.StreamConfig{Name: events.LogStream, Subjects: []string{events.LogAll}, DenyDelete: true, DenyPurge: true, AllowDirect: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Publish(ctx, events.LogSubject(0), []byte("event\n")); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLogUnreachable names a log subject as the reply of everything that a user
// may ask for. Nothing may arrive in the stream.
func TestLogUnreachable(t *testing.T) {
	b, ring := startBroker(t)
	s := openLog(t, b, ring)
	openWork(t, b, ring)
	auditor := connect(t, b, ring, keyring.Auditor)
	aj, err := jetstream.NewWithDomain(auditor, AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	// A pull consumer with something to deliver.
	if _, err := aj.CreateConsumer(ctx, events.LogStream, jetstream.ConsumerConfig{Name: "a1", AckPolicy: jetstream.AckNonePolicy}); err != nil {
		t.Fatal(err)
	}
	reply := events.LogSubject(0)
	for _, u := range testNames.Users() {
		if u == keyring.Admin || u == keyring.LifecycleLog {
			continue
		}
		nc := connect(t, b, ring, u)
		r, err := userRights(u, testNames, []string{"ref"})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.publish {
			subject := strings.NewReplacer("*", "a1", ">", "0").Replace(p)
			if err := nc.PublishRequest(subject, reply, []byte(`{"seq":1}`)); err != nil {
				t.Fatal(err)
			}
			if u == keyring.LifecycleTrim {
				continue // without a sequence it would take all of it, as it may
			}
			if err := nc.PublishRequest(subject, reply, []byte(`{"last_by_subj":"pdgate.log.0"}`)); err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		// A delivery into the log by a push consumer.
		if u == keyring.Auditor {
			req, _ := json.Marshal(map[string]any{"stream_name": events.LogStream, "config": map[string]any{
				"name": "push", "deliver_subject": reply, "ack_policy": "none", "deliver_policy": "all"}})
			m, err := nc.Request(auditSubject(js+"CONSUMER.CREATE."+events.LogStream+".push"), req, 2*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(m.Data), `"error"`) {
				t.Errorf("a consumer that delivers into the log was made: %s", m.Data)
			}
		}
	}
	// The answers are asynchronous: an append after them has the next sequence
	// only if none of them was stored. The server's order is that of its queues,
	// so the auditor asks once more and gets its answer first.
	if _, err := aj.Stream(ctx, events.LogStream); err != nil {
		t.Fatal(err)
	}
	lj, _ := jetstream.New(connect(t, b, ring, keyring.LifecycleLog))
	ack, err := lj.Publish(ctx, events.LogSubject(0), []byte("event\n"))
	if err != nil {
		t.Fatal(err)
	}
	if ack.Sequence != 2 {
		i, _ := s.Info(ctx)
		for q := uint64(2); q < ack.Sequence; q++ {
			m, _ := s.GetMsg(ctx, q)
			t.Logf("%d %s %.100q", q, m.Subject, m.Data)
		}
		t.Errorf("the log holds %d messages, want 2: something was stored through a reply subject", i.State.Msgs)
	}
}

// TestReplyTrickWithoutAccounts removes the guard: with the auditor inside LOG
// the same requests do reach the log, which is what the accounts are for.
func TestReplyTrickWithoutAccounts(t *testing.T) {
	b, ring := startBroker(t)
	openLog(t, b, ring)
	// lifecycle-log has the auditor's rights, inside the account.
	nc := connect(t, b, ring, keyring.LifecycleLog)
	if err := nc.PublishRequest(js+"STREAM.INFO."+events.LogStream, events.LogSubject(0), nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	lj, _ := jetstream.New(nc)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := lj.Stream(ctx, events.LogStream)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := s.GetMsg(ctx, 2)
		if err == nil {
			if !strings.Contains(string(m.Data), "stream_info_response") {
				t.Fatalf("the log holds %q", m.Data)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatal("an answer sent to a log subject inside LOG was not stored; the trick this package guards against has changed")
		}
	}
}

// openWork makes the work queue with one item for each role.
func openWork(t *testing.T, b *Broker, ring *keyring.Ring) jetstream.JetStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	bus, err := jetstream.NewWithDomain(connect(t, b, ring, keyring.LifecycleBus), events.WorkDomain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.CreateStream(ctx, jetstream.StreamConfig{Name: events.WorkStream, Subjects: []string{events.WorkAll}, Storage: jetstream.MemoryStorage, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		if _, err := bus.CreateConsumer(ctx, events.WorkStream, jetstream.ConsumerConfig{Durable: events.WorkConsumer("ref", role), FilterSubject: events.WorkSubject("ref", role), AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
		if _, err := bus.Publish(ctx, events.WorkSubject("ref", role), []byte(`{"request_id":"`+requestID+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	return bus
}

// TestCommandByReply walks the ways in which a decode worker can make the server
// itself publish to a command subject: what arrives is the API's own JSON, or a
// work item, and is neither a command that decodes nor one whose message carries
// the subject that was asked for.
func TestCommandByReply(t *testing.T) {
	b, ring := startBroker(t)
	openWork(t, b, ring)
	service := connect(t, b, ring, keyring.LifecycleBus)
	sub, err := service.SubscribeSync("pdgate.v1.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Flush(); err != nil {
		t.Fatal(err)
	}
	nc := connect(t, b, ring, keyring.Worker(events.RoleDecode, "d1"))
	reply := events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, 3)
	consumer := events.WorkConsumer("ref", events.RoleDecode)
	// A work item, then the API's status that there is none.
	for _, body := range []string{"", `{"batch":1,"no_wait":true}`} {
		if err := nc.PublishRequest(js+"CONSUMER.MSG.NEXT."+events.WorkStream+"."+consumer, reply, []byte(body)); err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatalf("nothing arrived at the command subject (%v); the test no longer tests anything", err)
		}
		if c, err := events.DecodeCommand(events.CmdAdmit, m.Data); err == nil {
			t.Errorf("what arrived at %s is a command: %+v", m.Subject, c)
		}
	}
}

func TestWorkerTakesWork(t *testing.T) {
	b, ring := startBroker(t)
	openWork(t, b, ring)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for role, name := range map[events.Role]string{events.RolePrefill: "p1", events.RoleDecode: "d2"} {
		nc := connect(t, b, ring, keyring.Worker(role, name))
		next := js + "CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer("ref", role)
		m, err := nc.RequestWithContext(ctx, next, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject != events.WorkSubject("ref", role) && len(m.Data) == 0 {
			t.Errorf("%s got %s %q", role, m.Subject, m.Data)
		}
		if _, err := nc.RequestWithContext(ctx, m.Reply, []byte("+ACK")); err != nil {
			t.Errorf("%s: ack: %v", role, err)
		}
		// Taken and acknowledged: there is no second one.
		m, err = nc.RequestWithContext(ctx, next, []byte(`{"batch":1,"no_wait":true}`))
		if err != nil || m.Header.Get("Status") != "404" {
			t.Errorf("%s: after the acknowledgement: %v %v", role, m, err)
		}
	}
}

func TestAuditorReads(t *testing.T) {
	b, ring := startBroker(t)
	openLog(t, b, ring)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	aj, err := jetstream.NewWithDomain(connect(t, b, ring, keyring.Auditor), AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	s, err := aj.Stream(ctx, events.LogStream)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.GetMsg(ctx, 1); err != nil || string(m.Data) != "event\n" {
		t.Errorf("direct get: %v %v", m, err)
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Next(); err != nil || string(m.Data()) != "event\n" {
		t.Errorf("consumer: %v %v", m, err)
	}
	o, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := o.Next(); err != nil || string(m.Data()) != "event\n" {
		t.Errorf("ordered consumer: %v %v", m, err)
	}
}

func TestUnknownKeyRefused(t *testing.T) {
	ring, err := keyring.Open(t.TempDir()+"/keys", testNames)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Start(Config{StoreDir: t.TempDir(), Port: -1, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	other, err := keyring.Open(t.TempDir()+"/keys", testNames)
	if err != nil {
		t.Fatal(err)
	}
	user, err := other.Option(keyring.Admin)
	if err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]nats.Option{"foreign key": user, "no key": nats.Name("nobody")} {
		if nc, err := nats.Connect(b.ClientURL(), opt); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: connected %v, error %v", name, nc != nil, err)
		}
	}
}
