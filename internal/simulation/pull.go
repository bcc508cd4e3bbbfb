package simulation

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/handoff"
)

var errBroken = errors.New("the connection broke")

// noticeAfter is how long an end of a connection takes to notice that the other
// one is gone.
const noticeAfter = 4 * time.Second

// pull is one transfer on its way: a connection between two processes, in order
// and whole until it breaks.
type pull struct {
	w     *world
	x     *worker // decode
	life  *life   // of it
	owner *host
	j     *job
	in    *handoff.Receiving
	out   *handoff.Sending
	steps int // progress, for whoever waits
	over  bool
	hung  bool // the owner's end is closed: what still comes is not heard
}

func (x *worker) pull(j *job, a *events.Answer) {
	w := x.w
	key, err := strconv.ParseUint(a.KVKey, 16, 64)
	if err != nil {
		w.breach(RuleRefused, "a grant comes without its key")
		return
	}
	p := &pull{w: w, x: x, life: x.life, j: j}
	in, opening, err := x.puller.Begin(handoff.Pull{RequestID: j.work.RequestID, Grant: a.Grant, Key: key, Into: j.alloc}, w.nonce())
	if err != nil {
		x.again(j, err)
		return
	}
	p.in = in
	g, err := a.Grant.Open(w.grantKey.Public().(ed25519.PublicKey))
	if err != nil {
		w.breach(RuleRefused, "grant: %v", err)
		return
	}
	w.thief.heard(a.Grant, opening, g)
	p.owner = w.plane[g.OwnerAddress]
	p.watch(x.life, 0, func() { p.fail(errBroken) })
	if p.owner == nil || p.owner.life.dead {
		p.fail(errBroken)
		return
	}
	p.watch(p.owner.life, 0, func() { p.hangUp(0) })
	p.send(p.owner.life, func() { p.opened(opening, g) })
}

// watch ends a transfer that makes no progress: one end may have died. Each end
// watches for itself.
func (p *pull) watch(l *life, seen int, give func()) {
	p.w.on(l, noticeAfter, func() {
		if p.steps == seen {
			give()
			return
		}
		p.watch(l, p.steps, give)
	})
}

// send carries a frame to one end, unless the connection breaks.
func (p *pull) send(to *life, f func()) {
	w := p.w
	if w.chance(w.odds.lost) {
		w.seen["broken connection"]++
		p.fail(errBroken)
		p.hangUp(w.delay())
		return
	}
	d := w.delay()
	if w.faults.Slow {
		d += w.between(0, 3*time.Second)
	}
	w.on(to, d, func() {
		if !p.over {
			p.steps++
			f()
		}
	})
}

// fail is the puller's end: the pages are written to no more.
func (p *pull) fail(err error) {
	if p.over {
		return
	}
	p.over = true
	w := p.w
	w.on(p.life, w.delay(), func() {
		p.in.Close()
		p.x.again(p.j, err)
	})
	p.hangUp(noticeAfter)
}

// hangUp is the owner's end, once it notices.
func (p *pull) hangUp(d time.Duration) {
	if p.owner != nil {
		p.w.on(p.owner.life, d, func() {
			p.hung = true
			if p.out != nil {
				p.out.Close()
				p.out = nil
			}
		})
	}
}

// refuse tells the puller why the owner stops.
func (p *pull) refuse(err error) {
	p.w.stop("owner", err)
	if p.out != nil {
		p.out.Close()
		p.out = nil
	}
	p.send(p.life, func() { p.fail(err) })
}

func (p *pull) opened(o *handoff.Opening, g *events.Grant) {
	if p.hung {
		return
	}
	out, err := p.owner.server.Begin(o)
	if err != nil {
		p.refuse(err)
		return
	}
	p.out = out
	p.w.once(g)
	p.w.thief.served(o, g)
	head := out.Header()
	if p.w.faults.Header && p.w.chance(0.5) {
		head = p.w.misname(head)
	}
	p.send(p.life, func() {
		if err := p.in.Header(head); err != nil {
			p.refusedByPuller(err)
			return
		}
		p.send(p.owner.life, p.copy)
	})
}

func (p *pull) refusedByPuller(err error) {
	p.w.stop("puller", err)
	p.fail(err)
}

// copy takes the next page into staging; what is copied is checked a moment
// later, and then sent.
func (p *pull) copy() {
	if p.out == nil {
		return // the owner hung up; the puller will notice
	}
	more, err := p.out.Copy()
	switch {
	case err != nil:
		p.refuse(err)
	case !more:
		p.end()
	default:
		p.w.on(p.owner.life, p.w.delay(), p.page)
	}
}

func (p *pull) page() {
	if p.over || p.out == nil {
		return
	}
	first, body, err := p.out.Send()
	if err != nil {
		p.refuse(err)
		return
	}
	body = append([]byte(nil), body...)
	last := int(first)+1 == p.out.Pages()
	if p.w.faults.BitFlip && p.w.chance(0.3) {
		p.w.say("a bit of %s flips on its way", short(p.j.work.RequestID))
		body[100] ^= 4
	}
	p.send(p.life, func() {
		if err := p.in.Pages(first, body); err != nil {
			p.refusedByPuller(err)
			return
		}
		if p.w.cfg.Guards.Worker.Handoff.NoPullTrailer && last {
			p.arrived(nil) // it does not wait for the owner's last word
			return
		}
		p.send(p.owner.life, p.copy)
	})
}

func (p *pull) end() {
	trailer, err := p.out.End()
	if err != nil {
		p.refuse(err)
		return
	}
	p.w.sealed(p.owner, p.j.work.RequestID)
	p.out.Close()
	p.out = nil
	if p.w.faults.Trailer && p.w.chance(0.5) {
		trailer[20] ^= 1
	}
	p.send(p.life, func() { p.arrived(trailer) })
}

func (p *pull) arrived(trailer []byte) {
	got, err := p.in.End(trailer)
	if err != nil {
		p.refusedByPuller(err)
		return
	}
	p.over = true
	p.in.Close()
	p.hangUp(p.w.delay())
	p.w.seen["pulled"]++
	if p.j.phase == running && !p.j.ended {
		p.x.pulled(p.j, got)
	}
}

// sealed is called when an owner has confirmed a transfer.
func (w *world) sealed(at *host, id string) {
	if at.x.life != at.life {
		return
	}
	if j := at.x.find(id); j != nil && j.cut {
		w.breach(RuleRevoked, "%s sealed a transfer of %s that it had revoked", at.x.name, short(id))
	}
}

// once counts how often a grant was served.
func (w *world) once(g *events.Grant) {
	key := g.RequestID + "/" + strconv.Itoa(g.GrantEpoch)
	if w.served[key]++; w.served[key] > 1 {
		w.breach(RuleOnce, "grant %d of %s was served twice", g.GrantEpoch, short(g.RequestID))
	}
}

// misname has a header name another request, as a metadata slot that is used
// again does.
func (w *world) misname(head []byte) []byte {
	var m map[string]any
	if err := json.Unmarshal(head, &m); err != nil {
		return head
	}
	own := m["request_id"]
	for _, c := range w.clients {
		if c.id != "" && c.id != own {
			m["request_id"] = c.id
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return head
	}
	return b
}
