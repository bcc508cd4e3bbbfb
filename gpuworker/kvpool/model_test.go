package kvpool

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdgate/pdgate/events"
)

// modelAlloc is what the model knows of an allocation: no runs, no counters of
// the pool, only who uses it and what it must hold.
type modelAlloc struct {
	a       *Allocation
	owner   string
	content uint64
	freed   bool
	done    <-chan struct{}
	pins    []*Pin
	writes  []*Write
}

func (m *modelAlloc) uses() int   { return len(m.pins) + len(m.writes) }
func (m *modelAlloc) gone() bool  { return m.freed && m.uses() == 0 }
func (m *modelAlloc) bytes() int  { return m.a.Pages() * 32 }
func (m *modelAlloc) held() bool  { return !m.freed }
func (m *modelAlloc) drain() bool { return m.freed && m.uses() > 0 }

// TestModel runs random histories against a model in which an allocation is a
// set of pages and a free is a wish. rapid prints the seed of a failure.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "pages")
		p, err := New(Config{Pages: size, PageBytes: 32, Epoch: testEpoch})
		if err != nil {
			t.Fatal(err)
		}
		var all []*modelAlloc
		lastGen := uint64(0)
		pick := func(t *rapid.T, ok func(*modelAlloc) bool) *modelAlloc {
			var can []*modelAlloc
			for _, m := range all {
				if ok(m) {
					can = append(can, m)
				}
			}
			if len(can) == 0 {
				t.Skip("no candidate")
			}
			return rapid.SampledFrom(can).Draw(t, "allocation")
		}
		inUse := func() (n int) {
			for _, m := range all {
				if !m.gone() {
					n += m.a.Pages()
				}
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, size).Draw(t, "n")
				owner := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "owner")
				a, err := p.Alloc(owner, n)
				if fits := n <= size-inUse(); fits != (err == nil) || !fits && !errors.Is(err, ErrFull) {
					t.Fatalf("%d pages of %d, %d in use: %v", n, size, inUse(), err)
				}
				if err != nil {
					return
				}
				if a.Pages() != n || a.Generation() <= lastGen {
					t.Fatalf("%d pages, generation %d after %d", a.Pages(), a.Generation(), lastGen)
				}
				lastGen = a.Generation()
				all = append(all, &modelAlloc{a: a, owner: owner, content: Poison})
			},
			"free": func(t *rapid.T) {
				m := pick(t, func(*modelAlloc) bool { return true })
				done := p.Free(m.a)
				if !m.freed {
					m.freed, m.done = true, done
				} else if done != m.done {
					t.Fatal("the second free has its own channel")
				}
			},
			"pin": func(t *rapid.T) {
				m := pick(t, func(*modelAlloc) bool { return true })
				pin, err := p.Pin(m.owner, testEpoch, m.a.Runs())
				if m.held() != (err == nil) || err != nil && code(err) != events.CodePageGeneration {
					t.Fatalf("freed %v: %v", m.freed, err)
				}
				if err == nil {
					m.pins = append(m.pins, pin)
				}
			},
			"forged pin": func(t *rapid.T) {
				m := pick(t, func(*modelAlloc) bool { return true })
				runs := m.a.Runs()
				owner, epoch := m.owner, uint64(testEpoch)
				switch rapid.IntRange(0, 3).Draw(t, "how") {
				case 0:
					owner += "x"
				case 1:
					epoch++
				case 2:
					runs[0].Generation += rapid.SampledFrom([]uint64{1, 1<<64 - 1}).Draw(t, "by")
				case 3:
					runs[0].Count = uint32(size) + 1
				}
				if _, err := p.Pin(owner, epoch, runs); code(err) == "" {
					t.Fatalf("forged pin: %v", err)
				}
			},
			"gather": func(t *rapid.T) {
				m := pick(t, func(m *modelAlloc) bool { return len(m.pins) > 0 })
				dst := make([]byte, m.bytes())
				if err := m.pins[0].Gather(dst, 0, m.a.Pages()); err != nil || !only(dst, m.content) {
					t.Fatalf("%v: %x, want %x", err, words(dst), m.content)
				}
				if err := m.pins[0].Check(); m.freed != (err != nil) {
					t.Fatalf("freed %v: %v", m.freed, err)
				}
			},
			"release": func(t *rapid.T) {
				m := pick(t, func(m *modelAlloc) bool { return len(m.pins) > 0 })
				m.pins[0].Release()
				m.pins = m.pins[1:]
			},
			"begin write": func(t *rapid.T) {
				m := pick(t, func(*modelAlloc) bool { return true })
				w, err := p.BeginWrite(m.a)
				if m.held() != (err == nil) {
					t.Fatalf("freed %v: %v", m.freed, err)
				}
				if err == nil {
					m.writes = append(m.writes, w)
				}
			},
			"scatter": func(t *rapid.T) {
				m := pick(t, func(m *modelAlloc) bool { return len(m.writes) > 0 })
				b := byte(rapid.IntRange(0, 255).Draw(t, "byte"))
				src := make([]byte, m.bytes())
				for i := range src {
					src[i] = b
				}
				err := m.writes[0].Scatter(0, src)
				if m.held() != (err == nil) {
					t.Fatalf("freed %v: %v", m.freed, err)
				}
				if err == nil {
					m.content = words(src)[0]
				}
			},
			"end write": func(t *rapid.T) {
				m := pick(t, func(m *modelAlloc) bool { return len(m.writes) > 0 })
				m.writes[0].End()
				m.writes = m.writes[1:]
			},
			"": func(t *rapid.T) {
				if bad := compare(p, all); bad != "" {
					t.Fatal(bad)
				}
			},
		})
		// Nothing leaks: when all uses end and all is freed, all of it is free.
		for _, m := range all {
			p.Free(m.a)
			for _, pin := range m.pins {
				pin.Release()
			}
			for _, w := range m.writes {
				w.End()
			}
		}
		if s := p.Stats(); s.Free != size || s.Pinned != 0 || len(p.free.spans) != 1 {
			t.Fatalf("%+v, %d spans", s, len(p.free.spans))
		}
	})
}

// compare says where the pool differs from the model.
func compare(p *Pool, all []*modelAlloc) string {
	want := Stats{Pages: len(p.pages), Free: len(p.pages), DoubleFrees: p.Stats().DoubleFrees}
	holder := map[uint32]string{}
	for _, m := range all {
		if m.freed && isClosed(m.done) != m.gone() {
			return fmt.Sprintf("freed with %d uses, done %v", m.uses(), isClosed(m.done))
		}
		if m.gone() {
			continue
		}
		n := m.a.Pages()
		want.Free -= n
		if m.drain() {
			want.Draining += n
		} else {
			want.Held += n
		}
		if len(m.pins) > 0 {
			want.Pinned += n
		}
		for _, r := range m.a.Runs() {
			for i := r.Start; i < r.Start+r.Count; i++ {
				if holder[i] != "" {
					return fmt.Sprintf("page %d has two holders", i)
				}
				holder[i] = m.owner
			}
		}
		for i := range n {
			for _, w := range m.a.Page(i) {
				if w != m.content {
					return fmt.Sprintf("page %d holds %x, want %x", i, w, m.content)
				}
			}
		}
	}
	if got := p.Stats(); got != want {
		return fmt.Sprintf("%+v, want %+v", got, want)
	}
	for _, pi := range p.Snapshot() {
		if pi.Owner != holder[pi.Page] || (pi.Owner == "") != (pi.State == StateFree) {
			return fmt.Sprintf("%+v, want owner %q", pi, holder[pi.Page])
		}
	}
	if n, err := p.Audit(); n != 0 || err != nil {
		return fmt.Sprintf("%d dirty words in free pages, %v", n, err)
	}
	return ""
}

// The free list against a set of pages: right contents, joined spans, as few
// spans as possible.
func TestFreeListModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 24
		var f freeList
		free := map[int]bool{}
		for i := range size {
			if rapid.Bool().Draw(t, "free") {
				f.put(span{i, 1})
				free[i] = true
			}
		}
		for range 10 {
			n := rapid.IntRange(1, size).Draw(t, "n")
			if n > len(free) {
				continue
			}
			fewest := fewestSpans(f.spans, n)
			if fewest > 1 {
				if got, ok := f.take(n, fewest-1); ok || f.pages != len(free) {
					t.Fatalf("%v above the limit, %d left", got, f.pages)
				}
			}
			got, ok := f.take(n, fewest)
			if !ok || len(got) != fewest {
				t.Fatalf("%v, %v, want %d spans", got, ok, fewest)
			}
			end := -1
			for _, s := range got {
				if s.start <= end || s.count < 1 {
					t.Fatalf("spans %v are not in order", got)
				}
				end = s.start + s.count - 1
				for i := s.start; i < s.start+s.count; i++ {
					if !free[i] {
						t.Fatalf("page %d was not free", i)
					}
					delete(free, i)
				}
				n -= s.count
			}
			if n != 0 || f.pages != len(free) {
				t.Fatalf("%d missing, %d left, want %d", n, f.pages, len(free))
			}
			for _, i := range rapid.Permutation(got).Draw(t, "back") {
				if rapid.Bool().Draw(t, "put") {
					f.put(i)
					for j := i.start; j < i.start+i.count; j++ {
						free[j] = true
					}
				}
			}
			for i := 1; i < len(f.spans); i++ {
				if f.spans[i-1].start+f.spans[i-1].count >= f.spans[i].start {
					t.Fatalf("spans %v touch", f.spans)
				}
			}
		}
	})
}

// fewestSpans counts how many of the largest spans hold n pages.
func fewestSpans(spans []span, n int) int {
	var byCount [64]int
	for _, s := range spans {
		byCount[s.count]++
	}
	k := 0
	for c := len(byCount) - 1; c > 0 && n > 0; c-- {
		for range byCount[c] {
			if n > 0 {
				n -= c
				k++
			}
		}
	}
	return k
}
