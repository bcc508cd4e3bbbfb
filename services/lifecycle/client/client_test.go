package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the embedded server with its real permissions; the test plays the
// service.
type rig struct {
	t    *testing.T
	b    *broker.Broker
	ring *keyring.Ring
	bus  *nats.Conn // as lifecycle
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(dir, "nats"), Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	r := &rig{t: t, b: b, ring: ring}
	r.bus = r.connect(keyring.LifecycleBus)
	return r
}

func (r *rig) connect(u keyring.User) *nats.Conn {
	r.t.Helper()
	nc, err := natsclient.Connect(r.t.Context(), natsclient.Config{InProcess: r.b.InProcess(), Ring: r.ring, User: u, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

func (r *rig) client(u keyring.User, timeout time.Duration) *Client {
	r.t.Helper()
	c, err := New(r.t.Context(), Config{Conn: r.connect(u), Role: u.Role(), Principal: u.Principal(), Partitions: 8, Timeout: timeout})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// serve answers commands on a subject, and counts them.
func (r *rig) serve(subject string, f func(m *nats.Msg)) *atomic.Int64 {
	r.t.Helper()
	n := new(atomic.Int64)
	if _, err := r.bus.Subscribe(subject, func(m *nats.Msg) { n.Add(1); f(m) }); err != nil {
		r.t.Fatal(err)
	}
	if err := r.bus.Flush(); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func answer(t *testing.T, m *nats.Msg) {
	a, err := events.ParseAddress(m.Subject)
	if err != nil {
		t.Error(err)
		return
	}
	c, err := events.DecodeCommand(events.CommandType(a.Verb), m.Data)
	if err != nil {
		t.Error(err)
		return
	}
	b, err := events.AppendAnswer(nil, &events.Answer{Subject: c.Subject, State: events.Admitted, Type: events.TypeAdmitted, ID: c.Subject + ".1", Position: "1.0", Hash: "h"})
	if err != nil {
		t.Error(err)
		return
	}
	_ = m.Respond(b)
}

func refuse(m *nats.Msg, code events.Code) {
	e := events.NewError(code, "a test's")
	b, _ := json.Marshal(e)
	_ = m.RespondMsg(&nats.Msg{Data: b, Header: nats.Header{micro.ErrorHeader: {string(code)}, micro.ErrorCodeHeader: {strconv.Itoa(e.HTTPStatus())}}})
}

func admit() *events.Admit {
	return &events.Admit{Tenant: "acme", Model: "ref-1.0", PromptTokens: 1, MaxTokens: 1, PromptDigest: events.Digest([]byte("k"), events.KindPrompt, nil)}
}

func id() string { return uuid.Must(uuid.NewV7()).String() }

const (
	preferred = "pdgate.v1.*.*.*.*"
	everyone  = "pdgate.v1.*.*.*.any.*"
)

// The preferred replica is asked first. When it is missing the others are asked
// at once, when it is silent after the timeout; the content stays the same.
func TestRouting(t *testing.T) {
	t.Run("preferred", func(t *testing.T) {
		r := newRig(t)
		first := r.serve(preferred, func(m *nats.Msg) { answer(t, m) })
		all := r.serve(everyone, func(m *nats.Msg) { answer(t, m) })
		c := r.client(keyring.Gateway("gw1"), time.Minute)
		c.hedges.budget.Store(0) // however slow the machine is
		a, err := c.Admit(t.Context(), id(), admit())
		if err != nil || a.Position != "1.0" || first.Load() != 1 || all.Load() != 0 {
			t.Errorf("%+v %v, %d and %d asked", a, err, first.Load(), all.Load())
		}
	})
	t.Run("missing", func(t *testing.T) {
		r := newRig(t)
		all := r.serve(everyone, func(m *nats.Msg) { answer(t, m) })
		t0 := time.Now()
		_, err := r.client(keyring.Gateway("gw1"), time.Minute).Admit(t.Context(), id(), admit())
		if err != nil || all.Load() != 1 || time.Since(t0) > 5*time.Second {
			t.Errorf("%v after %s, %d asked", err, time.Since(t0), all.Load())
		}
	})
	t.Run("silent", func(t *testing.T) {
		r := newRig(t)
		first := r.serve(preferred, func(*nats.Msg) {})
		var payload []byte
		all := r.serve(everyone, func(m *nats.Msg) { payload = m.Data; answer(t, m) })
		_, err := r.client(keyring.Gateway("gw1"), 50*time.Millisecond).Admit(t.Context(), id(), admit())
		if err != nil || first.Load() != 1 || all.Load() != 1 || len(payload) == 0 {
			t.Errorf("%v, %d and %d asked", err, first.Load(), all.Load())
		}
	})
	t.Run("silent, and patience is long", func(t *testing.T) {
		r := newRig(t)
		first := r.serve(preferred, func(*nats.Msg) {})
		all := r.serve(everyone, func(m *nats.Msg) { answer(t, m) })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c := r.client(keyring.Gateway("gw1"), time.Hour)
		_, err := c.Admit(ctx, id(), admit())
		if err != nil || first.Load() != 1 || all.Load() != 1 {
			t.Errorf("%v, %d and %d asked", err, first.Load(), all.Load())
		}
		if got := c.hedges.budget.Load(); got != (hedgeBurst-1)*hedgeCost {
			t.Errorf("%d eighths of a hedge are left", got)
		}
	})
	// An admission that a silent replica may have taken is not told to be none.
	t.Run("silent, and the others are busy", func(t *testing.T) {
		r := newRig(t)
		r.serve(preferred, func(*nats.Msg) {})
		r.serve(everyone, func(m *nats.Msg) { refuse(m, events.CodeBackpressure) })
		_, err := r.client(keyring.Gateway("gw1"), 50*time.Millisecond).Admit(t.Context(), id(), admit())
		var e *events.Error
		if !errors.As(err, &e) || e.Code != events.CodeUnavailable {
			t.Errorf("%v", err)
		}
	})
	t.Run("nobody, then somebody", func(t *testing.T) {
		r := newRig(t)
		c := r.client(keyring.Gateway("gw1"), 50*time.Millisecond)
		done := make(chan error, 1)
		go func() { _, err := c.Admit(t.Context(), id(), admit()); done <- err }()
		r.serve(everyone, func(m *nats.Msg) { answer(t, m) })
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		_, err := r.client(keyring.Gateway("gw1"), 50*time.Millisecond).Admit(ctx, id(), admit())
		var e *events.Error
		if !errors.As(err, &e) || e.Code != events.CodeUnavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// What is slow for all is not asked twice for everything: hedges are paid for by
// answers that came in time.
func TestHedgeBudget(t *testing.T) {
	h, err := newHedges()
	if err != nil {
		t.Fatal(err)
	}
	for i := range hedgeBurst {
		d, hedge := h.patience(time.Second)
		if !hedge || d < 100*time.Millisecond || d > 200*time.Millisecond {
			t.Fatalf("hedge %d after %v: %v", i, d, hedge)
		}
		h.count(t.Context(), events.CmdAdmit)
	}
	if d, hedge := h.patience(time.Second); hedge || d != time.Second {
		t.Errorf("a hedge without a budget after %v", d)
	}
	h.answered()
	if _, hedge := h.patience(time.Second); !hedge {
		t.Error("no hedge after an answer in time")
	}
	for range 2 * hedgeBurst * hedgeCost {
		h.answered()
	}
	if got := h.budget.Load(); got != hedgeBurst*hedgeCost {
		t.Errorf("the budget grows to %d", got)
	}
	if _, hedge := h.patience(50 * time.Millisecond); hedge {
		t.Error("a hedge later than the timeout")
	}
}

// A budget that was spent comes back with the answers of commands that could not
// be hedged.
func TestHedgeBudgetComesBack(t *testing.T) {
	r := newRig(t)
	r.serve(preferred, func(m *nats.Msg) { answer(t, m) })
	c := r.client(keyring.Gateway("gw1"), time.Minute)
	c.hedges.budget.Store(-hedgeCost)
	for ctx := t.Context(); c.hedges.budget.Load() <= 0; { // a slow answer pays nothing
		if _, err := c.Admit(ctx, id(), admit()); err != nil {
			t.Fatal(err)
		}
	}
	if _, hedge := c.hedges.patience(time.Minute); !hedge {
		t.Error("no hedge after answers in time")
	}
}

// Refusals that are not recorded come back as errors; those that pass are tried
// again, but an admission is told of backpressure.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		code  events.Code
		user  keyring.User
		d     events.CommandData
		again bool
	}{
		{events.CodeMalformed, keyring.Gateway("gw1"), admit(), false},
		{events.CodeForbidden, keyring.Gateway("gw1"), admit(), false},
		{events.CodeBackpressure, keyring.Gateway("gw1"), admit(), false},
		{events.CodeUnavailable, keyring.Gateway("gw1"), admit(), true},
		{events.CodeBackpressure, keyring.Gateway("gw1"), &events.Cancel{Reason: events.CodeClientGone}, true},
	} {
		r := newRig(t)
		var n atomic.Int64
		r.serve(preferred, func(m *nats.Msg) {
			if n.Add(1) < 3 {
				refuse(m, c.code)
			} else {
				answer(t, m)
			}
		})
		_, err := r.client(c.user, time.Second).send(t.Context(), id(), c.d)
		var e *events.Error
		switch {
		case c.again && (err != nil || n.Load() != 3):
			t.Errorf("%s of %s: %v after %d tries", c.code, c.d.CommandType(), err, n.Load())
		case !c.again && (!errors.As(err, &e) || e.Code != c.code || n.Load() != 1):
			t.Errorf("%s of %s: %v after %d tries", c.code, c.d.CommandType(), err, n.Load())
		}
	}
}

// What the user's permissions forbid ends in a clear error and not in a timeout
// that says nothing.
func TestForbiddenByServer(t *testing.T) {
	r := newRig(t)
	r.serve("pdgate.v1.>", func(m *nats.Msg) { answer(t, m) })
	nc := r.connect(keyring.Worker(events.RoleDecode, "d1"))
	c, err := New(t.Context(), Config{Conn: nc, Role: events.RoleGateway, Principal: "gw1", Partitions: 8, Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Admit(t.Context(), id(), admit())
	var e *events.Error
	if !errors.As(err, &e) || e.Code != events.CodeForbidden || !strings.Contains(e.Message, "pdgate.v1.gateway.gw1.admit") {
		t.Errorf("%v", err)
	}
}

// A denial is an answer, whatever its headers say.
func TestDenialIsAnswer(t *testing.T) {
	r := newRig(t)
	request := id()
	r.serve(preferred, func(m *nats.Msg) {
		b, err := events.AppendAnswer(nil, &events.Answer{Subject: request, State: events.Rejected, Type: events.TypeDenied, ID: request + ".2", Position: "4.1", Hash: "h",
			Denied: &events.Denial{Code: events.CodeIllegalState, Message: "no", State: events.Rejected}})
		if err != nil {
			t.Error(err)
		}
		_ = m.RespondMsg(&nats.Msg{Data: b, Header: nats.Header{micro.ErrorHeader: {"illegal_state"}, micro.ErrorCodeHeader: {"409"}}})
	})
	a, err := r.client(keyring.Gateway("gw1"), time.Second).Cancel(t.Context(), request, &events.Cancel{Reason: events.CodeClientGone})
	if err != nil || a.Denied == nil || a.Err() == nil || a.State != events.Rejected {
		t.Errorf("%+v %v", a, err)
	}
}

func TestNewAsksForPartitions(t *testing.T) {
	r := newRig(t)
	r.serve("pdgate.v1.*.*.query.info", func(m *nats.Msg) { _ = m.Respond([]byte(`{"partitions":5}`)) })
	c, err := New(t.Context(), Config{Conn: r.connect(keyring.Operator), Role: events.RoleOperator, Principal: "operator"})
	if err != nil || c.Partitions() != 5 {
		t.Errorf("%v", err)
	}
	for _, cfg := range []Config{
		{}, {Conn: r.bus}, {Conn: r.bus, Role: "boss", Principal: "x"}, {Conn: r.bus, Role: events.RoleOperator, Principal: "a.b"},
		{Conn: r.bus, Role: events.RoleOperator, Principal: "x", Partitions: -1}, {Conn: r.bus, Role: events.RoleOperator, Principal: "x", Partitions: 1, Timeout: -1},
	} {
		if _, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// Prompts of several chunks arrive whole; one that is not what was admitted, or
// whose gateway is gone, is unavailable.
func TestFetchPrompt(t *testing.T) {
	r := newRig(t)
	c := r.client(keyring.Worker(events.RolePrefill, "p1"), 200*time.Millisecond)
	key := bytes.Repeat([]byte{7}, 32)
	prompt := bytes.Repeat([]byte("All work and no play. "), 100_000) // 2.2 MB
	w := &events.Work{RequestID: id(), Gateway: "gw1", DigestKey: hex.EncodeToString(key), PromptDigest: events.Digest(key, events.KindPrompt, prompt)}
	gw := r.connect(keyring.Gateway("gw1"))
	held := prompt
	asked := 0
	sub, err := gw.Subscribe("pdgate.prompt.gw1.>", func(m *nats.Msg) {
		q, err := events.DecodePromptRequest(m.Data)
		if err != nil {
			t.Error(err)
			return
		}
		asked++
		if asked%4 == 2 {
			return // lost
		}
		part := held
		if q.Part == PartSampling {
			part = []byte(`{"stop":[]}`)
		}
		b := part[q.Offset:min(len(part), int(q.Offset)+events.MaxPromptChunk)]
		_ = m.Respond(events.AppendPromptChunk(nil, events.PromptChunk{Total: int64(len(part)), Offset: q.Offset, Bytes: b}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := gw.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := c.FetchPrompt(t.Context(), w, PartPrompt)
	if err != nil || !bytes.Equal(got, prompt) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(prompt), err)
	}
	if got, err := c.FetchPrompt(t.Context(), w, PartSampling); err != nil || string(got) != `{"stop":[]}` {
		t.Errorf("sampling: %q %v", got, err)
	}
	held = append(bytes.Clone(prompt[:len(prompt)-1]), '!')
	var e *events.Error
	if _, err := c.FetchPrompt(t.Context(), w, PartPrompt); !errors.As(err, &e) || e.Code != events.CodePromptUnavailable {
		t.Errorf("another prompt: %v", err)
	}
	held = nil
	w.PromptDigest = events.Digest(key, events.KindPrompt, nil)
	if got, err := c.FetchPrompt(t.Context(), w, PartPrompt); err != nil || len(got) != 0 {
		t.Errorf("empty prompt: %q %v", got, err)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := gw.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.FetchPrompt(t.Context(), w, PartPrompt); !errors.As(err, &e) || e.Code != events.CodePromptUnavailable {
		t.Errorf("no gateway: %v", err)
	}
}

// queue makes the work stream and a consumer, as the service does.
func (r *rig) queue(role events.Role) jetstream.JetStream {
	r.t.Helper()
	js, err := jetstream.NewWithDomain(r.bus, events.WorkDomain)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: events.WorkStream, Subjects: []string{events.WorkAll}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.MemoryStorage})
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = s.CreateOrUpdateConsumer(r.t.Context(), jetstream.ConsumerConfig{Durable: events.WorkConsumer("m", role), FilterSubject: events.WorkSubject("m", role), AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	return js
}

func work(request string) []byte {
	b, err := events.AppendWork(nil, &events.Work{RequestID: request, Event: request + ".1", Role: events.RolePrefill, Model: "m", Tenant: "t", Gateway: "gw1", PromptTokens: 1, MaxTokens: 1,
		PromptDigest: events.Digest([]byte("k"), events.KindPrompt, nil), DigestKey: strings.Repeat("ab", 32), Deadline: time.Unix(1_700_000_000, 0).UTC()})
	if err != nil {
		panic(err)
	}
	return b
}

// A queue waits for its consumer to be made, hands out one item at a time in
// order, drops what is no work, and gives back what nobody took.
func TestQueue(t *testing.T) {
	r := newRig(t)
	c := r.client(keyring.Worker(events.RolePrefill, "p1"), time.Second)
	q, err := c.Queue(t.Context(), "m", events.RolePrefill)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		it  *Item
		err error
	}
	first := make(chan result, 1)
	go func() { it, err := q.Next(t.Context()); first <- result{it, err} }()
	js := r.queue(events.RolePrefill)
	ids := []string{id(), id(), id()}
	publish := func(b []byte) {
		t.Helper()
		if _, err := js.Publish(t.Context(), events.WorkSubject("m", events.RolePrefill), b); err != nil {
			t.Fatal(err)
		}
	}
	publish([]byte(`{"a":"wish"}`))
	for _, i := range ids {
		publish(work(i))
	}
	got := <-first
	if got.err != nil || got.it.Work.RequestID != ids[0] || got.it.Deliveries != 1 {
		t.Fatalf("%+v", got)
	}
	if err := got.it.Ack(); err != nil {
		t.Fatal(err)
	}
	it, err := q.Next(t.Context())
	if err != nil || it.Work.RequestID != ids[1] {
		t.Fatalf("%+v %v", it, err)
	}
	if err := it.Nak(0); err != nil {
		t.Fatal(err)
	}
	// A caller that gives up leaves its item to the next one.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if it, err := q.Next(ctx); it == nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	} else if it != nil {
		_ = it.Nak(0)
	}
	seen := map[string]int{}
	for len(seen) < 2 {
		it, err := q.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[it.Work.RequestID]++
		if err := it.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if seen[ids[1]] != 1 || seen[ids[2]] != 1 {
		t.Errorf("seen %v", seen)
	}

	// An item that arrives for nobody is given back at Close, not kept for half a
	// minute.
	ctx, cancel = context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { _, err := q.Next(ctx); waiting <- err }()
	pulls := func() bool {
		cons, err := js.Consumer(t.Context(), events.WorkStream, events.WorkConsumer("m", events.RolePrefill))
		return err == nil && cons.CachedInfo().NumWaiting == 1
	}
	poll(t, pulls)
	cancel()
	<-waiting
	left := id()
	publish(work(left))
	poll(t, func() bool { return len(q.msgs) == 1 })
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := c.Queue(t.Context(), "m", events.RolePrefill)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if it, err := other.Next(ctx); err != nil || it.Work.RequestID != left || it.Deliveries != 2 {
		t.Errorf("given back: %+v %v", it, err)
	}
	if _, err := c.Queue(t.Context(), "m", events.RoleGateway); err == nil {
		t.Error("a gateway has a queue")
	}
}

// What is in the queue without being work is dropped for good and named in the
// log, without anything of what it says.
func TestQueueDropsWhatIsNoWork(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	nc := r.connect(keyring.Worker(events.RolePrefill, "p1"))
	c, err := New(t.Context(), Config{Conn: nc, Role: events.RolePrefill, Principal: "p1", Partitions: 8, Timeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	js := r.queue(events.RolePrefill)
	held := func() (messages uint64, pending int) {
		s, err := js.Stream(t.Context(), events.WorkStream)
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Consumer(t.Context(), events.WorkConsumer("m", events.RolePrefill))
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs, c.CachedInfo().NumAckPending
	}
	subject := events.WorkSubject("m", events.RolePrefill)
	// A pull's word that there is nothing, as it is stored.
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: nats.Header{"Status": {"404"}, "Description": {"No Messages"}}}); err != nil {
		t.Fatal(err)
	}
	w := id()
	foreign := []string{`{"whisper":"a secret"}`, `"whisper"`, "whisper", strings.Replace(string(work(w)), `"tenant":"t"`, `"tenant":"whisper whisper"`, 1),
		strings.Replace(string(work(w)), `{`, `{"whisper":1,`, 1), string(work(w)) + "whisper"}
	for _, b := range append(foreign, string(work(w))) {
		if _, err := js.Publish(t.Context(), subject, []byte(b)); err != nil {
			t.Fatal(err)
		}
	}
	q, err := c.Queue(t.Context(), "m", events.RolePrefill)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	it, err := q.Next(ctx)
	if err != nil || it.Work.RequestID != w {
		t.Fatalf("%+v %v", it, err)
	}
	if err := it.Ack(); err != nil {
		t.Fatal(err)
	}
	poll(t, func() bool { n, pending := held(); return n == 0 && pending == 0 })
	if n := strings.Count(log.String(), "work item is not understood"); n != 1+len(foreign) || strings.Contains(log.String(), "whisper") || strings.Contains(log.String(), "secret") {
		t.Errorf("%d of %d dropped items in the log:\n%s", n, 1+len(foreign), log.String())
	}
}

func poll(t *testing.T, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !f(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}
