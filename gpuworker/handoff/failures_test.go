package handoff

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// The public failures that a hand-off meets, by the numbers under which they
// are kept. Each runs over both transports.

// slowPull opens a transfer of large KV whose peer has read nothing after the
// verdict: the owner stands in the middle of the copy.
func slowPull(r *rig, o Offer, epoch int) *channel {
	r.t.Helper()
	conn, err := r.rawPeer(r.grant(o, epoch))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := readFrame(conn, frameHeader); err != nil {
		r.t.Fatal(err)
	}
	return conn
}

const bigPages = 64

// newBigRig holds more KV in one request than the sockets buffer, in chunks of
// one page.
func newBigRig(t *testing.T, network string, opts ...option) *rig {
	t.Helper()
	const page = 256 << 10
	return newRig(t, network, bigPages, page, append(opts, func(c *Config, _ *PullerConfig) { c.ChunkBytes = page })...)
}

// F05: pages freed while a writer is in flight, and the next owner's are
// overwritten. Here: a puller whose request is cancelled goes on receiving; its
// pages reach nobody else before it has stopped, and it stops at the next chunk.
func TestF05LateWriterNeverReachesTheNextOwner(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 4, 64, func(c *Config, _ *PullerConfig) { c.ChunkBytes = 64 })
		o, _ := r.offer(requestID(1), 4)
		into := r.reserve(o.RequestID, 4) // all pages there are
		var free <-chan struct{}
		n := 0
		r.pullClock.onLook(func() {
			if n++; n == 4 { // after the first chunks
				free = r.pullPool.Free(into)
				if _, err := r.pullPool.Alloc(requestID(2), 4); !errors.Is(err, kvpool.ErrFull) {
					t.Errorf("pages with a writer in flight were handed out: %v", err)
				}
			}
		})
		if _, err := r.pull(r.grant(o, 1), into); err == nil || CodeOf(err) != events.CodePageGeneration {
			t.Errorf("the late writer got %v", err)
		}
		wait(t, "free", free)
		next := r.reserve(requestID(2), 4)
		if !bytes.Equal(r.content(next, 4), bytes.Repeat([]byte{0xff}, 4*64)) {
			t.Error("the next owner found bytes in its pages")
		}
	})
}

// F07: the first token comes from another request. Here: an owner that sends
// another request's header is refused on identity.
func TestF07AnotherRequestsHeader(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		for _, g := range []Guards{{}, {NoHeader: true}} {
			r := newRig(t, network, 16, 64, guards(g))
			o, _ := r.offer(requestID(1), 2)
			// The owner's books are wrong: the entry holds another request's id.
			r.server.mu.Lock()
			r.server.offers[o.RequestID].RequestID = requestID(2)
			r.server.mu.Unlock()
			got, err := r.pull(r.grant(o, 1), r.reserve(o.RequestID, 2))
			switch {
			case !g.NoHeader && (err == nil || CodeOf(err) != events.CodePageOwner):
				t.Errorf("got %v", err)
			case g.NoHeader && (err != nil || got.KVRequest != requestID(2)):
				t.Errorf("without the guard: %v", err)
			}
		}
	})
}

// F08: two attempts share one reference. Here: two pulls race on one grant, and
// one of them gets it.
func TestF08TwoPullsOfOneGrant(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 16, 64)
		o, _ := r.offer(requestID(1), 4)
		g := r.grant(o, 1)
		first, second := r.reserve(o.RequestID, 4), r.reserve(o.RequestID, 4)
		errs := make(chan error, 2)
		signed := r.sign(g)
		for _, into := range []*kvpool.Allocation{first, second} {
			go func() {
				_, err := r.puller.Pull(t.Context(), Pull{RequestID: o.RequestID, Grant: signed, Key: kvKey, Into: into})
				errs <- err
			}()
		}
		a, b := <-errs, <-errs
		if (a == nil) == (b == nil) {
			t.Fatalf("%v and %v: want one to get it", a, b)
		}
		if lost := errors.Join(a, b); CodeOf(lost) != events.CodeGrantUsed {
			t.Errorf("the other got %v", lost)
		}
	})
}

// F14: a consumed reference is used again.
func TestF14UsedGrant(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 16, 64)
		o, _ := r.offer(requestID(1), 4)
		g := r.grant(o, 1)
		if _, err := r.pull(g, r.reserve(o.RequestID, 4)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := r.pull(g, r.reserve(o.RequestID, 4)); err == nil || CodeOf(err) != events.CodeGrantUsed {
				t.Errorf("got %v", err)
			}
		}
		if _, err := r.pull(r.grant(o, 2), r.reserve(o.RequestID, 4)); err != nil {
			t.Errorf("the next grant: %v", err)
		}
	})
}

// F15: a stale reference after the pages were reused. The pages are another
// request's by then; neither the old grant nor the old worker epoch opens them.
func TestF15StaleGrantAfterReuse(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 4, 64)
		old, _ := r.offer(requestID(1), 4)
		stale := r.grant(old, 1)
		wait(t, "revoke", r.server.Revoke(old.RequestID))
		wait(t, "free", r.ownerPool.Free(old.Alloc))

		fresh, _ := r.offer(requestID(2), 4) // the same pages, another generation
		if fresh.Alloc.Runs()[0].Start != stale.Pages[0].Start {
			t.Fatal("the pages were not reused")
		}
		into := r.reserve(requestID(1), 4)
		if _, err := r.pull(stale, into); err == nil || CodeOf(err) != events.CodeUnknownRequest {
			t.Errorf("got %v", err)
		}
		<-r.pullPool.Free(into)

		// A grant for the present request, with the pages as they were.
		g := r.grant(fresh, 1)
		g.Pages = stale.Pages
		into = r.reserve(requestID(2), 4)
		if _, err := r.pull(g, into); err == nil || CodeOf(err) != events.CodePageGeneration {
			t.Errorf("old generation: %v", err)
		}
		g = r.grant(fresh, 1)
		g.OwnerEpoch--
		if _, err := r.pull(g, into); err == nil || CodeOf(err) != events.CodeWorkerEpoch {
			t.Errorf("old boot: %v", err)
		}
	})
}

// F16: an unknown id, pages out of range.
func TestF16UnknownRequestAndPages(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 8, 64, func(c *Config, _ *PullerConfig) { c.Guards.NoTable = true })
		o, _ := r.offer(requestID(1), 2)
		for name, c := range map[string]struct {
			f    func(g *events.Grant)
			code events.Code
		}{
			"unknown id":      {func(g *events.Grant) { g.RequestID = requestID(9) }, events.CodeUnknownRequest},
			"above the pool":  {func(g *events.Grant) { g.Pages[0].Start = 1 << 31 }, events.CodeMalformed},
			"wraps around":    {func(g *events.Grant) { g.Pages[0].Start = 1<<32 - 1 }, events.CodeMalformed},
			"a page twice":    {func(g *events.Grant) { p := g.Pages[0]; p.Count = 1; g.Pages = []events.PageRun{p, p} }, events.CodeMalformed},
			"nobody's page":   {func(g *events.Grant) { g.Pages[0].Start = 6 }, events.CodePageGeneration},
			"half of it free": {func(g *events.Grant) { g.Pages[0].Start = 1 }, events.CodePageGeneration},
		} {
			g := r.grant(o, 1)
			c.f(g)
			into := r.reserve(g.RequestID, 2)
			if _, err := r.pull(g, into); err == nil || CodeOf(err) != c.code {
				t.Errorf("%s: %v, want %s", name, err, c.code)
			}
			<-r.pullPool.Free(into)
		}
	})
}

// F17: answers read from blocks that were freed: the lease ran out before, or
// while, the KV was read. Then the pages are given back, and the pull fails.
func TestF17LeaseRunsOut(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 16, 64, func(c *Config, _ *PullerConfig) { c.ChunkBytes = 64 })
		o, _ := r.offer(requestID(1), 8)
		lookAt(r, 6, func() { r.ownerClock.add(testLease) })
		if _, err := r.pull(r.grant(o, 1), r.reserve(o.RequestID, 8)); err == nil || CodeOf(err) != events.CodeLeaseOver {
			t.Errorf("during the copy: %v", err)
		}
		res := r.result()
		if CodeOf(res.Err) != events.CodeLeaseOver || res.Bytes == 0 || res.Bytes >= 8*64 {
			t.Errorf("the owner recorded %+v", res)
		}
		into := r.reserve(o.RequestID, 8)
		if _, err := r.pull(r.grant(o, 2), into); err == nil || CodeOf(err) != events.CodeLeaseOver {
			t.Errorf("after it: %v", err)
		}
		r.idle()
	})
}

// F27: cancelled while a transfer is open. Its pages are drained and reach
// nobody before the owner has stopped reading them, then they are freed, and
// nothing leaks.
func TestF27CancelDuringTransfer(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newBigRig(t, network)
		o, _ := r.offer(requestID(1), bigPages)
		reading, goOn := make(chan struct{}), make(chan struct{})
		lookAt(r, 5, func() { close(reading); <-goOn }) // between two chunks, and one fits the socket
		slowPull(r, o, 1)
		wait(t, "the copy", reading)
		free := r.ownerPool.Free(o.Alloc)
		revoked := r.server.Revoke(o.RequestID)
		for what, ch := range map[string]<-chan struct{}{"freed": free, "revoked": revoked} {
			select {
			case <-ch:
				t.Errorf("pages were %s under an open transfer", what)
			default:
			}
		}
		if _, err := r.ownerPool.Alloc(requestID(2), 1); !errors.Is(err, kvpool.ErrFull) {
			t.Errorf("pages of an open transfer were handed out: %v", err)
		}
		close(goOn)
		wait(t, "revoke", revoked)
		wait(t, "free", free)
		if res := r.result(); CodeOf(res.Err) != events.CodeUnknownRequest {
			t.Errorf("recorded %+v", res)
		}
		r.idle()
		if st := r.ownerPool.Stats(); st.Free != bigPages {
			t.Errorf("pool %+v", st)
		}
		if n, err := r.ownerPool.Audit(); n != 0 || err != nil {
			t.Errorf("audit: %d, %v", n, err)
		}
	})
}

// A cancelled transfer ends without waiting for a peer that does not read.
func TestF27CancelDoesNotWaitForThePeer(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newBigRig(t, network)
		o, _ := r.offer(requestID(1), bigPages)
		slowPull(r, o, 1)
		wait(t, "revoke", r.server.Revoke(o.RequestID))
		if res := r.result(); CodeOf(res.Err) != events.CodeUnknownRequest {
			t.Errorf("recorded %+v", res)
		}
		r.idle()
		wait(t, "free", r.ownerPool.Free(o.Alloc))
	})
}

// The same at the puller: its context ends in the middle.
func TestF27CancelAtThePuller(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newBigRig(t, network)
		o, _ := r.offer(requestID(1), bigPages)
		into := r.reserve(o.RequestID, bigPages)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("client gone")
		var owner Result
		n := 0
		r.pullClock.onLook(func() {
			if n++; n == 10 { // reading stands still until the owner has noticed
				cancel(gone)
				owner = r.result()
			}
		})
		_, err := r.puller.Pull(ctx, Pull{RequestID: o.RequestID, Grant: r.sign(r.grant(o, 1)), Key: kvKey, Into: into})
		if !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
		wait(t, "free", r.pullPool.Free(into))
		if owner.Err == nil {
			t.Error("the owner thinks it completed")
		}
		r.idle()
	})
}

// Drain lets a transfer come to its end, and no other begin.
func TestDrainWaits(t *testing.T) {
	r := newBigRig(t, "unix")
	o, _ := r.offer(requestID(1), bigPages)
	conn := slowPull(r, o, 1)
	drained := r.server.Drain(o.RequestID)
	select {
	case <-drained:
		t.Fatal("drained under an open transfer")
	default:
	}
	small := r.grant(o, 2)
	if _, err := r.rawPeer(small); err == nil || CodeOf(err) != events.CodeUnknownRequest {
		t.Errorf("a pull after drain: %v", err)
	}
	for end := false; !end; {
		ty, n, err := readHead(conn, maxChunk)
		if err != nil {
			t.Fatal(err)
		}
		if err := discard(conn, n); err != nil {
			t.Fatal(err)
		}
		end = ty == frameTrailer
	}
	wait(t, "drain", drained)
}

// A later grant ends the transfer of an earlier one.
func TestLaterGrantSupersedes(t *testing.T) {
	r := newBigRig(t, "unix")
	o, _ := r.offer(requestID(1), bigPages)
	slowPull(r, o, 1)
	if _, err := r.pull(r.grant(o, 2), r.reserve(o.RequestID, bigPages)); err != nil {
		t.Fatal(err)
	}
	codes := map[events.Code]bool{codeOf(r.result().Err): true, codeOf(r.result().Err): true}
	if !codes[events.CodeGrantEpoch] || !codes[""] {
		t.Errorf("recorded %v", codes)
	}
	r.idle()
}
