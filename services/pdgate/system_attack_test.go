package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/statemachine"
)

// Sizes of the incident: four victims fill decode's pool, the intruder's prompt
// and answer take all of it again.
const (
	trialLimit  = 512
	trialWindow = 2048
	trialMost   = 120
)

// trial is one attack with some guards taken away, and what came of it.
type trial struct {
	*system
	attack    attack
	scene     scene
	intruder  order
	log       *record
	report    statemachine.Report
	reply     reply
	id        string      // of the intruder's request
	leak      string      // text of a victim's in the reply
	dirty     int         // words of free pages that are not scrubbed
	pull      events.Code // why the owner refused
	pullError string
	unsigned  bool // the worker was answered without a signed grant

	granted sync.WaitGroup // victims that have no grant yet

	mu      sync.Mutex
	stolen  [][]uint64 // the first victim's KV
	mine    [][]uint64 // the intruder's, on the prefill worker
	request string     // the intruder's, as the prefill worker knows it
	offered *events.Prefill
}

func (x *trial) String() string {
	return fmt.Sprintf("HTTP %d %s %q, foreign text %q%s; history: %s", x.reply.status, x.reply.code, x.reply.message, x.leak, x.pulled(), x.log.story(x.id))
}

func (x *trial) pulled() string {
	if x.pull == "" {
		return ""
	}
	return ", pull refused: " + x.pullError
}

func (x *trial) worker(name string) gpuworker.Stats { return x.workers[name].worker.Stats() }

func runTrial(t *testing.T, a attack, without []guard) *trial {
	t.Helper()
	x := &trial{system: newSystem(5), attack: a}
	for _, g := range without {
		g.remove(&x.guards)
	}
	x.engine = engine.Config{Name: "faulty", Model: "m", ContextTokens: trialWindow, MaxInputTokens: trialLimit, Threads: 1}
	x.prefillPool, x.decodePool, x.concurrency = trialWindow, trialWindow, 8
	for i := range 4 {
		x.scene.victims = append(x.scene.victims, customer{x.names[i], records(i, trialLimit-2), 2})
	}
	const filler = "please sum up my holiday notes. "
	length := trialWindow - trialMost
	if a != placeholder {
		length = trialLimit - trialMost
	}
	prompt := []byte(strings.Repeat(filler, length/len(filler)+1)[:length])
	if a != placeholder {
		copy(prompt[length-10:], "card=4111-")
	}
	x.intruder = order{tenant: "t5", prompt: prompt, most: trialMost, stream: a == earlyOutput}
	x.scene.intruder = customer{"t5", prompt, trialMost}
	x.hooks.engine = x.gullible
	x.bend(x.interfere)
	x.log = x.run(t, x.act)
	x.id = x.reply.id
	if l, ok := x.scene.findLeak(x.reply.texts[0]); ok {
		x.leak = l.text
	}
	x.report = x.check(x.log)
	for _, w := range x.workers {
		x.dirty += audit(t, w.pool)
	}
	return x
}

// act lets the victims come and go, all at once, and then the intruder.
func (x *trial) act(ctx context.Context) error {
	x.granted.Add(len(x.scene.victims))
	var wg sync.WaitGroup
	errs := make([]error, len(x.scene.victims))
	for i, v := range x.scene.victims {
		wg.Go(func() {
			r, err := x.send(ctx, x.http, order{tenant: v.tenant, prompt: v.prompt, most: v.most})
			if err == nil && r.status != 200 {
				err = errors.New(r.problem())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := x.settled(ctx); err != nil {
		return err
	}
	var err error
	x.reply, err = x.send(ctx, x.http, x.intruder)
	return err
}

// gullible is the engine of the incident. Its decode leg believes the length
// that was reserved, whatever arrived.
type gullible struct {
	engine.Engine
	x      *trial
	worker string
}

func (x *trial) gullible(worker string, e engine.Engine) engine.Engine { return gullible{e, x, worker} }

// Prefill lets the trial see which memory was written.
func (g gullible) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	out, err := g.Engine.Prefill(ctx, job)
	g.x.mu.Lock()
	defer g.x.mu.Unlock()
	var pages [][]uint64
	for i := range job.KV.Pages() {
		pages = append(pages, job.KV.Page(i))
	}
	switch string(job.Prompt) {
	case string(g.x.scene.victims[0].prompt):
		for _, p := range pages {
			g.x.stolen = append(g.x.stolen, append([]uint64{}, p...))
		}
	case string(g.x.intruder.prompt):
		g.x.request, g.x.mine = job.RequestID, pages
	}
	return out, err
}

// Decode takes the reservation for the prompt.
func (g gullible) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	job.PromptTokens = job.KV.Pages()*g.Info().PageTokens - job.Sampling.MaxTokens
	return g.Engine.Decode(ctx, job, emit)
}

// interfere stands between the parts and the lifecycle.
func (x *trial) interfere(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
	x.mu.Lock()
	intruder := c.Subject == x.request
	x.mu.Unlock()
	switch {
	case from == "d1" && c.Type == events.CmdGrant && !intruder:
		// All victims have their pages before the first one goes on: each has its own.
		x.granted.Done()
		x.granted.Wait()
	case from == "p1" && c.Type == events.CmdPrefilled && intruder:
		if x.attack == strayWriter || x.attack == earlyOutput {
			x.overwrite()
		}
		x.mu.Lock()
		x.offered = c.Data.(*events.Prefill)
		x.mu.Unlock()
	case from == "d1" && c.Type == events.CmdGrant && intruder && (x.attack == lateDecode || x.attack == wrongGrant):
		return x.late(ctx, c, next)
	}
	a, err := next(ctx, c)
	if err == nil && a.Denied != nil && intruder && from == "d1" &&
		(c.Type == events.CmdTransferred && !x.guards.worker.NoTransferred || c.Type == events.CmdDecoded) {
		// Nobody is left who would end the request before its deadline.
		return a, x.cancel(ctx, c.Subject)
	}
	return a, err
}

// overwrite is the stray writer: the pages before the prompt's end get the
// victim's KV.
func (x *trial) overwrite() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range len(x.intruder.prompt) / 64 {
		copy(x.mine[i], x.stolen[i])
	}
}

func (x *trial) cancel(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx) // the news of the cancellation ends the worker's own
	c, done, err := operator(ctx, x.endpoints)
	if err != nil {
		return err
	}
	defer done()
	a, err := c.Cancel(ctx, id, &events.Cancel{Reason: events.CodeCancelled})
	if err != nil {
		return err
	}
	return a.Err()
}

// late has the request cancelled, waits until its pages are free again, and lets
// the decode worker's grant go out only then.
func (x *trial) late(ctx context.Context, c *events.Command, next send) (*events.Answer, error) {
	if err := x.cancel(ctx, c.Subject); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	p1 := x.probe("p1")
	err := poll(ctx, "the intruder's pages are free", func() bool {
		st := p1.worker.Stats()
		return st.Pool.Free == st.Pool.Pages && st.Kept+st.Leaving+st.Running == 0
	})
	if err != nil {
		return nil, err
	}
	if x.attack == wrongGrant {
		if err := x.forge(ctx, c.Subject, c.Data.(*events.GrantTransfer)); err != nil {
			return nil, err
		}
	}
	a, err := next(ctx, c)
	x.unsigned = x.unsigned || err == nil && a.Grant == nil
	if err == nil && a.Grant != nil {
		return nil, errors.New("a grant was signed for a cancelled request")
	}
	return a, err
}

func (x *trial) probe(name string) probe {
	x.system.mu.Lock()
	defer x.system.mu.Unlock()
	return x.workers[name]
}

// forge gives the intruder's former pages to a victim, and pulls them with a
// grant in the intruder's name.
func (x *trial) forge(ctx context.Context, id string, d *events.GrantTransfer) error {
	p1, d1 := x.probe("p1"), x.probe("d1")
	x.mu.Lock()
	offered := *x.offered
	x.mu.Unlock()
	owned, err := p1.pool.Alloc("the next owner", events.Pages(offered.Pages))
	if err != nil {
		return err
	}
	defer func() { <-p1.pool.Free(owned) }()
	write, err := p1.pool.BeginWrite(owned)
	if err != nil {
		return err
	}
	for i := range owned.Pages() {
		copy(owned.Page(i), x.stolen[i])
	}
	write.End()
	ownerKey, err := x.ring.Identity(events.RolePrefill, "p1")
	if err != nil {
		return err
	}
	workerKey, err := x.ring.Identity(events.RoleDecode, "d1")
	if err != nil {
		return err
	}
	grantKey, err := x.ring.GrantKey()
	if err != nil {
		return err
	}
	signed, err := events.SignGrant(grantKey, &events.Grant{
		RequestID: id, Model: x.engine.Model, Tenant: x.intruder.tenant, GrantEpoch: 1, Event: "1.0",
		Owner: "p1", OwnerEpoch: p1.pool.Epoch(), OwnerKey: handoff.EncodeKey(ownerKey.Public().(ed25519.PublicKey)), OwnerAddress: p1.worker.Address(),
		Worker: "d1", WorkerEpoch: d1.pool.Epoch(), WorkerKey: handoff.EncodeKey(workerKey.Public().(ed25519.PublicKey)),
		Pages: owned.Runs(), PromptTokens: offered.PromptTokens, KVBytes: offered.KVBytes, KVDigest: offered.KVDigest,
		Layout: d.Layout, Lease: events.Micros(time.Now().Add(time.Minute)),
	})
	if err != nil {
		return err
	}
	pool, err := kvpool.New(kvpool.Config{Pages: owned.Pages(), PageBytes: d1.pool.PageBytes(), Epoch: d1.pool.Epoch()})
	if err != nil {
		return err
	}
	into, err := pool.Alloc(id, owned.Pages())
	if err != nil {
		return err
	}
	puller, err := handoff.NewPuller(handoff.PullerConfig{
		Name: "d1", Epoch: d1.pool.Epoch(), Layout: d.Layout, Pool: pool, Identity: workerKey,
		GrantKeys: grantKeys(grantKey.Public().(ed25519.PublicKey)), Guards: x.guards.worker.Handoff,
	})
	if err != nil {
		return err
	}
	_, err = puller.Pull(ctx, handoff.Pull{RequestID: id, Grant: signed, Key: 1, Into: into})
	if err == nil {
		return errors.New("the next owner's pages were pulled")
	}
	x.pull, x.pullError = handoff.CodeOf(err), err.Error()
	return nil
}
