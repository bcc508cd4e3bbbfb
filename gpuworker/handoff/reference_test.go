package handoff

import (
	"bytes"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

var testReference = []byte(`{"remote_block_ids": [[1, 2]], "remote_engine_id":"e"}`)

// refer offers an engine's reference.
func (r *rig) refer(id string, pages int) Offer {
	r.t.Helper()
	a, err := r.ownerPool.Alloc(id, pages)
	if err != nil {
		r.t.Fatal(err)
	}
	o := Offer{RequestID: id, Model: "m", Tenant: "acme", Alloc: a, PromptTokens: pages * 16, Key: kvKey,
		Digest: kvpool.Digest(kvpool.Sum(kvKey, 0, testReference)), Lease: epochStart.Add(testLease), Reference: testReference}
	if err := r.server.Offer(o); err != nil {
		r.t.Fatal(err)
	}
	return o
}

func (r *rig) grantReference(o Offer, epoch int) *events.Grant {
	g := r.grant(o, epoch)
	g.KVBytes = int64(len(o.Reference))
	return g
}

// A reference arrives byte for byte, with what is left of its lease by the
// owner's clock, whatever the puller's clock says.
func TestReference(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 16, 0)
		o := r.refer(requestID(1), 3)
		r.ownerClock.add(10 * time.Second)
		r.pullClock.add(-time.Hour)
		got, err := r.pull(r.grantReference(o, 1), r.reserve(requestID(1), 4))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Reference, testReference) || got.KVDigest != o.Digest.String() || got.KVBytes != int64(len(testReference)) {
			t.Errorf("pulled %+v", got)
		}
		if want := r.pullClock.Now().Add(testLease - 10*time.Second); !got.Lease.Equal(want) {
			t.Errorf("lease until %v, want %v", got.Lease, want)
		}
		r.result()
		r.idle()
	})
}

// A reference leaves once, whatever becomes of it and however many grants come.
func TestReferenceLeavesOnce(t *testing.T) {
	r := newRig(t, "unix", 16, 0)
	o := r.refer(requestID(1), 3)
	into := r.reserve(requestID(1), 3)
	// The first puller goes away with it before the trailer.
	conn, err := r.rawPeer(r.grantReference(o, 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readFrame(conn, frameHeader); err != nil {
		t.Fatal(err)
	}
	conn.cut()
	r.result()
	if _, err := r.pull(r.grantReference(o, 2), into); codeOf(err) != events.CodeGrantUsed {
		t.Errorf("the second grant: %v", err)
	}
	if _, err := r.steps(r.grantReference(o, 3), into, func(int) {}); codeOf(err) != events.CodeGrantUsed {
		t.Errorf("the third grant: %v", err)
	}
	r.idle()
	// Without the guard it leaves again.
	r = newRig(t, "unix", 16, 0, guards(Guards{NoOnce: true}))
	o, into = r.refer(requestID(1), 3), r.reserve(requestID(1), 3)
	for epoch := range 2 {
		if _, err := r.pull(r.grantReference(o, epoch+1), into); err != nil {
			t.Errorf("pull %d without the guard: %v", epoch+1, err)
		}
	}
}

// What arrives is what was prefilled, or nothing: another reference of the same
// length has another sum.
func TestReferenceIsCompared(t *testing.T) {
	meddled := func(r *rig) (*Pulled, error) {
		o := r.refer(requestID(1), 3)
		r.server.mu.Lock()
		r.server.offers[o.RequestID].Reference = bytes.Replace(testReference, []byte("[1, 2]"), []byte("[7, 8]"), 1)
		r.server.mu.Unlock()
		return r.pull(r.grantReference(o, 1), r.reserve(requestID(1), 3))
	}
	for name, g := range map[string]Guards{
		"all": {}, "the owner's": {NoPullDigest: true}, "the puller's": {NoDigest: true},
	} {
		if _, err := meddled(newRig(t, "unix", 16, 0, guards(g))); codeOf(err) != events.CodeDigestMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := meddled(newRig(t, "unix", 16, 0, guards(Guards{NoDigest: true, NoPullDigest: true})))
	if err != nil || bytes.Equal(got.Reference, testReference) {
		t.Errorf("without the guards: %v", err)
	}
}

// The owner's clock decides; past the lease nothing leaves.
func TestReferenceLease(t *testing.T) {
	r := newRig(t, "unix", 16, 0)
	o := r.refer(requestID(1), 3)
	r.ownerClock.add(testLease)
	if _, err := r.pull(r.grantReference(o, 1), r.reserve(requestID(1), 3)); codeOf(err) != events.CodeLeaseOver {
		t.Errorf("past the lease: %v", err)
	}
	if err := r.server.Offer(Offer{RequestID: requestID(2), Alloc: o.Alloc, PromptTokens: 1, Lease: o.Lease}); err == nil {
		t.Error("an offer without a reference is taken")
	}
}
