package simulation

import (
	"crypto/ed25519"
	"encoding/binary"
	"reflect"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/handoff"
)

// odds are how often things go wrong in this run.
type odds struct {
	lost  float64 // a message, an append, a reply, a connection's frame
	twice float64
	slow  float64 // up to 200 ms
	late  float64 // up to 4 s
	crash float64 // a replica, right after its append landed
}

// draw fixes what kind of run this is. Some are quiet, so that long paths come to
// their end as well.
func (w *world) draw() {
	level := []float64{0.1, 0.5, 1, 2}[w.rnd.IntN(4)]
	w.odds = odds{lost: 0.02 * level, twice: 0.03 * level, slow: 0.1 * level, late: 0.008 * level, crash: 0.003 * level}
	w.partitions = []int{1, 1, 2, 3, 8}[w.rnd.IntN(5)]
	if w.rnd.IntN(3) == 0 {
		w.queueLimit = 4
	}
	w.faults = w.cfg.Force
	v := reflect.ValueOf(&w.faults).Elem()
	rare := 6 << w.rnd.IntN(4)
	for i := range v.NumField() {
		if w.rnd.IntN(rare) == 0 && !w.cfg.Only {
			v.Field(i).SetBool(true)
		}
	}
}

// chaos has processes crash and stand still.
func (w *world) chaos() {
	if w.calm {
		return
	}
	w.after(w.between(50*time.Millisecond, 1500*time.Millisecond), func() {
		switch w.rnd.IntN(8) {
		case 0:
			w.crashReplica(w.replicas[w.rnd.IntN(len(w.replicas))].life)
		case 1, 2:
			w.workers[w.rnd.IntN(len(w.workers))].crash(w.between(10*time.Millisecond, 4*time.Second))
		case 3:
			if w.rnd.IntN(3) == 0 {
				w.gateways[w.rnd.IntN(len(w.gateways))].crash(w.between(10*time.Millisecond, 2*time.Second))
			}
		case 4, 5:
			w.stall()
		}
		w.chaos()
	})
}

// stall has a process stand still. A worker may stand still for so long that its
// life is ended, and then go on as if nothing had happened.
func (w *world) stall() {
	if w.calm {
		return
	}
	var l *life
	d := w.between(20*time.Millisecond, 3*time.Second)
	if w.rnd.IntN(2) == 0 {
		l = w.replicas[w.rnd.IntN(len(w.replicas))].life
	} else {
		l = w.workers[w.rnd.IntN(len(w.workers))].life
		if w.rnd.IntN(4) == 0 {
			d = w.between(10*time.Second, 20*time.Second)
		}
	}
	if l.dead {
		return
	}
	w.say("%s stands still for %v", l.name, d)
	w.seen["stall"]++
	l.still = w.now.Add(d)
}

// becalm ends all faults. What is down comes back by itself.
func (w *world) becalm() {
	w.calm = true
	w.say("calm")
}

// nonce is one that nobody had before.
func (w *world) nonce() []byte {
	w.names++
	return binary.BigEndian.AppendUint64(make([]byte, 56), uint64(w.names))
}

// misbehave is what a worker does that it should not.
func (x *worker) misbehave(e *events.Event) {
	w := x.w
	if w.calm || x.role != events.RoleDecode || e.N == 0 {
		return
	}
	if w.faults.Usurp {
		x.usurp(e)
	}
	switch e.Type {
	case events.TypeAdmitted, events.TypeReleased, events.TypeDenied:
		// Not before prefilled: a command that is denied as too early and arrives
		// once more, late, may be in time then, and is carried out although its
		// sender has given its pages back.
	default:
		if w.faults.Eager && w.rnd.IntN(3) == 0 {
			x.overreach(e.Subject)
		}
	}
	if w.faults.Rogue && w.rnd.IntN(3) == 0 {
		for _, c := range w.clients {
			if c.id == e.Subject && c.life != nil {
				w.output(x.name+"-rogue", &events.Work{RequestID: c.id, Gateway: c.g.name}, events.OutputChunk{Text: []byte("rogue"), Tokens: 5})
			}
		}
	}
}

// overreach asks for a grant that no work item calls for, into pages that it has,
// and gives them back again.
func (x *worker) overreach(id string) {
	a, err := x.pool.Alloc(id, decodePages/2)
	if err != nil {
		return
	}
	w := x.w
	w.seen["overreach"]++
	w.do(x.life, x.role, x.name, id, &events.GrantTransfer{
		WorkerEpoch: x.epoch, GrantEpoch: 1 + w.rnd.IntN(2), Pages: a.Runs(),
		ReservedTokens: a.Pages() * x.engine.Info().PageTokens, Layout: x.engine.Info().Layout,
	}, func(answer *events.Answer, _ *events.Error) {
		var report func(bool, func())
		if answer != nil && answer.Denied == nil {
			w.seen["overreach granted"]++
			report = func(scrubbed bool, done func()) {
				w.do(x.life, x.role, x.name, id, &events.Release{
					Worker: x.name, WorkerEpoch: x.epoch, Role: x.role, Generation: a.Generation(), Pages: a.Pages(),
					Drained: true, Scrubbed: scrubbed, Reason: "done",
				}, func(*events.Answer, *events.Error) { done() })
			}
		}
		w.on(x.life, w.delay(), func() { x.pool.FreeThen(a, report) })
	})
}

// usurp reports another worker's transfer as its own.
func (x *worker) usurp(e *events.Event) {
	switch d := e.Data.(type) {
	case *events.RequestPrefilled:
		x.heard[e.Subject] = d
	case *events.TransferGranted:
		if p := x.heard[e.Subject]; p != nil && d.Worker != x.name {
			x.w.do(x.life, x.role, x.name, e.Subject, &events.Transfer{
				WorkerEpoch: x.epoch, GrantEpoch: d.GrantEpoch, KVRequest: e.Subject, KVBytes: p.KVBytes, KVDigest: p.KVDigest,
			}, func(*events.Answer, *events.Error) {})
		}
	}
}

// thief overhears grants and openings, and tries what can be done with them. It
// has a key of its own, and reaches every worker's data plane.
type thief struct {
	w   *world
	key ed25519.PrivateKey
}

// heard is a grant on its way, with what its puller sends.
func (t *thief) heard(signed *events.SignedGrant, o *handoff.Opening, g *events.Grant) {
	f := t.w.faults
	if f.Forge {
		forged := *g
		forged.Worker, forged.WorkerKey = "thief", handoff.EncodeKey(t.key.Public().(ed25519.PublicKey))
		forged.GrantEpoch++
		if s, err := events.SignGrant(t.key, &forged); err == nil {
			t.try("forged grant", s, &forged, g.OwnerAddress, true)
		}
	}
	if f.Steal {
		t.try("stolen grant", signed, g, g.OwnerAddress, true)
	}
	if f.Stray {
		t.stray(o, g)
		t.w.after(t.w.between(time.Second, 5*time.Second), func() { t.stray(o, g) }) // the owner may have another life by then
	}
	if f.Stale {
		t.w.after(g.Lease.Sub(t.w.now)+time.Millisecond, func() { t.open("stale grant", o, g, g.OwnerAddress, true) })
	}
	if f.Lie {
		t.lie(g)
	}
}

// stray takes an opening to everybody whom it is not for.
func (t *thief) stray(o *handoff.Opening, g *events.Grant) {
	for _, x := range t.w.workers {
		if x.server != nil && x.address != g.OwnerAddress {
			t.open("stray grant", o, g, x.address, true)
		}
	}
}

// served is an opening that an owner took.
func (t *thief) served(o *handoff.Opening, g *events.Grant) {
	if t.w.faults.Replay {
		d := time.Duration(0)
		if t.w.faults.Slow {
			d = t.w.between(0, 3*time.Second)
		}
		t.w.after(d, func() { t.open("replayed opening", o, g, g.OwnerAddress, false) })
	}
}

// lie is a grant that the lifecycle should never sign: one request's, with the
// pages of another one at the same owner, or with fewer of its own.
func (t *thief) lie(g *events.Grant) {
	w := t.w
	at := w.plane[g.OwnerAddress]
	if at == nil || at.life.dead || at.x.life != at.life {
		return
	}
	for _, j := range at.x.jobs {
		lie := *g
		lie.Worker, lie.WorkerKey = "thief", handoff.EncodeKey(t.key.Public().(ed25519.PublicKey))
		lie.GrantEpoch++
		switch {
		case j.work.RequestID != g.RequestID && j.alloc != nil:
			lie.Pages = j.alloc.Runs()
		case len(g.Pages) > 0 && g.Pages[0].Count > 1:
			lie.Pages = []events.PageRun{{Start: g.Pages[0].Start, Count: 1, Generation: g.Pages[0].Generation}}
		default:
			continue
		}
		if s, err := events.SignGrant(w.grantKey, &lie); err == nil {
			t.try("lying grant", s, &lie, g.OwnerAddress, false)
		}
	}
}

// try uses a grant under the thief's key.
func (t *thief) try(how string, signed *events.SignedGrant, g *events.Grant, address string, breach bool) {
	o, err := handoff.NewOpening(signed, t.key, t.w.nonce())
	if err != nil {
		return
	}
	t.open(how, o, g, address, breach)
}

// open sends an opening and reads whatever comes. Bytes that come are a breach
// where they are for nobody; otherwise the rules of the log and of grants say so.
func (t *thief) open(how string, o *handoff.Opening, g *events.Grant, address string, breach bool) {
	w := t.w
	at := w.plane[address]
	if at == nil {
		return
	}
	w.on(at.life, w.delay(), func() {
		w.seen[how]++
		out, err := at.server.Begin(o)
		if err != nil {
			w.stop(how, err)
			return
		}
		if !breach {
			w.once(g)
		}
		t.read(how, at, out, g, breach)
	})
}

func (t *thief) read(how string, at *host, out *handoff.Sending, g *events.Grant, breach bool) {
	w := t.w
	stop := func(err error) {
		w.stop(how, err)
		out.Close()
	}
	var step func()
	step = func() {
		more, err := out.Copy()
		if err != nil {
			stop(err)
			return
		}
		if !more {
			_, err := out.End()
			out.Close()
			if err != nil {
				w.stop(how, err)
				return
			}
			w.seen[how+" served"]++
			w.sealed(at, g.RequestID)
			if breach {
				w.breach(RuleThief, "%s: all pages of %s, with the trailer", how, short(g.RequestID))
			}
			return
		}
		w.on(at.life, w.delay(), func() {
			if _, _, err := out.Send(); err != nil {
				stop(err)
				return
			}
			w.seen[how+" page"]++
			if how != "stale grant" && breach {
				w.breach(RuleThief, "%s: a page of %s", how, short(g.RequestID))
			}
			step()
		})
	}
	step()
}
