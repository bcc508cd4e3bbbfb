package lifecycle

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/statemachine"
)

// memory is all that a replica's folded state consists of, in a form to compare.
type memory struct {
	Applied  map[int]uint64
	Requests map[string]*statemachine.Request
	Since    map[string]time.Time
	Open     []string
	Tenants  map[int]map[string]chain
	Ops      *statemachine.Ops
	Waiting  map[string]int
	Timers   map[int]int
	First    map[string]uint64
}

func (x *replica) memory() memory {
	m := memory{Applied: map[int]uint64{}, Requests: map[string]*statemachine.Request{}, Since: map[string]time.Time{}, Tenants: map[int]map[string]chain{}, Waiting: x.counts.waiting(), Timers: map[int]int{}, First: map[string]uint64{}}
	for _, n := range x.nodes {
		n.mu.Lock()
		m.Applied[n.partition] = n.loop.Applied()
		m.Tenants[n.partition] = maps.Clone(n.shard.tenants)
		m.Timers[n.partition] = n.shard.wheel.size
		for _, all := range []map[string]*entry{n.shard.open, n.shard.closed} {
			for id, e := range all {
				m.Requests[id], m.Since[id], m.First[id] = e.r.Clone(), e.since, e.first
			}
		}
		m.Open = slices.AppendSeq(m.Open, maps.Keys(n.shard.open))
		n.mu.Unlock()
	}
	slices.Sort(m.Open)
	x.opsNode.mu.Lock()
	m.Applied[-1], m.Ops = x.opsNode.loop.Applied(), x.opsNode.ops.ops.Clone()
	x.opsNode.mu.Unlock()
	return m
}

// traffic leaves requests in every state behind.
func (i *installation) traffic(n int) {
	for k := range n {
		id := newID(i.t)
		switch k % 6 {
		case 0:
			i.lifecycle(id)
		case 1:
			i.admitted(id)
		case 2:
			i.admitted(id)
			i.p1.did(id, i.p1.prefill())
			i.d1.did(id, i.d1.grant(1))
		case 3:
			i.admitted(id)
			pre := i.p1.prefill()
			i.p1.did(id, pre)
			i.d1.did(id, i.d1.grant(1))
			i.d1.did(id, i.d1.transfer(id, pre, 1))
		case 4:
			i.admitted(id)
			i.p1.did(id, i.p1.prefill())
			i.gw.did(id, &events.Cancel{Reason: events.CodeClientGone})
			i.d1.do(id, i.d1.grant(1)) // denied
		case 5:
			a := admit()
			a.PromptTokens = 70_000
			i.gw.did(id, a)
		}
	}
}

// A snapshot and the log after it give what the whole log gives, and so does
// a replica that had it all in memory.
func TestSnapshotAndTail(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	withState := func(c *Config) { c.StateDir = dir }
	a := r.start("lc1", withState)
	i := r.populate()
	i.traffic(30)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	// While it is away, another replica goes on.
	b := r.start("lc2", nil)
	i.traffic(18)

	a = r.start("lc1", withState)
	if !strings.Contains(r.logs.String(), "snapshot is loaded") {
		t.Error("the snapshot was not loaded")
	}
	full := r.start("lc3", nil)
	until(t, "all have the same log", func() bool {
		return a.followed.Load() == b.followed.Load() && full.followed.Load() == b.followed.Load()
	})
	want := b.memory()
	if len(want.Open) == 0 || len(want.Requests) < 48 {
		t.Fatalf("there is little to compare: %d requests, %d open", len(want.Requests), len(want.Open))
	}
	if diff := cmp.Diff(want, full.memory(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("full replay (-memory +replay):\n%s", diff)
	}
	if diff := cmp.Diff(want, a.memory(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("snapshot and tail (-memory +snapshot):\n%s", diff)
	}
	// The restored replica answers repeats, and goes on.
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if err := full.stop(); err != nil {
		t.Fatal(err)
	}
	i.traffic(6)
	r.check()
}

// A snapshot that is damaged, of another key or another format is
// not used: the log is read instead, and one line says so.
func TestBadSnapshots(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	a := r.start("lc1", func(c *Config) { c.StateDir = dir })
	i := r.populate()
	i.traffic(12)
	want := a.memory()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, snapshotName))
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.ring.LogKey()
	if err != nil {
		t.Fatal(err)
	}
	body := good[:len(good)-sha256.Size]
	resealed := func(key, body []byte) []byte {
		m := newSeal(key)
		m.Write(body)
		return m.Sum(bytes.Clone(body))
	}
	rewritten := func(change func(*snapshotHead, *snapshotState)) []byte {
		file, err := openSnapshot(filepath.Join(dir, snapshotName), key)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		st, err := file.state()
		if err != nil {
			t.Fatal(err)
		}
		change(&file.head, st)
		var b bytes.Buffer
		if err := sealed(&b, key, func(f *form) error {
			formHead(f, &file.head)
			number(f, &st.opsApplied)
			formOps(f, &st.ops)
			for i := range st.partitions {
				formPartition(f, &st.partitions[i])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	reformatted := bytes.Clone(body)
	reformatted[len(snapshotMagic)]++
	for name, c := range map[string]struct {
		file []byte
		used bool
	}{
		"good":           {good, true},
		"written again":  {rewritten(func(*snapshotHead, *snapshotState) {}), true},
		"empty":          {nil, false},
		"cut":            {good[:len(good)/2], false},
		"cut and sealed": {resealed(key, body[:len(body)/2]), false},
		"longer":         {resealed(key, append(bytes.Clone(body), 0)), false},
		"flipped":        {flip(len(body) / 2), false},
		"flipped seal":   {flip(len(good) - 1), false},
		"another key":    {resealed([]byte("another key of some length"), body), false},
		"another format": {resealed(key, reformatted), false},
		"another file":   {resealed(key, []byte("{}")), false},
		"partitions": {rewritten(func(h *snapshotHead, st *snapshotState) {
			h.partitions--
			st.partitions = st.partitions[1:]
		}), false},
		"misplaced": {rewritten(func(_ *snapshotHead, st *snapshotState) {
			st.partitions[0], st.partitions[1] = st.partitions[1], st.partitions[0]
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, snapshotName), c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			before := len(r.logs.String())
			x := r.start("lc2", func(c *Config) { c.StateDir = dir })
			logged := r.logs.String()[before:]
			if used := strings.Contains(logged, "snapshot is loaded"); used != c.used {
				t.Errorf("used: %v, want %v", used, c.used)
			}
			if n := strings.Count(logged, "snapshot is not used"); n != 1 && !c.used {
				t.Errorf("%d lines say that it is not used", n)
			}
			if diff := cmp.Diff(want, x.memory(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if err := x.stop(); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// What crashes in the middle of a snapshot leave is one file, and the next
// snapshot takes it away.
func TestSnapshotAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), snapshotName)
	if err := os.WriteFile(path+".tmp", []byte("half of a much longer snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := func(w io.Writer) error {
		_, err := io.WriteString(w, "whole")
		return err
	}
	var names sync.Mutex
	if err := writeAtomic(path, path+".older", &names, whole); err != nil {
		t.Fatal(err)
	}
	if err := writeAtomic(path, path+".older", &names, func(w io.Writer) error { return errors.Join(whole(w), io.ErrShortWrite) }); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("half a file: %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != "whole" {
		t.Errorf("%q, %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Ended requests leave memory, and a late command for one of them is refused by
// the age of its id, never taken for a new request.
func TestEviction(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	old, small, held := newID(t), newID(t), newID(t)
	i.lifecycle(old)
	i.lifecycle(small)
	i.admitted(held)
	pre := i.p1.prefill()
	i.p1.did(held, pre)
	i.gw.did(held, &events.Cancel{Reason: events.CodeClientGone})

	// Above the bound, a request shrinks to its id: still known to have ended.
	n := x.nodeOf(events.CmdAdmit, small)
	n.mu.Lock()
	for len(n.shard.closed) <= maxClosed+1 { // two too many: the other request may be the older one
		id := newID(t)
		n.shard.closed[id] = &entry{r: &statemachine.Request{ID: id, State: events.Decoded}}
		n.shard.endings = append(n.shard.endings, id)
	}
	n.mu.Unlock()
	until(t, "the oldest have shrunk", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.shard.closed) <= maxClosed && n.shard.closed[small] == nil
	})
	if a := i.gw.do(small, admit()); a.Denied == nil || a.Denied.Code != events.CodeStaleRequestID {
		t.Errorf("a request that shrank to its id is admitted again: %+v", a)
	}

	// Five minutes on, nothing is left of what ended; what holds pages stays.
	later := time.Now().Add(retain + time.Minute)
	for _, n := range x.nodes {
		n.mu.Lock()
		n.shard.evict(later)
		if len(n.shard.closed) > 0 || len(n.shard.gone) > 0 || len(n.shard.endings) > 0 || len(n.shard.going) > 0 {
			t.Errorf("partition %d still holds %d whole and %d small", n.partition, len(n.shard.closed), len(n.shard.gone))
		}
		n.mu.Unlock()
	}
	if v := x.view(held); v == nil || len(v.Held) != 1 {
		t.Errorf("a request whose pages are held is forgotten: %+v", v)
	}
	i.p1.did(held, i.p1.release(pre.Pages))

	// Seen from the future, every command for it is refused.
	n = x.nodeOf(events.CmdAdmit, old)
	ms := time.Now().Add(-retain - time.Minute).UnixMilli()
	stale := old
	for {
		// The same partition, an id of back then.
		stale = uuidAt(t, ms)
		if events.PartitionOf(stale, testPartitions) == n.partition {
			break
		}
	}
	for _, c := range []struct {
		p    *party
		d    events.CommandData
		code events.Code
	}{
		{i.gw, admit(), events.CodeStaleRequestID},
		{i.p1, i.p1.prefill(), events.CodeUnknownRequest},
		{i.d1, i.d1.output(), events.CodeUnknownRequest},
		{i.gw, &events.Cancel{Reason: events.CodeClientGone}, events.CodeUnknownRequest},
	} {
		a := c.p.do(stale, c.d)
		if a.Denied == nil || a.Denied.Code != c.code {
			t.Errorf("%s: %+v, want denied %s", c.d.CommandType(), a, c.code)
		}
		if again := c.p.do(stale, c.d); again.ID != a.ID {
			t.Errorf("%s was recorded twice", c.d.CommandType())
		}
	}
	op := r.party(keyring.Operator)
	until(t, "the read side has it", func() bool {
		v, err := op.Get(t.Context(), old)
		return err == nil && v.State == events.Decoded
	})
	r.check()
}

func uuidAt(t *testing.T, ms int64) string {
	id := newID(t)
	h := []byte("00000000-0000")
	const digits = "0123456789abcdef"
	for i, shift := 0, 44; i < len(h); i++ {
		if h[i] == '-' {
			continue
		}
		h[i] = digits[ms>>shift&15]
		shift -= 4
	}
	return string(h) + id[13:]
}
