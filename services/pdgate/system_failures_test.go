package main

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// Public failures over the whole stack, with the HTTP client's view of each.
// docs/failures.md lists all of them, with the tests of the single parts.

// zombie speaks with the credentials of decode worker d1, whatever d1 does.
func (s *system) zombie(ctx context.Context, subject string, d events.CommandData) (*events.Answer, error) {
	nc, err := s.dial(ctx, keyring.Worker(events.RoleDecode, "d1"))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleDecode, Principal: "d1"})
	if err != nil {
		return nil, err
	}
	return s.note(ctx, "d1", &events.Command{Type: d.CommandType(), Subject: subject, Data: d}, c.Do)
}

// wantDenied is what a zombie must get.
func wantDenied(a *events.Answer, err error, code events.Code) error {
	if err != nil {
		return err
	}
	if a.Denied == nil || a.Denied.Code != code || a.Grant != nil {
		return errors.New("the answer is " + string(a.Type) + ", want a denial with " + string(code))
	}
	return nil
}

func (s *system) epoch(worker string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers[worker].pool.Epoch()
}

func (s *system) grantOf(r *order) *events.GrantTransfer {
	return &events.GrantTransfer{
		WorkerEpoch: s.epoch("d1"), GrantEpoch: 1, Pages: []events.PageRun{{Start: 0, Count: 64, Generation: 1 << 40}},
		ReservedTokens: len(r.prompt) + r.most, Layout: "ref.v1:64:8+16",
	}
}

// expect asks the first gateway and compares status and code.
func (s *system) expect(ctx context.Context, o order, status int, code events.Code) (reply, error) {
	r, err := s.send(ctx, s.http, o)
	if err == nil && (r.status != status || r.code != string(code)) {
		err = errors.New(r.problem() + ", want " + http.StatusText(status) + " " + string(code))
	}
	return r, err
}

func small(tenant string) order { return order{tenant: tenant, prompt: records(1, 300), most: 16} }

func TestF02_RejectedRequestAsksForATransfer(t *testing.T) {
	s := newSystem(1)
	var id string
	log := s.run(t, func(ctx context.Context) error {
		o := order{tenant: "t1", prompt: records(1, 4097), most: 8}
		r, err := s.expect(ctx, o, http.StatusBadRequest, events.CodeContextLength)
		if err != nil {
			return err
		}
		id = r.id
		a, err := s.zombie(ctx, id, s.grantOf(&o))
		return wantDenied(a, err, events.CodeIllegalState)
	})
	s.clean(t, log, 1)
	if !log.denied(id, events.CmdGrant, events.CodeIllegalState) {
		t.Errorf("the denial is not in the log: %s", log.story(id))
	}
}

func TestF04_CancelInMidTransfer(t *testing.T) {
	for _, stream := range []bool{false, true} {
		s := newSystem(1)
		s.bend(func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
			if c.Type == events.CmdTransferred {
				// The bytes are all here; the cancellation lands first.
				op, done, err := operator(context.WithoutCancel(ctx), s.endpoints)
				if err != nil {
					return nil, err
				}
				defer done()
				if _, err := op.Cancel(context.WithoutCancel(ctx), c.Subject, &events.Cancel{Reason: events.CodeCancelled}); err != nil {
					return nil, err
				}
				ctx = context.WithoutCancel(ctx) // the worker goes on as if it had not heard
			}
			return next(ctx, c)
		})
		var id string
		log := s.run(t, func(ctx context.Context) error {
			o := small("t1")
			o.stream = stream
			r, err := s.expect(ctx, o, 499, events.CodeCancelled)
			id = r.id
			return err
		})
		s.clean(t, log, 1)
		if !log.denied(id, events.CmdTransferred, events.CodeIllegalState) || len(log.has(id, events.TypeDecoded)) > 0 {
			t.Errorf("history: %s", log.story(id))
		}
	}
}

func TestF08_ChoicesHaveTransfersOfTheirOwn(t *testing.T) {
	s := newSystem(1)
	eng, err := engine.New(s.engine)
	if err != nil {
		t.Fatal(err)
	}
	log := s.run(t, func(ctx context.Context) error {
		o := small("t1")
		o.n = 4
		r, err := s.expect(ctx, o, http.StatusOK, "")
		if err == nil {
			err = o.right(ctx, eng, &r)
		}
		return err
	})
	s.clean(t, log, 4)
	seen := map[string]bool{}
	for _, id := range log.ids(&s.replies[0]) {
		if seen[id] || len(log.has(id, events.TypeTransferGranted)) != 1 || len(log.has(id, events.TypeTransferred)) != 1 {
			t.Errorf("want one grant and one transfer: %s", log.story(id))
		}
		seen[id] = true
	}
}

// failing is an engine whose legs can be replaced.
type failing struct {
	engine.Engine
	prefill func(context.Context, engine.PrefillJob) (engine.Prefilled, error)
	decode  func(context.Context, engine.DecodeJob, engine.Emit) (engine.Decoded, error)
}

// Prefill may be replaced.
func (f failing) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	if f.prefill != nil {
		return f.prefill(ctx, job)
	}
	return f.Engine.Prefill(ctx, job)
}

// Decode may be replaced.
func (f failing) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	if f.decode != nil {
		return f.decode(ctx, job, emit)
	}
	return f.Engine.Decode(ctx, job, emit)
}

func TestF09_PrefillFailureReachesTheClientAtOnce(t *testing.T) {
	s := newSystem(1)
	s.hooks.engine = func(_ string, e engine.Engine) engine.Engine {
		return failing{Engine: e, prefill: func(context.Context, engine.PrefillJob) (engine.Prefilled, error) {
			return engine.Prefilled{}, errors.New("out of memory")
		}}
	}
	var id string
	log := s.run(t, func(ctx context.Context) error {
		for _, stream := range []bool{false, true} {
			o := small("t1")
			o.stream = stream
			r, err := s.expect(ctx, o, http.StatusBadGateway, events.CodePrefillFailed)
			if err != nil {
				return err
			}
			id = r.id
		}
		return nil
	})
	s.clean(t, log, 2)
	for _, typ := range []events.Type{events.TypePrefilled, events.TypeTransferGranted} {
		if len(log.has(id, typ)) > 0 {
			t.Errorf("decode was asked: %s", log.story(id))
		}
	}
}

func TestF10_StuckTransferEndsByItsDeadline(t *testing.T) {
	s := newSystem(1)
	s.timeouts.Request = 2500 * time.Millisecond
	s.bend(func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
		if c.Type == events.CmdTransferred {
			<-ctx.Done() // until the news that the request has ended
			return nil, ctx.Err()
		}
		return next(ctx, c)
	})
	var id string
	log := s.run(t, func(ctx context.Context) error {
		r, err := s.expect(ctx, small("t1"), http.StatusGatewayTimeout, events.CodeDeadline)
		id = r.id
		return err
	})
	s.clean(t, log, 1)
	if len(log.has(id, events.TypeReleased)) != 2 || len(log.has(id, events.TypeTransferGranted)) != 1 {
		t.Errorf("want a grant, and both workers' pages back: %s", log.story(id))
	}
}

// TestF11_DecodeNeverOverCommits: sixteen requests that need a third of decode's
// pool each.
func TestF11_DecodeNeverOverCommits(t *testing.T) {
	s := newSystem(4)
	s.concurrency, s.decodePool = 16, 1024
	eng, err := engine.New(s.engine)
	if err != nil {
		t.Fatal(err)
	}
	var orders []order
	for i := range 16 {
		orders = append(orders, order{tenant: s.names[i%4], prompt: records(i, 290), most: 20, stream: i%2 == 0})
	}
	log := s.run(t, func(ctx context.Context) error { return s.together(ctx, 16, orders, s.right(eng)) })
	s.clean(t, log, 16)
	held, most := 0, 0
	for _, env := range log.envelopes {
		_ = events.Split(env.Lines, func(_ int, b []byte) error {
			e, err := events.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			switch d := e.Data.(type) {
			case *events.TransferGranted:
				held += events.Pages(d.Pages)
			case *events.RequestReleased:
				if d.Role == events.RoleDecode {
					held -= d.Pages
				}
			}
			most = max(most, held)
			return nil
		})
	}
	if pool := s.workers["d1"].pool.Stats().Pages; most == 0 || most > pool || held != 0 {
		t.Errorf("by the log decode held %d of %d pages at most, and %d in the end", most, pool, held)
	}
	if st := s.workers["d1"].worker.Stats(); st.Decoded != 16 || st.Failed != 0 {
		t.Errorf("decode: %+v", st)
	}
}

func TestF19_QuarantinedModelIsRefused(t *testing.T) {
	s := newSystem(1)
	log := s.run(t, func(ctx context.Context) error {
		op, done, err := operator(ctx, s.endpoints)
		if err != nil {
			return err
		}
		defer done()
		if a, err := op.Quarantine(ctx, "m", &events.Quarantine{Reason: "3 failed transfers of p1 and d1"}); err != nil || a.Denied != nil {
			return errors.Join(errors.New("not quarantined"), err)
		}
		if _, err := s.expect(ctx, small("t1"), http.StatusServiceUnavailable, events.CodeModelQuarantined); err != nil {
			return err
		}
		if a, err := op.Restore(ctx, "m", &events.Restore{Reason: "the cable is new"}); err != nil || a.Denied != nil {
			return errors.Join(errors.New("not restored"), err)
		}
		_, err = s.expect(ctx, small("t1"), http.StatusOK, "")
		return err
	})
	s.clean(t, log, 2)
}

func TestF20_OutputAfterAFailureIsDenied(t *testing.T) {
	s := newSystem(1)
	s.hooks.engine = func(_ string, e engine.Engine) engine.Engine {
		return failing{Engine: e, decode: func(context.Context, engine.DecodeJob, engine.Emit) (engine.Decoded, error) {
			return engine.Decoded{}, errors.New("load failed")
		}}
	}
	var id string
	log := s.run(t, func(ctx context.Context) error {
		o := small("t1")
		r, err := s.expect(ctx, o, http.StatusBadGateway, events.CodeDecodeFailed)
		if err != nil {
			return err
		}
		id = r.id
		// Another try of the engine's own comes to an output after all.
		a, err := s.zombie(ctx, id, &events.DecodeDone{
			WorkerEpoch: s.epoch("d1"), PromptTokens: len(o.prompt), CompletionTokens: 3, FinishReason: events.FinishStop,
			OutputDigest: events.Digest(events.RequestKey(s.secret, id), events.KindOutput, []byte("abc")),
		})
		return wantDenied(a, err, events.CodeIllegalState)
	})
	s.clean(t, log, 1)
	if len(log.has(id, events.TypeDecoded)) > 0 {
		t.Errorf("history: %s", log.story(id))
	}
}

func TestF21_ClientsMayNotNameAPeer(t *testing.T) {
	s := newSystem(1)
	log := s.run(t, func(ctx context.Context) error {
		for name, value := range map[string]any{
			"kv_transfer_params": map[string]any{"remote_host": "10.0.0.1", "remote_block_ids": []int{1}},
			"bootstrap_host":     "10.0.0.1", "bootstrap_room": 7, "Bootstrap_Room": 7,
			"metadata": map[string]any{"nested": map[string]any{"kv_transfer_params": nil}},
		} {
			o := small("t1")
			o.extra = map[string]any{name: value}
			if _, err := s.expect(ctx, o, http.StatusBadRequest, events.CodeForbiddenField); err != nil {
				return err
			}
		}
		_, err := s.expect(ctx, small("t1"), http.StatusOK, "")
		return err
	})
	s.clean(t, log, 1) // nothing of the refused ones is in the log
}

func TestF22_ClientIDIsALabel(t *testing.T) {
	s := newSystem(2)
	log := s.run(t, func(ctx context.Context) error {
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, tenant := range s.names {
			wg.Go(func() {
				o := order{tenant: tenant, prompt: records(i, 500), most: 40, header: http.Header{"X-Request-Id": {"the-same"}}}
				eng, err := engine.New(s.engine)
				if err == nil {
					var r reply
					if r, err = s.expect(ctx, o, http.StatusOK, ""); err == nil {
						err = o.right(ctx, eng, &r)
					}
				}
				errs[i] = err
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	s.clean(t, log, 2)
	if s.replies[0].id == s.replies[1].id || s.replies[0].id == "the-same" {
		t.Errorf("ids %q and %q", s.replies[0].id, s.replies[1].id)
	}
}

func TestF24_DecodeWithoutPrefill(t *testing.T) {
	s := newSystem(1)
	reached, asked := make(chan string, 1), make(chan struct{})
	s.hooks.engine = func(_ string, e engine.Engine) engine.Engine {
		return failing{Engine: e, prefill: func(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
			reached <- job.RequestID
			<-asked
			return e.Prefill(ctx, job)
		}}
	}
	var id string
	log := s.run(t, func(ctx context.Context) error {
		o := small("t1")
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { _, err = s.expect(ctx, o, http.StatusOK, "") })
		id = <-reached
		a, derr := s.zombie(ctx, id, s.grantOf(&o))
		derr = wantDenied(a, derr, events.CodeIllegalState)
		close(asked)
		wg.Wait()
		return errors.Join(derr, err)
	})
	s.clean(t, log, 1)
	if n := len(log.has(id, events.TypeTransferGranted)); n != 1 {
		t.Errorf("%d grants: %s", n, log.story(id))
	}
}

// goneClient sends an order whose client leaves when reached is closed.
func (s *system) goneClient(ctx context.Context, o order, reached <-chan struct{}) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		select {
		case <-reached:
			leave()
		case <-ctx.Done():
		}
	}()
	if _, err := s.send(ctx, s.http, o); !errors.Is(err, context.Canceled) {
		return errors.Join(errors.New("the client was answered"), err)
	}
	return nil
}

// ended waits until a request's history has an event of the type.
func (s *system) ended(ctx context.Context, id string) error {
	op, done, err := operator(ctx, s.endpoints)
	if err != nil {
		return err
	}
	defer done()
	return poll(ctx, "the request ends", func() bool {
		v, err := op.Get(ctx, id)
		return err == nil && v.State.Final() && len(v.Held) == 0
	})
}

func TestF26_ClientGoneWhilePrefillGoesOn(t *testing.T) {
	s := newSystem(1)
	reached, stopped := make(chan struct{}), make(chan error, 1)
	var id string
	s.hooks.engine = func(_ string, e engine.Engine) engine.Engine {
		return failing{Engine: e, prefill: func(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
			id = job.RequestID
			close(reached)
			<-ctx.Done()
			stopped <- ctx.Err()
			return engine.Prefilled{}, ctx.Err()
		}}
	}
	s.replies = []reply{} // nobody is answered
	log := s.run(t, func(ctx context.Context) error {
		if err := s.goneClient(ctx, small("t1"), reached); err != nil {
			return err
		}
		<-stopped
		return s.ended(ctx, id)
	})
	if r := s.check(log); !r.OK() || r.Open != 0 {
		t.Errorf("%d open, %v", r.Open, r.Violations)
	}
	if c := log.has(id, events.TypeCancelled); len(c) != 1 || c[0].Data.(*events.RequestCancelled).From != events.Admitted || len(log.has(id, events.TypePrefilled)) > 0 {
		t.Errorf("history: %s", log.story(id))
	}
}

func TestF27_ClientGoneDuringATransfer(t *testing.T) {
	s := newSystem(1)
	reached := make(chan struct{})
	var id string
	s.bend(func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
		if c.Type == events.CmdTransferred {
			id = c.Subject
			close(reached)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return next(ctx, c)
	})
	log := s.run(t, func(ctx context.Context) error {
		if err := s.goneClient(ctx, small("t1"), reached); err != nil {
			return err
		}
		return s.ended(ctx, id)
	})
	if r := s.check(log); !r.OK() || r.Open != 0 {
		t.Errorf("%d open, %v", r.Open, r.Violations)
	}
	if len(log.has(id, events.TypeReleased)) != 2 || len(log.has(id, events.TypeCancelled)) != 1 {
		t.Errorf("want both workers' pages back: %s", log.story(id))
	}
}

func TestF28_NATSWithoutJetStream(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	ring, err := keyring.Open(dir, keyring.Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	options := &server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true}
	for _, u := range []keyring.User{keyring.LifecycleLog, keyring.LifecycleBus} {
		key, err := ring.PublicKey(u)
		if err != nil {
			t.Fatal(err)
		}
		options.Nkeys = append(options.Nkeys, &server.NkeyUser{Nkey: key})
	}
	plain, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	go plain.Start()
	defer plain.WaitForShutdown()
	defer plain.Shutdown()
	if !plain.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	var out, errOut strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code := run(ctx, []string{"lifecycle", "--data", t.TempDir(), "--keys", dir, "--nats-url", plain.ClientURL()}, strings.NewReader(""), &out, &errOut, nil)
	message := strings.TrimSpace(errOut.String())
	if code != exitFailure || strings.Count(message, "\n") != 0 || !strings.Contains(message, "JetStream") || ctx.Err() != nil {
		t.Errorf("exit code %d: %s", code, message)
	}
	t.Log(message)
}

// TestF29_SubjectsDoNotGrowWithRequests: a server holds every subject of a stream
// in memory.
func TestF29_SubjectsDoNotGrowWithRequests(t *testing.T) {
	s := newSystem(4)
	s.concurrency = 16
	eng, err := engine.New(s.engine)
	if err != nil {
		t.Fatal(err)
	}
	requests := 100
	if underRace {
		requests = 30
	}
	var orders []order
	for i := range requests {
		orders = append(orders, order{tenant: s.names[i%4], prompt: records(i, 50), most: 4})
	}
	subjects := 0
	log := s.run(t, func(ctx context.Context) error {
		if err := s.together(ctx, 32, orders, s.right(eng)); err != nil {
			return err
		}
		nc, err := s.dial(ctx, keyring.Admin)
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		stream, err := js.Stream(ctx, events.LogStream)
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
		if err != nil {
			return err
		}
		subjects = len(info.State.Subjects)
		return nil
	})
	s.clean(t, log, requests)
	if subjects < 2 || subjects > log.partitions+1 {
		t.Errorf("the log has %d subjects after %d requests, with %d partitions", subjects, requests, log.partitions)
	}
}
