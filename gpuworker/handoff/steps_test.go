package handoff

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// steps takes a transfer to its end, with meddle before each of the owner's
// steps, of which there are a page's copy, its sending, and the end.
func (r *rig) steps(g *events.Grant, into *kvpool.Allocation, meddle func(step int)) (*Pulled, error) {
	in, o, err := r.puller.Begin(Pull{RequestID: into.Owner(), Grant: r.sign(g), Key: kvKey, Into: into}, []byte("nonce"))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := r.server.Begin(o)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if err := in.Header(out.Header()); err != nil {
		return nil, err
	}
	for step := 0; ; step++ {
		meddle(step)
		more, err := out.Copy()
		if err != nil {
			return nil, err
		}
		if !more {
			trailer, err := out.End()
			if err != nil {
				return nil, err
			}
			return in.End(trailer)
		}
		step++
		meddle(step)
		first, body, err := out.Send()
		if err != nil {
			return nil, err
		}
		if err := in.Pages(first, body); err != nil {
			return nil, err
		}
	}
}

func chunk(bytes int) option { return func(c *Config, _ *PullerConfig) { c.ChunkBytes = bytes } }

// A transfer in steps is the one on the wire: the same bytes, and the same
// account of them.
func TestStepsEqualTheWire(t *testing.T) {
	const pages = 3
	r := newRig(t, "unix", 16, 512, chunk(512))
	a, bytesA := r.offer(requestID(1), pages)
	intoA := r.reserve(requestID(1), pages)
	stepped, err := r.steps(r.grant(a, 1), intoA, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytesA, r.content(intoA, pages)) {
		t.Error("other bytes arrived")
	}
	g := r.grant(a, 2)
	wired, err := r.pull(g, r.reserve(requestID(1), pages))
	if err != nil {
		t.Fatal(err)
	}
	r.result()
	if diff := cmp.Diff(wired, stepped, cmpopts.IgnoreFields(Pulled{}, "Duration", "Grant")); diff != "" {
		t.Errorf("steps differ from the wire (-wire +steps):\n%s", diff)
	}
	r.idle()
}

// Between two steps anything may happen: what ends a transfer on the wire ends it
// here, at every step, and with the same code.
func TestStepsAreChecked(t *testing.T) {
	const pages, all = 2, 5 // steps
	for _, c := range []struct {
		name   string
		meddle func(r *rig, id string, a *kvpool.Allocation)
		want   events.Code
	}{
		{"lease", func(r *rig, _ string, _ *kvpool.Allocation) { r.ownerClock.add(testLease) }, events.CodeLeaseOver},
		{"revoked", func(r *rig, id string, _ *kvpool.Allocation) { r.server.Revoke(id) }, events.CodeUnknownRequest},
		{"freed", func(r *rig, _ string, a *kvpool.Allocation) { r.ownerPool.Free(a) }, events.CodePageGeneration},
	} {
		t.Run(c.name, func(t *testing.T) {
			for at := range all {
				r := newRig(t, "unix", 8, 512, chunk(512))
				id := requestID(at)
				o, _ := r.offer(id, pages)
				_, err := r.steps(r.grant(o, 1), r.reserve(id, pages), func(step int) {
					if step == at {
						c.meddle(r, id, o.Alloc)
					}
				})
				if err == nil || CodeOf(err) != c.want {
					t.Errorf("step %d: %v, want %s", at, err, c.want)
				}
				r.idle()
			}
		})
	}
	r := newRig(t, "unix", 8, 512)
	o, _ := r.offer(requestID(1), pages)
	opening, err := NewOpening(r.sign(r.grant(o, 1)), testKey("thief"), []byte("n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.server.Begin(opening); CodeOf(err) != events.CodeForbidden {
		t.Errorf("a stolen grant: %v", err)
	}
	r.ownerClock.add(time.Hour)
	if _, err := r.steps(r.grant(o, 1), r.reserve(requestID(1), pages), func(int) {}); CodeOf(err) != events.CodeLeaseOver {
		t.Errorf("after the lease: %v", err)
	}
}
