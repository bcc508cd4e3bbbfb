package audit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

var someHash = events.Hash([]byte("a line"))

func TestMarkersAreCanonical(t *testing.T) {
	digest := strings.Repeat("5f", 32)
	head := `{"partition":0,"seq":17,"head":"` + someHash + `"}`
	for _, s := range []string{
		`{"pdgate_gap":{"from":7,"to":9}}`,
		`{"pdgate_foreign":{"seq":7,"sha256":"` + digest + `"}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[]}}`,
		`{"pdgate_epoch":{"seq":7,"line":3,"tenant":"acme","chains":[{"partition":-1,"seq":1,"head":"` + someHash + `"},` + head + `]}}`,
	} {
		l, err := ParseLeaf([]byte(s))
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		var b []byte
		switch {
		case l.Gap != nil:
			b = l.Gap.Append(nil)
		case l.Foreign != nil:
			b = l.Foreign.Append(nil)
		case l.Epoch != nil:
			b = l.Epoch.Append(nil)
		}
		if string(b) != s {
			t.Errorf("%s: written as %s", s, b)
		}
	}
	for _, s := range []string{
		`{"pdgate_gap":{"from":7,"to":9}} `, `{"pdgate_gap": {"from":7,"to":9}}`, `{"pdgate_gap":{"to":9,"from":7}}`,
		`{"pdgate_gap":{"from":7,"from":7,"to":9}}`, `{"pdgate_gap":{"From":7,"to":9}}`, `{"pdgate_gap":{"from":7,"to":9,"x":1}}`,
		`{"pdgate_gap":{"from":0,"to":9}}`, `{"pdgate_gap":{"from":9,"to":7}}`, `{"pdgate_gap":null}`, `{"pdgate_x":{}}`, `{"pdgate_`,
		`{"pdgate_gap":{"from":7,"to":9},"pdgate_foreign":{"seq":7,"sha256":"` + digest + `"}}`,
		`{"pdgate_foreign":{"seq":0,"sha256":"` + digest + `"}}`, `{"pdgate_foreign":{"seq":1,"sha256":"` + digest[1:] + `"}}`,
		`{"pdgate_foreign":{"seq":1,"sha256":"` + strings.ToUpper(digest) + `"}}`,
		`{"pdgate_epoch":{"seq":0,"line":0,"tenant":"acme","chains":[]}}`, `{"pdgate_epoch":{"seq":7,"line":-1,"tenant":"acme","chains":[]}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"","chains":[]}}`, `{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":null}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[` + head + `,` + head + `]}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[{"partition":-2,"seq":1,"head":"` + someHash + `"}]}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[{"partition":0,"seq":0,"head":"` + someHash + `"}]}}`,
		`{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[{"partition":0,"seq":1,"head":"` + someHash[1:] + `"}]}}`,
	} {
		if _, err := ParseLeaf([]byte(s)); !errors.Is(err, ErrLeaf) {
			t.Errorf("%s: %v", s, err)
		}
	}
	many := make([]Head, MaxChains+1)
	for i := range many {
		many[i] = Head{i, 1, someHash}
	}
	if _, err := ParseLeaf((&Epoch{Seq: 1, Tenant: "a", Chains: many}).Append(nil)); !errors.Is(err, ErrLeaf) {
		t.Errorf("an epoch of too many chains: %v", err)
	}
	if _, err := ParseLeaf(make([]byte, MaxLeaf+1)); err == nil {
		t.Error("a leaf that no tile can hold")
	}
	for _, s := range []string{"", "{}", "x", `{"specversion":"1.0"}`} {
		if _, err := ParseLeaf([]byte(s)); err == nil {
			t.Errorf("%q was taken for an event", s)
		}
	}
}

func TestEpochsFitLeaves(t *testing.T) {
	heads := make([]Head, 2*MaxChains)
	for i := range heads {
		heads[i] = Head{2*MaxChains - 1 - i, 1<<64 - 1, someHash}
	}
	tenant := strings.Repeat("t", 64)
	es := NewEpochs(events.Position{Seq: 1<<64 - 1, Line: 1 << 30}, tenant, heads)
	if len(es) != 3 || len(es[2].Chains) != 0 {
		t.Fatalf("%d leaves", len(es))
	}
	next := 0
	for _, e := range es {
		if _, err := ParseLeaf(e.Append(nil)); err != nil {
			t.Error(err)
		}
		for _, h := range e.Chains {
			if h.Partition != next {
				t.Fatalf("partition %d, want %d", h.Partition, next)
			}
			next++
		}
	}
	if NewEpochs(events.Position{Seq: 1}, "no tenant's name", nil) != nil {
		t.Error("an epoch of a tenant that cannot be")
	}
	a, b := NewForeign(1, "pdgate.log.0", []byte("x")), NewForeign(1, "pdgate.log.", []byte("0x"))
	if _, err := ParseLeaf(a.Append(nil)); err != nil || *a == *b {
		t.Errorf("foreign: %v, %v", err, b)
	}
}

func TestFilter(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &Leaf{Event: &events.Event{Subject: "r1", Tenant: "acme", Time: at, Data: &events.RequestAdmitted{Model: "m1"}}}
	other := &Leaf{Event: &events.Event{Subject: "r1", Tenant: "acme", Time: at, Data: &events.RequestReleased{}}}
	for _, c := range []struct {
		f        Filter
		excludes bool
	}{
		{Filter{}, false}, {Filter{Tenant: "acme"}, false}, {Filter{Tenant: "globex"}, true}, {Filter{Request: "r1"}, false},
		{Filter{Request: "r2"}, true}, {Filter{Model: "m1"}, false}, {Filter{Model: "m2"}, true},
		{Filter{Since: at}, false}, {Filter{Since: at.Add(1)}, true}, {Filter{Until: at.Add(1)}, false}, {Filter{Until: at}, true},
	} {
		if c.f.Excludes(l) != c.excludes {
			t.Errorf("%+v: excludes is not %v", c.f, c.excludes)
		}
		if c.f.Excludes(&Leaf{Gap: &Gap{1, 1}}) || c.f.Excludes(&Leaf{Foreign: &Foreign{}}) {
			t.Errorf("%+v: hides what is amiss", c.f)
		}
	}
	if (Filter{Model: "m2"}).Excludes(other) {
		t.Error("an event that names no model was excluded by one")
	}
	for _, m := range []events.Data{&events.RequestRejected{Model: "m"}, &events.WorkerJoined{Model: "m"}, &events.ModelQuarantined{Model: "m"}, &events.ModelRestored{Model: "m"}, &events.CanaryRan{Model: "m"}} {
		if !(Filter{Model: "x"}).Excludes(&Leaf{Event: &events.Event{Data: m}}) {
			t.Errorf("%T: its model was not looked at", m)
		}
	}
	epoch := &Leaf{Epoch: &Epoch{Tenant: "acme"}}
	if (Filter{}).Excludes(epoch) || (Filter{Tenant: "acme"}).Excludes(epoch) || !(Filter{Tenant: "globex"}).Excludes(epoch) || !(Filter{Tenant: "acme", Model: "m"}).Excludes(epoch) {
		t.Error("epoch leaves belong to the filter of their tenant")
	}
}

func TestReceipt(t *testing.T) {
	r := Receipt{events.Position{Seq: 12, Line: 3}, someHash}
	if got, err := ParseReceipt(r.String()); err != nil || got != r {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", ";", "12.3", "12.3;", ";" + someHash, "0.0;" + someHash, "12;" + someHash, "12.3;denied", "12.3;" + someHash + "=", "12.3;" + someHash[1:]} {
		if _, err := ParseReceipt(s); !errors.Is(err, ErrReceipt) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func hashOf(line []byte) string { return events.Hash(line) }
