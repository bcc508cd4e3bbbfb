package broker

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// workVerbs is JetStream's API as far as it could touch the work stream, under
// the plain subjects and under those that lifecycle uses.
func workVerbs() []string {
	verbs := []string{"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.OTHER", "CONSUMER.NAMES." + events.WorkStream, "CONSUMER.LIST." + events.WorkStream,
		"CONSUMER.CREATE." + events.WorkStream, "DIRECT.GET." + events.WorkStream, "DIRECT.GET." + events.WorkStream + "." + events.WorkSubject("ref", events.RolePrefill),
		"SERVER.REMOVE", "ACCOUNT.PURGE.WORK", "ACCOUNT.PURGE.BUS", "META.LEADER.STEPDOWN"}
	for _, v := range []string{"PURGE", "DELETE", "UPDATE", "CREATE", "INFO", "SNAPSHOT", "RESTORE", "MSG.GET", "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN"} {
		verbs = append(verbs, "STREAM."+v+"."+events.WorkStream)
	}
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		c := events.WorkStream + "." + events.WorkConsumer("ref", role)
		for _, v := range []string{"DELETE", "CREATE", "DURABLE.CREATE", "INFO", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN", "MSG.NEXT"} {
			verbs = append(verbs, "CONSUMER."+v+"."+c)
		}
		verbs = append(verbs, "CONSUMER.CREATE."+c+"."+events.WorkSubject("ref", role))
	}
	var all []string
	for _, v := range verbs {
		all = append(all, js+v, workSubject(js+v))
	}
	return all
}

// workState is what must not change: the stream, what it holds, its consumers,
// and which of them handed out what.
type workState struct {
	Created   time.Time
	Config    jetstream.StreamConfig
	State     jetstream.StreamState
	Consumers map[string]consumerState
}

type consumerState struct {
	Created    time.Time
	Paused     bool
	Config     jetstream.ConsumerConfig
	AckFloor   uint64
	Delivered  uint64
	AckPending int
}

func readWork(t *testing.T, work jetstream.JetStream) workState {
	t.Helper()
	w, err := lookAtWork(t, work)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func lookAtWork(t *testing.T, work jetstream.JetStream) (workState, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := work.Stream(ctx, events.WorkStream)
	if err != nil {
		return workState{}, err
	}
	i := s.CachedInfo()
	w := workState{Created: i.Created, Config: i.Config, State: i.State, Consumers: map[string]consumerState{}}
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		name := events.WorkConsumer("ref", role)
		c, err := s.Consumer(ctx, name)
		if err != nil {
			return workState{}, err
		}
		i := c.CachedInfo()
		w.Consumers[name] = consumerState{i.Created, i.Paused, i.Config, i.AckFloor.Stream, i.Delivered.Stream, i.NumAckPending}
	}
	return w, nil
}

// tricks makes the server, and lifecycle, publish to a subject of the worker's
// choice by each way that a worker has: the answer to a pull, with an item and
// without one, to an acknowledgement, and to a command. It returns when all of
// it has been handled.
func tricks(t *testing.T, nc *nats.Conn, u keyring.User, held *nats.Msg, subject string) {
	t.Helper()
	next := js + "CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer("ref", u.Role())
	command := events.CommandSubject(u.Role(), u.Principal(), events.CmdRegister, events.OpsPartition)
	for _, m := range []*nats.Msg{
		{Subject: next, Reply: subject, Data: []byte(`{"batch":1,"no_wait":true}`)},
		{Subject: next, Reply: subject, Data: []byte(`{"batch":1,"expires":1000000}`)},
		{Subject: held.Reply, Reply: subject, Data: []byte("+WPI")},
		{Subject: command, Reply: subject},
		{Subject: command, Reply: subject, Data: []byte("answer")},
	} {
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	// The consumer and lifecycle each answer a later question after these.
	for _, m := range []*nats.Msg{{Subject: next, Data: []byte(`{"batch":1,"no_wait":true}`)}, {Subject: held.Reply, Data: []byte("+WPI")}, {Subject: command}} {
		if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatalf("%s: %v", m.Subject, err)
		}
	}
}

// playLifecycle answers commands as the service would if it were least careful:
// wherever the reply subject points, with nothing or with JSON of its own.
func playLifecycle(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if _, err := nc.Subscribe("pdgate.v1.>", func(m *nats.Msg) {
		var body []byte
		if len(m.Data) > 0 {
			body, _ = json.Marshal(events.Answer{Subject: requestID, State: events.Admitted})
		}
		_ = m.Respond(body)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// takeAll takes the role's one item and holds it, so that what comes after finds
// the queue empty: the answer is a message without content, which as a request
// to JetStream asks for the most.
func takeAll(t *testing.T, nc *nats.Conn, role events.Role) *nats.Msg {
	t.Helper()
	m, err := nc.Request(js+"CONSUMER.MSG.NEXT."+events.WorkStream+"."+events.WorkConsumer("ref", role), []byte(`{"batch":1,"expires":5000000000}`), 5*time.Second)
	if err != nil || !strings.HasPrefix(m.Reply, "$JS.ACK.") {
		t.Fatalf("%s: no item: %+v %v", role, m, err)
	}
	return m
}

// TestWorkOutOfReach names each verb of JetStream's API as the reply of all that
// a worker may ask for. The stream and its consumers stay as they are.
func TestWorkOutOfReach(t *testing.T) {
	for _, u := range []keyring.User{keyring.Worker(events.RolePrefill, "p1"), keyring.Worker(events.RoleDecode, "d1")} {
		t.Run(string(u), func(t *testing.T) {
			b, ring := startBroker(t)
			work := openWork(t, b, ring)
			playLifecycle(t, connect(t, b, ring, keyring.LifecycleBus))
			nc := connect(t, b, ring, u)
			held := takeAll(t, nc, u.Role())
			for _, verb := range workVerbs() {
				before := readWork(t, work)
				tricks(t, nc, u, held, verb)
				if diff := cmp.Diff(before, readWork(t, work)); diff != "" {
					t.Errorf("%s as a reply subject changed the work stream:\n%s", verb, diff)
				}
			}
			// An item on its way there is no request that JetStream follows, either.
			for _, verb := range workVerbs() {
				if _, err := work.Publish(t.Context(), events.WorkSubject("ref", u.Role()), []byte(`{"request_id":"`+requestID+`"}`)); err != nil {
					t.Fatal(err)
				}
				before := readWork(t, work)
				tricks(t, nc, u, held, verb)
				after := readWork(t, work)
				// The worker's own queue has handed it out; that is all.
				own := events.WorkConsumer("ref", u.Role())
				c := after.Consumers[own]
				c.Delivered, c.AckPending = before.Consumers[own].Delivered, before.Consumers[own].AckPending
				after.Consumers[own] = c
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("%s as the reply subject of an item changed the work stream:\n%s", verb, diff)
				}
			}
		})
	}
}

// TestWorkIsOnlyItsOwn aims pulls and acknowledgements at the queues themselves:
// nothing comes to lie in them, and no other role's item is acknowledged.
func TestWorkIsOnlyItsOwn(t *testing.T) {
	b, ring := startBroker(t)
	work := openWork(t, b, ring)
	pre, dec := connect(t, b, ring, keyring.Worker(events.RolePrefill, "p1")), connect(t, b, ring, keyring.Worker(events.RoleDecode, "d1"))
	other, held := takeAll(t, pre, events.RolePrefill), takeAll(t, dec, events.RoleDecode)
	next := js + "CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer("ref", events.RoleDecode)
	for _, item := range []bool{false, true} {
		for _, subject := range []string{events.WorkSubject("ref", events.RolePrefill), events.WorkSubject("ref", events.RoleDecode), other.Reply} {
			if item {
				if _, err := work.Publish(t.Context(), events.WorkSubject("ref", events.RoleDecode), []byte(`{"request_id":"`+requestID+`"}`)); err != nil {
					t.Fatal(err)
				}
			}
			before := readWork(t, work)
			for _, m := range []*nats.Msg{
				{Subject: next, Reply: subject, Data: []byte(`{"batch":1,"no_wait":true}`)},
				{Subject: next, Reply: subject, Data: []byte(`{"batch":1,"expires":1000000}`)},
				{Subject: held.Reply, Reply: subject, Data: []byte("+WPI")},
			} {
				if err := dec.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
			}
			for _, m := range []*nats.Msg{{Subject: next, Data: []byte(`{"batch":1,"no_wait":true}`)}, {Subject: held.Reply, Data: []byte("+WPI")}} {
				if _, err := dec.RequestMsg(m, 5*time.Second); err != nil {
					t.Fatal(err)
				}
			}
			after := readWork(t, work)
			own := events.WorkConsumer("ref", events.RoleDecode)
			before.Consumers[own], after.Consumers[own] = consumerState{}, consumerState{}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s as a reply subject (an item: %v):\n%s", subject, item, diff)
			}
		}
	}
}

// startEdited runs the server from a configuration with something changed.
func startEdited(t *testing.T, edit func(text string, ring *keyring.Ring) string) (*Broker, *keyring.Ring) {
	t.Helper()
	ring := openRing(t)
	text, err := Config{StoreDir: t.TempDir(), Ring: ring, Models: []string{"ref"}}.Text()
	if err != nil {
		t.Fatal(err)
	}
	edited := edit(text, ring)
	if edited == text {
		t.Fatalf("nothing was changed in:\n%s", text)
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(edited); err != nil {
		t.Fatal(err)
	}
	opts.DontListen, opts.NoSigs, opts.NoLog = true, true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(readyTimeout) {
		t.Fatal("not ready")
	}
	return &Broker{srv: srv}, ring
}

// TestWorkWithoutGuards removes one guard after the other, and sees the work
// stream reached.
func TestWorkWithoutGuards(t *testing.T) {
	u := keyring.Worker(events.RoleDecode, "d1")
	all := slices.Concat(workTakes, workKeeps, []string{events.WorkAll})
	export := func(more ...string) func(string, *keyring.Ring) string {
		return func(text string, _ *keyring.Ring) string {
			for _, s := range more {
				to := s
				if !strings.Contains(s, ".MSG.NEXT.") {
					to = workSubject(s)
				}
				text = strings.Replace(text, exports(shared{all, []account{accountBus}}),
					exports(shared{append(slices.Clone(all), s), []account{accountBus}}), 1)
				text = strings.Replace(text, "      { service: { account: WORK,", "      { service: { account: WORK, subject: "+quote(s)+" }, to: "+quote(to)+" }\n      { service: { account: WORK,", 1)
			}
			return text
		}
	}
	other := events.WorkConsumer("ref", events.RolePrefill)
	for name, tt := range map[string]struct {
		edit    func(string, *keyring.Ring) string
		reply   string
		reached func(workState, error) bool
	}{
		"the worker inside the account": {
			func(text string, ring *keyring.Ring) string {
				key, err := ring.PublicKey(u)
				if err != nil {
					t.Fatal(err)
				}
				from := strings.Index(text, "      { nkey: "+key)
				to := from + strings.Index(text[from:], "} }\n") + len("} }\n")
				user := text[from:to]
				text = text[:from] + text[to:]
				at := strings.Index(text, "  WORK {")
				at += strings.Index(text[at:], "users: [\n") + len("users: [\n")
				return text[:at] + user + text[at:]
			},
			js + "STREAM.DELETE." + events.WorkStream,
			func(_ workState, err error) bool { return errors.Is(err, jetstream.ErrStreamNotFound) },
		},
		"purge exported": {
			export(js + "STREAM.PURGE." + events.WorkStream),
			workSubject(js + "STREAM.PURGE." + events.WorkStream),
			func(w workState, err error) bool { return err == nil && w.State.Msgs == 0 },
		},
		"a consumer's delete exported": {
			export(js + "CONSUMER.DELETE." + events.WorkStream + "." + other),
			workSubject(js + "CONSUMER.DELETE." + events.WorkStream + "." + other),
			func(_ workState, err error) bool { return errors.Is(err, jetstream.ErrConsumerNotFound) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, ring := startEdited(t, tt.edit)
			work := openWork(t, b, ring)
			nc := connect(t, b, ring, u)
			takeAll(t, nc, u.Role())
			if err := nc.PublishRequest(js+"CONSUMER.MSG.NEXT."+events.WorkStream+"."+events.WorkConsumer("ref", u.Role()), tt.reply, []byte(`{"batch":1,"no_wait":true}`)); err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(5 * time.Second); !tt.reached(lookAtWork(t, work)); <-tick.C {
				if time.Now().After(end) {
					t.Fatalf("%s as a reply subject did nothing; the trick that the accounts guard against has changed", tt.reply)
				}
			}
		})
	}
}
