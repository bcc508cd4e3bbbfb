package lifecycle

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
)

func TestMain(m *testing.M) {
	// The server's access-time service must be born outside of synctest bubbles.
	ats.Register()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// One replica takes a request through its whole life, and everything about it
// can be asked for.
func TestLifecycle(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	id := newID(t)
	i.lifecycle(id)
	v, err := i.gw.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if v.State != events.Decoded || len(v.Held) != 0 || v.Events != 7 {
		t.Errorf("request is %+v", v)
	}
	rep := r.check()
	if rep.Open != 0 || rep.Requests != 1 {
		t.Errorf("report: %+v", rep)
	}
}

// Admissions that are decided at the same moment see each other: a tenant's
// limit holds to the request, in one partition and over all of them.
func TestTenantLimitIsExact(t *testing.T) {
	const limit, asked = 7, 60
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	for round := range 3 {
		var wg sync.WaitGroup
		var in, out atomic.Int64
		var mu sync.Mutex
		var ids []string
		for range asked {
			id := newID(t)
			wg.Go(func() {
				a := admit()
				a.TenantLimit = limit
				got := i.gw.do(id, a)
				switch {
				case got.Type == events.TypeAdmitted:
					in.Add(1)
					mu.Lock()
					ids = append(ids, id)
					mu.Unlock()
				case got.Error != nil && got.Error.Code == events.CodeTenantConcurrency:
					out.Add(1)
				default:
					t.Errorf("%+v", got)
				}
			})
		}
		wg.Wait()
		if in.Load() != limit || out.Load() != asked-limit {
			t.Errorf("round %d: %d admitted and %d rejected, the limit is %d", round, in.Load(), out.Load(), limit)
		}
		for _, id := range ids {
			i.gw.did(id, &events.Cancel{Reason: events.CodeClientGone})
		}
		if open, waiting := x.counts.of(testTenant, testModel); open != 0 || waiting != 0 {
			t.Errorf("round %d: %d open and %d waiting are left", round, open, waiting)
		}
	}
	r.check()
}

// A queue that is full rejects, and tells how full it is.
func TestQueueLimit(t *testing.T) {
	r := newRig(t)
	r.start("lc1", func(c *Config) { c.QueueLimit = 3 })
	i := r.populate()
	for range 3 {
		i.admitted(newID(t))
	}
	a := i.gw.did(newID(t), admit())
	if a.Type != events.TypeRejected || a.Error.Code != events.CodeOverloaded || !strings.Contains(a.Error.Message, "3") {
		t.Errorf("%+v", a)
	}
	r.check()
}

// The request's trace goes from the gateway's context into every event.
func TestTraceparent(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5}, TraceFlags: trace.FlagsSampled,
	}))
	id := newID(t)
	if _, err := i.gw.Admit(ctx, id, admit()); err != nil {
		t.Fatal(err)
	}
	i.p1.did(id, i.p1.prefill())
	for _, e := range i.gw.history(id) {
		if e.Traceparent != "00-01020300000000000000000000000000-0405000000000000-01" {
			t.Errorf("%s has traceparent %q", e.Type, e.Traceparent)
		}
	}
	r.check()
}

// Nothing is served before the log is read, a replica that stands alone is ready
// within its quiet time, and a stopped one is stopped within two seconds.
func TestStartAndStop(t *testing.T) {
	r := newRig(t)
	x := r.prepare("lc1", func(c *Config) { c.BootQuiet = 0 })
	t0 := time.Now()
	x.run()
	select {
	case <-x.Ready():
	case <-time.After(5 * time.Second):
		t.Fatal("not ready")
	}
	if d := time.Since(t0); d < bootQuiet || d > time.Second {
		t.Errorf("ready after %s", d)
	}
	t0 = time.Now()
	if err := x.stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(t0); d > stopTime {
		t.Errorf("stopped after %s", d)
	}
	// Stopped before it is ready, and while the log is away.
	y := r.prepare("lc2", nil)
	r.stopBroker()
	y.run()
	if err := y.stop(); err != nil {
		t.Error(err)
	}
	r.startBroker()
}

func TestConfig(t *testing.T) {
	r := newRig(t)
	good := r.prepare("lc1", nil).cfg
	for name, change := range map[string]func(*Config){
		"name":       func(c *Config) { c.Name = "a.b" },
		"journal":    func(c *Config) { c.Journal = nil },
		"bus":        func(c *Config) { c.Bus = nil },
		"partitions": func(c *Config) { c.Partitions = 0 },
		"grant key":  func(c *Config) { c.GrantKey = nil },
		"secret":     func(c *Config) { c.DigestSecret = []byte("short") },
		"log key":    func(c *Config) { c.LogKey = nil },
		"queue":      func(c *Config) { c.QueueLimit = -1 },
		"fresh":      func(c *Config) { c.Timeouts.Fresh = retain },
		"quiet":      func(c *Config) { c.BootQuiet = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), "lifecycle: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
