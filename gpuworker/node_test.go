package gpuworker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// node is a worker in a world, with what the world can do to it.
type node struct {
	*Worker
	w      *world
	name   string
	role   events.Role
	pool   *kvpool.Pool
	stop   context.CancelFunc
	ended  chan struct{}
	result error // of Run, once ended is closed

	breaks  bool        // its device fails: Run says so, and some pages are out of use
	severed atomic.Bool // nothing gets in or out: to the world, the process is gone
	beats   atomic.Int64
	fetch   func(part string) error // before a part is fetched
	sent    func(c events.OutputChunk) error
}

type setup func(*Config)

var epochs atomic.Uint64

func init() { epochs.Store(uint64(time.Now().UnixMicro())) }

// start runs a worker until the test ends.
func (w *world) start(role events.Role, name string, e engine.Engine, pages int, opts ...setup) *node {
	w.t.Helper()
	epoch := epochs.Add(1)
	n := &node{w: w, name: name, role: role, pool: newPool(w.t, e, pages, epoch), ended: make(chan struct{})}
	cfg := Config{
		Name: name, Role: role, Model: model, Engine: e, Pool: n.pool, Lifecycle: (*nodeLifecycle)(n), Queue: (*nodeQueue)(n),
		Prompts: (*nodeGateway)(n), Output: (*nodeGateway)(n), Identity: testKey(name),
		GrantKeys: func() []ed25519.PublicKey { return []ed25519.PublicKey{w.grantKey.Public().(ed25519.PublicKey)} },
		Clock:     w.now, Grace: 200 * time.Millisecond, Beat: 50 * time.Millisecond, Sweep: 100 * time.Millisecond,
		Timeout: 2 * time.Second,
	}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.Pool != n.pool {
		n.pool = cfg.Pool
	}
	var err error
	if n.Worker, err = New(cfg); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	w.mu.Lock()
	w.workers = append(w.workers, n)
	w.mu.Unlock()
	go func() {
		n.result = n.Run(ctx)
		close(n.ended)
	}()
	w.t.Cleanup(func() {
		n.halt()
		if n.breaks {
			if st := n.pool.Stats(); !errors.Is(n.result, kvpool.ErrDevice) || st.Free+st.Retired != st.Pages || st.Pinned != 0 {
				w.t.Errorf("%s: %v, %+v", name, n.result, st)
			}
			w.queues[role].tear()
			return
		}
		if n.result != nil && !errors.Is(n.result, ErrGone) && !n.severed.Load() {
			w.t.Errorf("%s: %v", name, n.result)
		}
		n.clean()
		w.queues[role].tear()
	})
	select {
	case <-n.Ready():
	case <-n.ended:
		w.t.Fatalf("%s does not start: %v", name, n.result)
	case <-time.After(10 * time.Second):
		w.t.Fatalf("%s does not start", name)
	}
	return n
}

// halt stops the worker and waits for it.
func (n *node) halt() {
	n.w.t.Helper()
	n.stop()
	select {
	case <-n.ended:
	case <-time.After(20 * time.Second):
		n.w.t.Fatalf("%s does not stop: %+v", n.name, n.Stats())
	}
}

// clean checks that the pool has all pages back, scrubbed.
func (n *node) clean() {
	n.w.t.Helper()
	st := n.pool.Stats()
	if st.Free != st.Pages || st.Pinned != 0 || st.Waiting != 0 || st.DoubleFrees != 0 {
		n.w.t.Errorf("%s: pages leaked: %+v", n.name, st)
	}
	if dirty, err := n.pool.Audit(); dirty != 0 || err != nil {
		n.w.t.Errorf("%s: %d words of free pages are not scrubbed, %v", n.name, dirty, err)
	}
}

// idle waits until the worker holds nothing.
func (n *node) idle() {
	n.w.t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for {
		n.mu.Lock()
		var j *job
		for _, j = range n.jobs {
			break
		}
		n.mu.Unlock()
		if j == nil {
			return
		}
		select {
		case <-j.done:
		case <-time.After(time.Until(limit)):
			n.w.t.Fatalf("%s holds on to %s: %+v", n.name, j.work.RequestID, n.Stats())
		}
	}
}

// errSevered is what a process that is gone sees of the world.
var errSevered = errors.New("severed")

type nodeLifecycle node

func (n *nodeLifecycle) Do(ctx context.Context, c *events.Command) (*events.Answer, error) {
	if n.severed.Load() {
		return nil, errSevered
	}
	type reply struct {
		a   *events.Answer
		err error
	}
	ch := make(chan reply, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		a, err := n.w.command(n.role, n.name, c)
		ch <- reply{a, err}
	})
	select {
	case r := <-ch:
		if n.severed.Load() {
			return nil, errSevered
		}
		return r.a, r.err
	case <-ctx.Done():
		wg.Wait() // hooks end with the test
		return nil, ctx.Err()
	}
}

func (n *nodeLifecycle) Get(_ context.Context, id string) (*events.RequestView, error) {
	if n.severed.Load() {
		return nil, errSevered
	}
	return n.w.get(id)
}

func (n *nodeLifecycle) Info(context.Context) (*events.InfoView, error) {
	if n.severed.Load() {
		return nil, errSevered
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	_, f := n.w.ops.Admission(model, func(string, uint64) bool { return true })
	return &events.InfoView{Models: []events.ModelView{{Model: model, MaxInputTokens: f.MaxInputTokens}}}, nil
}

func (n *nodeLifecycle) Heartbeat(b events.Heartbeat) error {
	n.beats.Add(1)
	if b.Epoch == 0 || b.Model != model {
		n.w.t.Errorf("heartbeat %+v", b)
	}
	return nil
}

type nodeQueue node

func (n *nodeQueue) Next(ctx context.Context) (Item, error) {
	q := n.w.queues[n.role]
	for {
		if !n.severed.Load() {
			if d := q.take(n.name); d != nil {
				return d, nil
			}
		}
		select {
		case <-q.more:
			if n.severed.Load() { // not for the dead
				q.signal()
				<-ctx.Done()
				return nil, ctx.Err()
			}
		case <-ctx.Done():
			q.signal() // somebody else may have use for it
			return nil, ctx.Err()
		}
	}
}

type nodeGateway node

func (n *nodeGateway) FetchPrompt(ctx context.Context, w *events.Work, part string) ([]byte, error) {
	if n.fetch != nil {
		if err := n.fetch(part); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	c := n.w.calls[w.RequestID]
	if c == nil {
		return nil, events.NewError(events.CodePromptUnavailable, "unknown")
	}
	if part == events.PartPrompt {
		if n.role != events.RolePrefill {
			n.w.t.Errorf("%s asks for the prompt", n.name)
		}
		return slices.Clone(c.prompt), nil
	}
	return events.AppendSampling(nil, &c.sampling)
}

func (n *nodeGateway) SendOutput(w *events.Work, c events.OutputChunk) error {
	if n.sent != nil {
		if err := n.sent(c); err != nil {
			return err
		}
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	call := n.w.calls[w.RequestID]
	if s := n.w.requests[w.RequestID].State; s != events.Transferred && !n.Worker.cfg.Guards.NoTransferred && !s.Final() {
		n.w.t.Errorf("output in state %s", s)
	}
	c.Text = slices.Clone(c.Text)
	call.chunks = append(call.chunks, c)
	return nil
}

// newEngine makes an engine of the suite.
func newEngine(t testing.TB, cfg engine.Config) engine.Engine {
	t.Helper()
	cfg.Model = model
	if cfg.ContextTokens == 0 {
		cfg.ContextTokens = 64 << 10
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// hooked is an engine with something in the way.
type hooked struct {
	engine.Engine
	prefill func(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error)
	decode  func(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error)
}

func (h *hooked) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	if h.prefill != nil {
		return h.prefill(ctx, job)
	}
	return h.Engine.Prefill(ctx, job)
}

func (h *hooked) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	if h.decode != nil {
		return h.decode(ctx, job, emit)
	}
	return h.Engine.Decode(ctx, job, emit)
}

// once calls f before (or after) the first command of a type is decided.
func (w *world) once(t events.CommandType, after bool, f func(id string)) {
	var one sync.Once
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = func(c *events.Command, a bool) {
		if c.Type == t && a == after {
			one.Do(func() { f(c.Subject) })
		}
	}
}
