package gpuworker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
)

// ErrGone means that the lifecycle ended this life of the worker: it was silent
// for too long, or a later life has registered. Its pages are void, and it must
// start again with a fresh pool, under another epoch.
var ErrGone = errors.New("the lifecycle has ended this life of the worker; it must start again")

// Worker is one life of one worker.
type Worker struct {
	cfg    Config
	log    *slog.Logger
	info   engine.Info
	epoch  uint64
	server *handoff.Server // prefill only
	puller *handoff.Puller // decode only

	turn  chan struct{} // held by the one loop that takes work or waits for pages
	probe chan struct{} // asks care to confirm the registration
	wake  chan struct{} // tells care that exits is not empty
	ready chan struct{} // closed when registered

	// mu guards the fields below and those of jobs.
	mu       sync.Mutex
	jobs     map[string]*job // by request id
	misfits  map[string]int  // work that the pool can never hold, and how often it came
	address  string
	stats    counters
	exits    []*job // whose release is to begin
	sweeping bool
	asking   bool // whether this life is the present one
}

// New makes a worker; Run starts it.
func New(cfg Config) (*Worker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, info: cfg.Engine.Info(), epoch: cfg.Pool.Epoch(),
		log:  cfg.Logger.With("worker_id", cfg.Name, "role", string(cfg.Role)),
		turn: make(chan struct{}, 1), probe: make(chan struct{}, 1), wake: make(chan struct{}, 1), ready: make(chan struct{}),
		jobs: make(map[string]*job), misfits: make(map[string]int),
	}
	var err error
	if cfg.Role == events.RolePrefill {
		w.server, err = handoff.NewServer(handoff.Config{
			Name: cfg.Name, Epoch: w.epoch, Layout: w.info.Layout, Pool: cfg.Pool, Identity: cfg.Identity,
			GrantKeys: cfg.GrantKeys, Timeout: cfg.Timeout, Clock: cfg.Clock, Logger: w.log, Guards: cfg.Guards.Handoff,
		})
	} else {
		w.puller, err = handoff.NewPuller(handoff.PullerConfig{
			Name: cfg.Name, Epoch: w.epoch, Layout: w.info.Layout, Pool: cfg.Pool, Identity: cfg.Identity,
			GrantKeys: cfg.GrantKeys, Timeout: cfg.Timeout, Clock: cfg.Clock, Guards: cfg.Guards.Handoff,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("gpuworker %s: %w", cfg.Name, err)
	}
	return w, nil
}

// Address is where peers reach the data plane; "" before Run has opened it.
func (w *Worker) Address() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.address
}

// Ready is closed once the worker is registered and takes work.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Run registers the worker and works until ctx ends. It then takes no more
// work, gives what runs the grace period, ends the rest, gives all pages back,
// leaves, and returns nil. Its connections must outlive it. It is called once.
func (w *Worker) Run(ctx context.Context) error {
	// What is begun is brought to its end by Run itself, not by whoever stops it.
	base := context.WithoutCancel(ctx)
	plane, stopPlane := context.WithCancel(base)
	defer stopPlane()
	served, err := w.open(plane)
	if err != nil {
		return err
	}
	if served != nil {
		defer func() { stopPlane(); <-served }()
	}
	if err := w.register(ctx); err != nil {
		var denial *events.Denial
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &denial) && denial.Code == events.CodeWorkerEpoch:
			return fmt.Errorf("%w: a worker of this name started later, by its clock: stop it, or set the clock of this machine", err)
		}
		return err
	}
	if w.cfg.Preflight != nil {
		if err := w.cfg.Preflight(ctx); err != nil {
			w.depart(base, err)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	w.log.Info("worker ready", "epoch", w.epoch, "pages", w.cfg.Pool.Stats().Pages)
	close(w.ready)

	taking, stopTaking := context.WithCancelCause(ctx)
	defer stopTaking(nil)
	jobs, stopJobs := context.WithCancelCause(base)
	defer stopJobs(nil)
	var loops, care sync.WaitGroup
	for range w.cfg.Concurrency {
		loops.Go(func() { w.loop(taking, jobs) })
	}
	caring, stopCare := context.WithCancel(base)
	defer stopCare()
	releasing, stopReleasing := context.WithCancel(base)
	defer stopReleasing()
	care.Go(func() { w.care(caring, releasing, stopTaking) })
	if e, ok := w.cfg.Engine.(engine.Watched); ok {
		care.Go(func() {
			if err := e.Watch(caring); err != nil {
				stopTaking(err)
			}
		})
	}

	select {
	case <-taking.Done():
		switch cause := context.Cause(taking); {
		case errors.Is(cause, errGone):
			err = ErrGone
		case errors.Is(cause, engine.ErrRestarted):
			err = cause
		}
	case err = <-served:
		err = fmt.Errorf("data plane: %w", err)
		stopTaking(errStopping)
	case <-w.cfg.Pool.Broken():
		// What the pool holds is not to be trusted: nothing more is offered, and work
		// that is not recorded goes to another worker.
		err = fmt.Errorf("gpuworker %s: %w", w.cfg.Name, w.cfg.Pool.Err())
		w.log.Error("the device failed", "error", err)
		stopTaking(errStopping)
	}
	w.stop(jobs, stopJobs, &loops, err)
	w.await(base, 2*w.cfg.Grace)
	stopReleasing() // the lifecycle does not answer: the pages go with this process
	w.await(base, 0)
	stopCare()
	care.Wait()
	w.depart(base, err)
	return err
}

// open brings up the data plane of a prefill worker. The channel gets the
// server's end, and is closed then; it is nil for a decode worker.
func (w *Worker) open(ctx context.Context) (chan error, error) {
	address := noAddress
	var served chan error
	if w.server != nil {
		l, err := handoff.Listen(w.cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("gpuworker %s: %w", w.cfg.Name, err)
		}
		address, served = l.Address(), make(chan error, 1)
		go func() { served <- w.server.Serve(ctx, l); close(served) }()
	}
	if w.cfg.Advertise != "" {
		address = w.cfg.Advertise
	}
	w.setAddress(address)
	return served, nil
}

func (w *Worker) setAddress(a string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address = a
}

// register announces this life, or confirms it: as long as it is the present
// one, the lifecycle gives the recorded answer.
func (w *Worker) register(ctx context.Context) error {
	a, err := w.cfg.Lifecycle.Do(ctx, &events.Command{Type: events.CmdRegister, Subject: w.cfg.Name, Data: &events.Register{
		Model: w.cfg.Model, Epoch: w.epoch, PublicKey: handoff.EncodeKey(w.cfg.Identity.Public().(ed25519.PublicKey)),
		Address: w.Address(), Engine: w.info.Name, Version: w.info.Version,
		ContextTokens: w.info.ContextTokens, MaxInputTokens: w.info.MaxInputTokens,
		PoolPages: w.cfg.Pool.Stats().Pages, PageTokens: w.info.PageTokens, TokenBytes: w.info.TokenBytes, Layout: w.info.Layout,
	}})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return fmt.Errorf("register worker %s: %w", w.cfg.Name, err)
	}
	return nil
}

// stop brings everything to its end: first gently, then not.
func (w *Worker) stop(ctx context.Context, cancel context.CancelCauseFunc, loops *sync.WaitGroup, why error) {
	if why == nil {
		w.await(ctx, w.cfg.Grace)
	}
	cause := errStopping
	switch {
	case errors.Is(why, ErrGone):
		cause = errGone
	case errors.Is(why, engine.ErrRestarted):
		cause = errLost
	}
	cancel(cause)
	loops.Wait()
	w.mu.Lock()
	var waiting []*job
	lost := errors.Is(why, engine.ErrRestarted)
	for _, j := range w.jobs {
		j.until = time.Time{} // the account ends with this life
		switch {
		case j.phase == kept && j.ended:
			w.leave(j, "shutdown")
		case j.phase == kept:
			if lost {
				w.withdraw(j)
			}
			waiting = append(waiting, j)
		}
	}
	w.mu.Unlock()
	var wg sync.WaitGroup
	for _, j := range waiting {
		wg.Go(func() {
			if why == nil || lost { // whoever waits for the KV hears of it now, not at the lease's end
				c, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*w.cfg.Grace)
				defer stop()
				w.fail(c, j, stageTransfer, events.NewError(events.CodeWorkerLost, "the prefill worker stops, or its engine restarted"))
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.leave(j, "shutdown")
		})
	}
	wg.Wait()
}

// await waits until no job is left, at most d; 0 is without limit.
func (w *Worker) await(ctx context.Context, d time.Duration) {
	if d > 0 {
		c, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		ctx = c
	}
	for {
		var next *job
		w.mu.Lock()
		for _, j := range w.jobs {
			next = j
			break
		}
		w.mu.Unlock()
		if next == nil {
			return
		}
		select {
		case <-next.done:
		case <-ctx.Done():
			return
		}
	}
}

// departTime bounds the last word of a worker that stops. Where nobody hears it,
// the lifecycle finds out by the silence.
const departTime = 3 * time.Second

// depart tells the lifecycle that this life is over, unless it said so itself.
func (w *Worker) depart(ctx context.Context, err error) {
	if errors.Is(err, ErrGone) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(2*w.cfg.Grace, departTime))
	defer cancel()
	_, derr := w.cfg.Lifecycle.Do(ctx, &events.Command{Type: events.CmdLeave, Subject: w.cfg.Name,
		Data: &events.Leave{Epoch: w.epoch, Reason: "shutdown"}})
	if derr != nil {
		w.log.Warn("leave", "error", derr)
	}
}

// loop takes one item after the other. Only one loop at a time takes work or
// waits for pages: what the pool cannot hold stays in the queue.
func (w *Worker) loop(taking, jobs context.Context) {
	for {
		select {
		case w.turn <- struct{}{}:
		case <-taking.Done():
			return
		}
		pass := sync.OnceFunc(func() { <-w.turn })
		item, err := w.cfg.Queue.Next(taking)
		switch {
		case err == nil:
			w.process(taking, jobs, item, pass)
		case taking.Err() == nil:
			w.log.Warn("take work", "error", err)
			pause(taking, time.Second)
		}
		pass()
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// process carries one delivery to its outcome. pass lets the next loop take
// work; it is called as soon as this one has its pages.
func (w *Worker) process(taking, jobs context.Context, item Item, pass func()) {
	ctx, cancel := context.WithCancelCause(jobs)
	defer cancel(nil)
	j := w.begin(item, cancel)
	if j == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(ctx, j.work.Deadline.Sub(w.cfg.Clock()), errDeadline)
	defer stop()
	var out outcome
	if w.cfg.Role == events.RolePrefill {
		out = w.prefill(ctx, taking, j, pass)
	} else {
		out = w.decode(ctx, taking, j, pass)
	}
	w.conclude(j, out)
}

// conclude acknowledges or gives back the delivery, and lets go of the pages
// unless they are kept for a pull.
func (w *Worker) conclude(j *job, out outcome) {
	w.mu.Lock()
	item := j.item
	j.item = nil
	if out.kind == again {
		w.stats.GivenBack++
	}
	if out.kind == keep && !j.ended {
		j.phase = kept
	} else {
		w.part(j, "done")
	}
	w.mu.Unlock()
	if out.why != nil && out.why != errElsewhere {
		w.log.Info("work ended early", "request_id", j.work.RequestID, "error", out.why)
	}
	if out.kind == again {
		w.settle(item.Nak(out.delay))
	} else {
		w.settle(item.Ack())
	}
}
