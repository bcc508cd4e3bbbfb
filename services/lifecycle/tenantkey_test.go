package lifecycle

import (
	"encoding/hex"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// under is an admission whose digests are under the key.
func under(k events.DigestKey, id string) *events.Admit {
	a := admit()
	a.TenantKey = k.Fingerprint
	a.PromptDigest = events.Digest(k.Request(id), events.KindPrompt, []byte("prompt"))
	return a
}

// withKeys has a replica read the tenants' keys of the rig.
func (r *rig) withKeys(c *Config) {
	r.t.Helper()
	keys, err := r.ring.TenantKeys(slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	c.TenantKeys = keys
}

func (r *rig) tenantKey(t *testing.T) events.DigestKey {
	t.Helper()
	k, err := r.ring.NewTenantKey(testTenant)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// workFor is the work that the replica would dispatch for an open request now.
func (x *replica) workFor(id string) *events.Work {
	n := x.nodeOf(events.CmdAdmit, id)
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.shard.open[id]
	if e == nil {
		return nil
	}
	return x.workOf(e.r)
}

// The keys of requests, and of their KV, come of the key that they were admitted
// under: through a restart, on another replica, and when the tenant got its key
// later.
func TestTenantKeyDerivation(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	setup := func(c *Config) { r.withKeys(c); c.StateDir = dir }
	x := r.start("lc1", setup)
	i := r.populate()
	cluster := events.DigestKey{Secret: x.cfg.DigestSecret}
	before := newID(t)
	i.gw.did(before, under(cluster, before))

	key := r.tenantKey(t)
	after := newID(t)
	// The replica looks for the key when it meets the fingerprint, if it has not
	// just looked.
	until(t, "the replica has the key", func() bool {
		after = newID(t)
		a := i.gw.do(after, under(key, after))
		return a.Denied == nil
	})
	granted := newID(t)
	i.gw.did(granted, under(key, granted))
	pre := i.p1.prefill()
	i.p1.did(granted, pre)
	grant := i.d1.grant(1)
	if a := i.d1.did(granted, grant); a.KVKey != kvKey(key, granted) || a.KVKey == kvKey(cluster, granted) {
		t.Errorf("the KV's key is not under the tenant's: %s", a.KVKey)
	}
	look := func(x *replica, who string) {
		t.Helper()
		for id, k := range map[string]events.DigestKey{before: cluster, after: key} {
			if w := x.workFor(id); w == nil || w.DigestKey != hex.EncodeToString(k.Request(id)) {
				t.Errorf("%s: the work of a request under key %q has another key: %+v", who, k.Fingerprint, w)
			}
		}
		if a := i.d1.did(granted, grant); a.KVKey != kvKey(key, granted) {
			t.Errorf("%s: the grant that is asked for again has another key", who)
		}
	}
	look(x, "the replica")
	if err := x.stop(); err != nil {
		t.Fatal(err)
	}
	look(r.start("lc1", setup), "after a restart from its snapshot")
	other := r.start("lc2", func(c *Config) { r.withKeys(c) })
	until(t, "the other has read the log", func() bool { return other.caughtUp() })
	look(other, "a replica that reads the whole log")
	r.check()
}

// Gateway and lifecycle with different keys are told which of them lacks what.
func TestTenantKeyMismatch(t *testing.T) {
	for name, tt := range map[string]struct {
		lifecycle, gateway bool
		want               string
	}{
		"lifecycle lacks it":   {false, true, "this replica has none; copy the tenant's key file, keys/tenants/" + testTenant + ".key, to its machine"},
		"the gateway lacks it": {true, false, "the gateway digests under the cluster's secret"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			key := events.NewTenantKey(make([]byte, 32))
			if tt.lifecycle {
				r.tenantKey(t)
			}
			r.start("lc1", r.withKeys)
			i := r.populate()
			if !tt.gateway {
				key = events.DigestKey{}
			}
			id := newID(t)
			a := i.gw.do(id, under(key, id))
			if a.Denied == nil || a.Denied.Code != events.CodeTenantKey || !strings.Contains(a.Denied.Message, tt.want) {
				t.Fatalf("%+v", a.Denied)
			}
			r.check()
		})
	}
}

// An erased tenant is admitted under no key but one that was made since, by no
// replica, and its key is used no more, though its file may be there still.
func TestTenantErased(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	key := r.tenantKey(t)
	setup := func(c *Config) { r.withKeys(c); c.StateDir = dir }
	a, b := r.start("lc1", setup), r.start("lc2", r.withKeys)
	i := r.populate()
	op := r.party(keyring.Operator)
	open := newID(t)
	i.gw.did(open, under(key, open))
	ready := newID(t)
	i.gw.did(ready, under(key, ready))
	i.p1.did(ready, i.p1.prefill())

	erase := &events.Erase{TenantKey: key.Fingerprint, By: "alice"}
	first := op.did(testTenant, erase)
	if again := op.did(testTenant, erase); again.Position != first.Position {
		t.Errorf("the same order was recorded twice: %s and %s", first.Position, again.Position)
	}
	if d := op.do(testTenant, &events.Erase{TenantKey: key.Fingerprint, By: "bob"}).Denied; d == nil || d.Code != events.CodeIllegalState {
		t.Errorf("erased twice: %+v", d)
	}
	refused := func(k events.DigestKey) {
		t.Helper()
		id := newID(t)
		got := i.gw.did(id, under(k, id))
		if got.Error == nil || got.Error.Code != events.CodeTenantErased || got.Error.Status != 403 {
			t.Fatalf("key %q: %+v %+v", k.Fingerprint, got, got.Error)
		}
	}
	gone := func(x *replica) {
		t.Helper()
		until(t, "the replica knows", func() bool { return x.roster.gone(testTenant, key.Fingerprint) })
		for range 8 {
			refused(key)
			refused(events.DigestKey{Secret: x.cfg.DigestSecret})
		}
		if x.keys.Of(testTenant).Fingerprint != "" {
			t.Error("the key is still in use")
		}
		if w := x.workFor(open); w != nil {
			t.Error("work is dispatched under a key that is erased")
		}
	}
	gone(a)
	gone(b)
	if _, err := i.d1.try(t.Context(), ready, i.d1.grant(1)); err == nil || !strings.Contains(err.Error(), string(events.CodeTenantKey)) {
		t.Errorf("a grant under the erased key: %v", err)
	}
	if _, err := os.Stat(r.ring.TenantKeyPath(testTenant)); err != nil {
		t.Fatal("the test wants the file to be there: ", err)
	}
	b.kill()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a = r.start("lc1", setup)
	gone(a)

	if err := r.ring.DestroyTenantKey(testTenant, key.Fingerprint); err != nil {
		t.Fatal(err)
	}
	fresh := r.tenantKey(t)
	until(t, "the tenant is served again", func() bool {
		id := newID(t)
		return i.gw.do(id, under(fresh, id)).Denied == nil
	})
	refused(key)
	id := newID(t)
	if got := i.gw.did(id, under(fresh, id)); got.Type != events.TypeAdmitted {
		t.Errorf("%+v", got)
	}
	r.check()
}
