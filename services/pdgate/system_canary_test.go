package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/canary"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// believing is the incident's decode: it takes the prompt's length for what
// arrived, whatever prefill computed.
type believing struct {
	engine.Engine
	lengths *sync.Map // of the prompts, by request id
}

func believe() func(string, engine.Engine) engine.Engine {
	lengths := new(sync.Map)
	return func(_ string, e engine.Engine) engine.Engine { return believing{e, lengths} }
}

func (b believing) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	b.lengths.Store(job.RequestID, len(job.Prompt))
	return b.Engine.Prefill(ctx, job)
}

func (b believing) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	if n, ok := b.lengths.Load(job.RequestID); ok {
		job.PromptTokens = n.(int)
	}
	return b.Engine.Decode(ctx, job, emit)
}

// canaryStack is the incident's engine at small sizes, without some guards.
func canaryStack(without ...guard) *system {
	s := newSystem(2)
	s.engine = engine.Config{Name: "faulty", Model: "m", ContextTokens: trialWindow, MaxInputTokens: trialLimit, Threads: 1}
	s.prefillPool, s.decodePool, s.concurrency = trialWindow, trialWindow, 8
	for _, g := range without {
		g.remove(&s.guards)
	}
	return s
}

// probe runs the canary once, as the canary's user, and returns what it reports.
func (s *system) canaryRuns(ctx context.Context, change func(*canary.Config)) (*canary.Report, error) {
	nc, err := s.dial(ctx, keyring.Canary)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	cl, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleCanary, Principal: keyring.Canary.Principal()})
	if err != nil {
		return nil, err
	}
	cfg := canary.Config{
		Gateway: s.http, Cluster: cl, Timeout: patience, Logger: s.log,
		Tenants: []canary.Tenant{{Name: "t1", Key: s.keys["t1"]}, {Name: "t2", Key: s.keys["t2"]}},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := canary.New(cfg)
	if err != nil {
		return nil, err
	}
	return c.Run(ctx, "m")
}

// ops lists the events of operations.
func (r *record) ops(t *testing.T) (all []*events.Event) {
	t.Helper()
	for _, env := range r.envelopes {
		if env.Partition != events.OpsPartition {
			continue
		}
		err := events.Split(env.Lines, func(_ int, b []byte) error {
			e, err := events.Decode(b)
			all = append(all, e)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func show(t *testing.T, r *canary.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestCanaryFindsTheIncident takes the guards away that stand between the public
// failure and a client. With each of them it stays clean, or says which probes had
// no verdict; without any it finds the foreign sentinel and stops the model, as
// itself and with the receipts, while the log holds no word of any answer.
func TestCanaryFindsTheIncident(t *testing.T) {
	all := []guard{guardAdmission, guardRefused, guardCount, guardScrub}
	var logs lockedBuffer
	s := canaryStack(all...)
	s.log = slog.New(slog.NewTextHandler(&logs, nil))
	s.hooks.engine = believe()
	var r *canary.Report
	log := s.run(t, func(ctx context.Context) (err error) {
		if r, err = s.canaryRuns(ctx, nil); err != nil {
			return err
		}
		_, err = s.expect(ctx, small("t1"), http.StatusServiceUnavailable, events.CodeModelQuarantined)
		return err
	})
	if r.Verdict != events.CanaryForeign || !r.Quarantined {
		t.Fatalf("not found:\n%s", show(t, r))
	}
	t.Log("\n" + show(t, r))
	var quarantined *events.ModelQuarantined
	var ran *events.CanaryRan
	for _, e := range log.ops(t) {
		switch d := e.Data.(type) {
		case *events.ModelQuarantined:
			quarantined = d
			if e.Principal != "canary.canary" {
				t.Errorf("quarantined by %s", e.Principal)
			}
		case *events.CanaryRan:
			ran = d
		}
	}
	if quarantined == nil || ran == nil || ran.Verdict != events.CanaryForeign || ran.Foreign == 0 || ran.Lengths == "" || quarantined.Running != events.RunningCancel {
		t.Fatalf("recorded: %+v, %+v", quarantined, ran)
	}
	items := strings.Fields(quarantined.Evidence)
	for _, item := range items {
		id, receipt, _ := strings.Cut(item, "@")
		if len(log.byRequest[id]) == 0 || !log.hashes[receipt] {
			t.Errorf("the evidence %s names nothing in the log", item)
		}
	}
	if len(items) == 0 {
		t.Error("no evidence")
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	sentinel := regexp.MustCompile("zq[a-z2-7]{20}") // "zq" alone may stand in a receipt
	for where, text := range map[string]string{"the report": string(b) + show(t, r), "a log": logs.String()} {
		if strings.Contains(text, "code word") || sentinel.MatchString(text) {
			t.Errorf("%s holds text", where)
		}
	}
	for _, env := range log.envelopes {
		if bytes.Contains(env.Lines, []byte("code word")) {
			t.Error("the event log holds text")
		}
	}
}

// TestCanaryStaysClean: with all guards it has nothing to say; with one of them
// taken away the others keep foreign text from coming out, and what reaches an
// engine is noticed.
func TestCanaryStaysClean(t *testing.T) {
	s := canaryStack()
	s.hooks.engine = believe()
	var r *canary.Report
	log := s.run(t, func(ctx context.Context) (err error) {
		r, err = s.canaryRuns(ctx, nil)
		return err
	})
	above, within := 0, 0
	for _, x := range r.Results {
		switch {
		case x.Tokens > trialLimit && x.Outcome == canary.Refused:
			above++
			if len(log.byRequest[x.RequestID]) != 1 {
				t.Errorf("a refused probe reached more than admission: %s", log.story(x.RequestID))
			}
		case x.Tokens <= trialLimit && x.Outcome == canary.Pass:
			within++
		default:
			t.Errorf("%+v", x)
		}
	}
	if r.Verdict != events.CanaryClean || above < 4 || within < 8 || r.Quarantined || r.Position == "" {
		t.Errorf("%s", show(t, r))
	}

	// What each further guard stops: the client gets an error, and yet an engine saw
	// the prompt.
	peeled := []guard{guardAdmission, guardRefused, guardCount}
	for i := range peeled {
		s = canaryStack(peeled[:i+1]...)
		s.hooks.engine = believe()
		s.run(t, func(ctx context.Context) (err error) {
			r, err = s.canaryRuns(ctx, nil)
			return err
		})
		if r.Verdict != events.CanaryWrong || !r.Quarantined || !slices.ContainsFunc(r.Results, func(x canary.Result) bool {
			return x.Outcome == canary.Wrong && x.Status >= 400 && strings.Contains(x.Detail, "the request was admitted")
		}) {
			t.Errorf("without %s:\n%s", guardList(peeled[:i+1]), show(t, r))
		}
	}
}

// lying is an engine whose decode leg answers with something else, now and then.
type lying struct {
	engine.Engine
	lies func() bool
}

func (l lying) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	return l.Engine.Decode(ctx, job, func(text []byte, tokens int) error {
		if l.lies() {
			text = bytes.Repeat([]byte("?"), len(text))
		}
		return emit(text, tokens)
	})
}

// TestCanaryWrongTwice: one wrong answer is reported, two in a row stop the model.
func TestCanaryWrongTwice(t *testing.T) {
	for _, always := range []bool{false, true} {
		t.Run(fmt.Sprintf("always %v", always), func(t *testing.T) {
			s := newSystem(2)
			var mu sync.Mutex
			first := ""
			s.hooks.engine = func(worker string, e engine.Engine) engine.Engine {
				return lying{e, func() bool {
					mu.Lock()
					defer mu.Unlock()
					return always || first == "" || first == "lying"
				}}
			}
			// The first request of all is answered wrongly, whole.
			s.bend(func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
				a, err := next(ctx, c)
				if c.Type == events.CmdDecoded {
					mu.Lock()
					first = "done"
					mu.Unlock()
				}
				return a, err
			})
			var r *canary.Report
			log := s.run(t, func(ctx context.Context) (err error) {
				r, err = s.canaryRuns(ctx, func(c *canary.Config) { c.Fills = 1 })
				return err
			})
			wrong := 0
			for _, x := range r.Results {
				if x.Outcome == canary.Wrong {
					wrong++
				}
			}
			want := 1
			if always {
				want = 2
			}
			if wrong != want || r.Verdict != events.CanaryWrong || r.Quarantined != always {
				t.Errorf("%s", show(t, r))
			}
			stopped := slices.ContainsFunc(log.ops(t), func(e *events.Event) bool { return e.Type == events.TypeModelQuarantined })
			if stopped != always {
				t.Errorf("quarantined: %v", stopped)
			}
		})
	}
}

// TestCanarySchedule: with two replicas one of them runs it, as long as a replica
// is there; what it finds it records.
func TestCanarySchedule(t *testing.T) {
	s := newSystem(2)
	s.lifecycles = 2
	s.canary = canaryPart{every: 300 * time.Millisecond, tenants: func() ([]canary.Tenant, error) {
		return []canary.Tenant{{Name: "t1", Key: s.keys["t1"]}, {Name: "t2", Key: s.keys["t2"]}}, nil
	}}
	log := s.run(t, func(ctx context.Context) error {
		op, done, err := operator(ctx, s.endpoints)
		if err != nil {
			return err
		}
		defer done()
		// Each run rejects and decodes many: several have come and gone then.
		return poll(ctx, "the canary has run", func() bool {
			v, err := op.List(ctx, events.ListQuery{State: events.Rejected, Limit: events.MaxListLimit})
			return err == nil && len(v.Requests) > 30
		})
	})
	runs, by := 0, map[string]int{}
	for _, e := range log.ops(t) {
		if d, ok := e.Data.(*events.CanaryRan); ok {
			runs++
			by[e.Principal]++
			if d.Wrong+d.Foreign > 0 || d.Passed == 0 && d.Verdict == events.CanaryClean {
				t.Errorf("%+v", d)
			}
		}
	}
	if runs < 2 || by["canary.canary"] != runs {
		t.Errorf("%d runs by %v", runs, by)
	}
}

// TestCanaryWithoutVerdict: nothing is made up where nothing can be asked.
func TestCanaryWithoutVerdict(t *testing.T) {
	s := newSystem(2)
	s.run(t, func(ctx context.Context) error {
		_, err := s.canaryRuns(ctx, func(c *canary.Config) { c.Tenants[1].Key = "no-such-key" })
		var refused *canary.RefusedError
		if !errors.As(err, &refused) || refused.Tenant != "t2" || strings.Contains(err.Error(), "no-such-key") {
			t.Errorf("a wrong key: %v", err)
		}
		r, err := s.canaryRuns(ctx, func(c *canary.Config) { c.Gateway = "http://127.0.0.1:9" })
		if err != nil || r.Verdict != events.CanaryInconclusive || r.Quarantined {
			t.Errorf("no gateway: %v %+v", err, r)
		}
		op, done, err := operator(ctx, s.endpoints)
		if err != nil {
			return err
		}
		defer done()
		if _, err := op.Quarantine(ctx, "m", &events.Quarantine{Reason: "by hand"}); err != nil {
			return err
		}
		if err := poll(ctx, "the quarantine is known", func() bool {
			v, err := op.Info(ctx)
			return err == nil && v.Models[0].Quarantined
		}); err != nil {
			return err
		}
		if _, err := s.canaryRuns(ctx, nil); !errors.Is(err, canary.ErrNoVerdict) {
			t.Errorf("a quarantined model: %v", err)
		}
		_, err = op.Restore(ctx, "m", &events.Restore{Reason: "for the others"})
		return err
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
