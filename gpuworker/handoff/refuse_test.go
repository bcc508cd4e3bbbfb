package handoff

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// breach is one thing that is wrong with a transfer, and what stops it.
type breach struct {
	name string
	// arrange spoils something. It returns the grant to pull with.
	arrange func(r *rig, o Offer) *events.SignedGrant
	code    events.Code // the refusal, with all guards
	guard   Guards      // the one guard that stops it
	next    events.Code // what stops it where that guard is gone; "": nothing does
	group   Guards      // the guards that cover for each other; without all of them it gets through
}

func grantWith(f func(g *events.Grant)) func(*rig, Offer) *events.SignedGrant {
	return func(r *rig, o Offer) *events.SignedGrant {
		g := r.grant(o, 1)
		f(g)
		return r.sign(g)
	}
}

// lookAt calls f when the owner looks at the clock for the n-th time, which it
// does once for each frame it sends.
func lookAt(r *rig, n int, f func()) {
	r.ownerClock.onLook(func() {
		if n--; n == 0 {
			f()
		}
	})
}

var breaches = []breach{
	{
		name: "signed by nobody we trust",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			s, err := events.SignGrant(testKey("mallory"), r.grant(o, 1))
			if err != nil {
				r.t.Fatal(err)
			}
			return s
		},
		code: events.CodeGrantSignature, guard: Guards{NoSignature: true},
	},
	{
		name: "changed after it was signed",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			s := r.sign(r.grant(o, 1))
			s.Grant = json.RawMessage(bytes.Replace(s.Grant, []byte(`"event":"1.0"`), []byte(`"event":"1.1"`), 1))
			return s
		},
		code: events.CodeGrantSignature, guard: Guards{NoSignature: true},
	},
	{
		name: "pulled by a worker that is not the granted one",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			s := r.sign(r.grant(o, 1))
			thief := r.puller.cfg
			thief.Identity = testKey("d2")
			p, err := NewPuller(thief)
			if err != nil {
				r.t.Fatal(err)
			}
			r.puller = p
			return s
		},
		code: events.CodeForbidden, guard: Guards{NoProof: true},
	},
	{
		name:    "another owner's name",
		arrange: grantWith(func(g *events.Grant) { g.Owner = "p2" }),
		code:    events.CodeWrongWorker, guard: Guards{NoOwner: true},
	},
	{
		name:    "an earlier life of the owner",
		arrange: grantWith(func(g *events.Grant) { g.OwnerEpoch-- }),
		code:    events.CodeWorkerEpoch, guard: Guards{NoEpoch: true},
	},
	{
		name: "lease of the grant over on the owner's clock",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			s := r.sign(r.grant(o, 1))
			r.ownerClock.add(testLease)
			return s
		},
		code: events.CodeLeaseOver, guard: Guards{NoLease: true}, next: events.CodeLeaseOver,
		group: Guards{NoLease: true, NoLeaseEnd: true},
	},
	{
		name: "lease ends during the copy",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			lookAt(r, 4, func() { r.ownerClock.add(testLease) })
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeLeaseOver, guard: Guards{NoLeaseEnd: true},
	},
	{
		name: "request revoked, its pages not yet free",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			// As while a transfer that was cut is still on its way out.
			r.server.mu.Lock()
			of := r.server.offers[o.RequestID]
			of.closing, of.revoked, of.idle = true, true, make(chan struct{})
			r.server.mu.Unlock()
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeUnknownRequest, guard: Guards{NoHeld: true},
	},
	{
		name: "request never offered",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			g := r.grant(o, 1)
			g.RequestID = requestID(7)
			return r.sign(g)
		},
		code: events.CodeUnknownRequest, guard: Guards{NoHeld: true}, next: events.CodePageOwner,
	},
	{
		name: "other pages than the request's",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			other, _ := r.offer(requestID(8), 2)
			g := r.grant(o, 1)
			g.Pages = other.Alloc.Runs()
			g.KVBytes = int64(2 * r.ownerPool.PageBytes())
			return r.sign(g)
		},
		code: events.CodePageGeneration, guard: Guards{NoTable: true}, next: events.CodePageOwner,
	},
	{
		name:    "a part of the request's pages",
		arrange: grantWith(func(g *events.Grant) { g.Pages[0].Count--; g.KVBytes -= 64 }),
		code:    events.CodePageOwner, guard: Guards{NoTable: true}, next: events.CodeDigestMismatch,
	},
	{
		name:    "an older generation",
		arrange: grantWith(func(g *events.Grant) { g.Pages[0].Generation-- }),
		code:    events.CodePageGeneration, guard: Guards{NoTable: true}, next: events.CodePageGeneration,
	},
	{
		name:    "another tenant",
		arrange: grantWith(func(g *events.Grant) { g.Tenant = "umbrella" }),
		code:    events.CodeTenantMismatch, guard: Guards{NoTable: true},
	},
	{
		name:    "another model",
		arrange: grantWith(func(g *events.Grant) { g.Model = "n" }),
		code:    events.CodeIncompatible, guard: Guards{NoTable: true},
	},
	{
		name:    "another token count",
		arrange: grantWith(func(g *events.Grant) { g.PromptTokens = 1 }),
		code:    events.CodeTokenCountMismatch, guard: Guards{NoTable: true}, next: events.CodeTokenCountMismatch,
	},
	{
		name:    "another digest",
		arrange: grantWith(func(g *events.Grant) { g.KVDigest = kvpool.Digest(1).String() }),
		code:    events.CodeDigestMismatch, guard: Guards{NoTable: true}, next: events.CodeDigestMismatch,
	},
	{
		name: "used before",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			into := r.reserve(o.RequestID, o.Alloc.Pages())
			g := r.grant(o, 1)
			if _, err := r.pull(g, into); err != nil {
				r.t.Fatal(err)
			}
			r.result()
			<-r.pullPool.Free(into)
			return r.sign(g)
		},
		code: events.CodeGrantUsed, guard: Guards{NoOnce: true},
	},
	{
		name: "older than one that was used",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			into := r.reserve(o.RequestID, o.Alloc.Pages())
			if _, err := r.pull(r.grant(o, 2), into); err != nil {
				r.t.Fatal(err)
			}
			r.result()
			<-r.pullPool.Free(into)
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeGrantUsed, guard: Guards{NoOnce: true},
	},
	{
		name: "pages given back during the copy",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			lookAt(r, 4, func() { r.ownerPool.Free(o.Alloc) })
			return r.sign(r.grant(o, 1))
		},
		code: events.CodePageGeneration, guard: Guards{NoRecheck: true},
	},
	{
		name: "pages written after the offer",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			w, err := r.ownerPool.BeginWrite(o.Alloc)
			if err != nil {
				r.t.Fatal(err)
			}
			defer w.End()
			if err := w.Scatter(1, make([]byte, 64)); err != nil {
				r.t.Fatal(err)
			}
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeDigestMismatch, guard: Guards{NoDigest: true}, next: events.CodeDigestMismatch,
		group: Guards{NoDigest: true, NoPullDigest: true},
	},
	{
		name: "lease over on the puller's clock",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			r.pullClock.add(testLease)
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeLeaseOver, guard: Guards{NoPullLease: true},
	},
	{
		name: "lease ends on the puller's clock during the copy",
		arrange: func(r *rig, o Offer) *events.SignedGrant {
			n := 0
			r.pullClock.onLook(func() {
				if n++; n == 3 {
					r.pullClock.add(testLease)
				}
			})
			return r.sign(r.grant(o, 1))
		},
		code: events.CodeLeaseOver, guard: Guards{NoPullLease: true},
	},
}

// attempt pulls under the given guards.
func (b *breach) attempt(t *testing.T, network string, g Guards) error {
	t.Helper()
	r := newRig(t, network, 16, 64, guards(g), func(c *Config, _ *PullerConfig) { c.ChunkBytes = 64 })
	o, _ := r.offer(requestID(1), 4)
	signed := b.arrange(r, o)
	id := o.RequestID
	var peek events.Grant
	if err := json.Unmarshal(signed.Grant, &peek); err == nil {
		id = peek.RequestID
	}
	into := r.reserve(id, 4)
	// The owner's checks are the point: the puller's own view of the grant does
	// not stop a thief.
	if g := publicKey(r.puller.cfg.Identity); !sameKey(g, peek.WorkerKey) {
		return pullAsThief(r, signed, into)
	}
	// A trusting puller: the owner's word on the signature decides.
	if b.code == events.CodeGrantSignature {
		r.puller.cfg.Guards.NoSignature = true
	}
	_, err := r.puller.Pull(t.Context(), Pull{RequestID: id, Grant: signed, Key: kvKey, Into: into})
	return err
}

// pullAsThief runs the protocol past the puller's check that a grant is its own.
func pullAsThief(r *rig, signed *events.SignedGrant, into *kvpool.Allocation) error {
	g, err := signed.Open(publicKey(r.lifecycle))
	if err != nil {
		return err
	}
	w, err := r.pullPool.BeginWrite(into)
	if err != nil {
		return err
	}
	defer w.End()
	conn, err := r.puller.dial(r.t.Context(), g)
	if err != nil {
		return err
	}
	defer conn.cut()
	_, err = r.puller.receive(conn, g, Pull{Grant: signed, Key: kvKey, Into: into}, w)
	return err
}

func codeOf(err error) events.Code {
	if err == nil {
		return ""
	}
	return CodeOf(err)
}

// Every breach is refused with its code; the guard that refuses it, taken away
// alone, lets it go on to whatever stands behind it.
func TestRefusals(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		for _, b := range breaches {
			t.Run(b.name, func(t *testing.T) {
				if err := b.attempt(t, network, Guards{}); err == nil || CodeOf(err) != b.code {
					t.Errorf("with all guards: %v, want %s", err, b.code)
				}
				if err := b.attempt(t, network, b.guard); codeOf(err) != b.next {
					t.Errorf("without %+v: %v, want %q", b.guard, err, b.next)
				}
				if b.group != (Guards{}) {
					if err := b.attempt(t, network, b.group); err != nil {
						t.Errorf("without the group %+v: still refused: %v", b.group, err)
					}
				}
			})
		}
	})
}

// What goes on record at the owner carries the same code, and so does the
// count.
func TestRefusalIsRecorded(t *testing.T) {
	r := newRig(t, "unix", 4, 64)
	o, _ := r.offer(requestID(1), 2)
	g := r.grant(o, 1)
	g.OwnerEpoch++
	if _, err := r.pull(g, r.reserve(o.RequestID, 2)); err == nil {
		t.Fatal("not refused")
	}
	res := r.result()
	if CodeOf(res.Err) != events.CodeWorkerEpoch || res.RequestID != o.RequestID || res.Worker != "d1" || res.Bytes != 0 {
		t.Errorf("recorded %+v", res)
	}
	if st := r.server.Stats(); st.Refused != 1 || st.Completed != 0 || st.Bytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

// The puller refuses a grant that is not for it before it connects anywhere.
func TestPullerChecksItsGrant(t *testing.T) {
	r := newRig(t, "unix", 16, 64)
	o, _ := r.offer(requestID(1), 4)
	for _, c := range []struct {
		code events.Code
		f    func(g *events.Grant)
	}{
		{events.CodePageOwner, func(g *events.Grant) { g.RequestID = requestID(2) }},
		{events.CodeWrongWorker, func(g *events.Grant) { g.Worker = "d2" }},
		{events.CodeWrongWorker, func(g *events.Grant) { g.WorkerKey = EncodeKey(publicKey(testKey("d2"))) }},
		{events.CodeWorkerEpoch, func(g *events.Grant) { g.WorkerEpoch-- }},
		{events.CodeIncompatible, func(g *events.Grant) { g.Layout = "other" }},
		{events.CodeIncompatible, func(g *events.Grant) { g.KVBytes++ }},
		{events.CodeReservation, func(g *events.Grant) { g.Pages[0].Count, g.KVBytes = 5, 5*64 }},
		{events.CodeReservation, func(g *events.Grant) { g.Pages, g.KVBytes = nil, 0 }},
		{events.CodeLeaseOver, func(g *events.Grant) { g.Lease = epochStart }},
	} {
		g := r.grant(o, 1)
		c.f(g)
		into := r.reserve(o.RequestID, 4)
		if _, err := r.pull(g, into); err == nil || CodeOf(err) != c.code {
			t.Errorf("%v, want %s", err, c.code)
		}
		<-r.pullPool.Free(into)
	}
	if len(r.results) != 0 {
		t.Error("the puller connected to somebody")
	}
}

// A peer that is not the owner gets nothing accepted, even where it has the
// right bytes: the key in the grant decides.
func TestPullerPinsTheOwnersKey(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		for _, g := range []Guards{{}, {NoOwnerKey: true}} {
			r := newRig(t, network, 8, 64, guards(g))
			o, _ := r.offer(requestID(1), 2)
			// The same pool and offers behind another identity.
			fake := r.server.cfg
			fake.Identity, fake.Guards = testKey("mallory"), Guards{NoOwner: true, NoProof: true}
			s, err := NewServer(fake)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Offer(o); err != nil {
				t.Fatal(err)
			}
			grant := r.grant(o, 1)
			grant.OwnerAddress = r.serve(s)
			_, err = r.pull(grant, r.reserve(o.RequestID, 2))
			if refused := err != nil; refused == g.NoOwnerKey {
				t.Errorf("guards %+v: %v", g, err)
			}
		}
	})
}

// A lease never makes a deadline later than its own end.
func TestDeadlineIsTheLease(t *testing.T) {
	r := newRig(t, "unix", 64, 256<<10, timeout(time.Hour))
	o, _ := r.offer(requestID(1), 32)
	g := r.grant(o, 1)
	g.Lease = epochStart.Add(50 * time.Millisecond)
	if _, err := r.rawPeer(g); err != nil { // and it never reads on
		t.Fatal(err)
	}
	if res := r.result(); res.Err == nil {
		t.Error("sent to a peer that does not read")
	}
	r.idle()
}

func signProof(r *rig, script []byte) []byte {
	return ed25519.Sign(r.pullerKey, proofMessage(script))
}
