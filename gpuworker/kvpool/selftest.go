package kvpool

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"

	"github.com/pdgate/pdgate/events"
)

// SelfTest is the conformance suite of a [Device], which every kind of device runs:
// in the tests, and before a worker's operator trusts a machine. Data are fresh and
// random, and every place that a result will stand in holds something else before.
type SelfTest struct {
	Device    Device
	Driver    Driver // of the device; nil: host memory, and the kernels are not asked alone
	Pages     int    // of the device, at least 16
	PageBytes int
	Seed      uint64 // of the data; 0: a random one

	rng  *mrand.Rand
	data []byte // what the pages should hold
	tags []Tag
	key  uint64
}

// Check is one part of a [SelfTest].
type Check struct {
	Name string
	Run  func(*SelfTest) error
}

// Checks are the suite, in order. Each needs those before it.
func Checks() []Check {
	return []Check{
		{"a fresh device has no owners", (*SelfTest).fresh},
		{"retag", (*SelfTest).retag},
		{"scatter", (*SelfTest).scatter},
		{"gather", (*SelfTest).gather},
		{"sum", (*SelfTest).sum},
		{"every wrong owner, generation and range", (*SelfTest).refused},
		{"scrub and audit", (*SelfTest).scrub},
		{"kernels alone: slots and torn copies", (*SelfTest).torn},
		{"kernels alone: pages that are not there", (*SelfTest).missing},
	}
}

// Run runs the suite. A check's error says what differed.
func (t *SelfTest) Run() error {
	if t.Seed == 0 {
		var b [8]byte
		rand.Read(b[:])
		t.Seed = binary.LittleEndian.Uint64(b[:])
	}
	t.rng = mrand.New(mrand.NewPCG(t.Seed, 1))
	t.key = t.rng.Uint64()
	t.data, t.tags = make([]byte, t.Pages*t.PageBytes), make([]Tag, t.Pages)
	for _, c := range Checks() {
		if err := c.Run(t); err != nil {
			return fmt.Errorf("%s: %w (pages of %d bytes, seed %d)", c.Name, err, t.PageBytes, t.Seed)
		}
	}
	return nil
}

// differs is the error of a result that is not the wanted one.
func differs(what string, got, want any) error {
	return fmt.Errorf("%s: got %v, want %v", what, got, want)
}

func (t *SelfTest) random(n int) []byte {
	b := make([]byte, n, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:i+8], t.rng.Uint64())
	}
	return b
}

func (t *SelfTest) page(i int) []byte { return t.data[i*t.PageBytes:][:t.PageBytes] }

// run is one page as it is.
func (t *SelfTest) run(page int) events.PageRun {
	return events.PageRun{Start: uint32(page), Count: 1, Generation: t.tags[page].Generation}
}

// runsOf are all pages of an owner's generation, in an order that is not theirs.
func (t *SelfTest) runsOf(tag Tag) (runs []events.PageRun) {
	for i := range t.tags {
		if t.tags[i] != tag {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k].Start+runs[k].Count == uint32(i) {
			runs[k].Count++
		} else {
			runs = append(runs, t.run(i))
		}
	}
	for i, j := 0, len(runs)-1; i < j; i, j = i+1, j-1 {
		runs[i], runs[j] = runs[j], runs[i]
	}
	return runs
}

// contents are what the pages of runs should hold, in their order.
func (t *SelfTest) contents(runs []events.PageRun) (b []byte) {
	for _, r := range runs {
		for i := range r.Count {
			b = append(b, t.page(int(r.Start+i))...)
		}
	}
	return b
}

// intact says that all pages hold what they should. It does not go by the tags.
func (t *SelfTest) intact() error {
	for i := range t.tags {
		free := t.tags[i] == Tag{}
		if free {
			if err := t.Device.Retag([]events.PageRun{t.run(i)}, Tag{}, Tag{1, 1}); err != nil {
				return err
			}
			t.tags[i] = Tag{1, 1}
		}
		got := t.random(t.PageBytes)
		_, err := t.Device.Gather(got, []events.PageRun{t.run(i)}, t.tags[i].Owner, t.key, 0)
		if err != nil {
			return err
		}
		if free {
			if err := t.Device.Retag([]events.PageRun{t.run(i)}, Tag{1, 1}, Tag{}); err != nil {
				return err
			}
			t.tags[i] = Tag{}
		}
		if !bytes.Equal(got, t.page(i)) {
			return fmt.Errorf("page %d does not hold what was put there", i)
		}
	}
	return nil
}

// refusedWith says that err is a refusal of a page with that code.
func refusedWith(err error, want events.Code) error {
	if e, ok := errors.AsType[*PageError](err); !ok || e.Code() != want || errors.Is(err, ErrDevice) {
		return differs("refusal", err, want)
	}
	return nil
}

// fresh: nobody can copy from a page that nobody owns, and all of them can be
// scrubbed.
func (t *SelfTest) fresh() error {
	all := []events.PageRun{{Count: uint32(t.Pages)}}
	pattern := t.rng.Uint64()
	if err := t.Device.Scrub(all, pattern); err != nil {
		return err
	}
	for i := 0; i < len(t.data); i += 8 {
		binary.LittleEndian.PutUint64(t.data[i:], pattern)
	}
	if n, err := t.Device.Audit(all, pattern); err != nil || n != 0 {
		return differs("words that differ after a scrub", n, err)
	}
	if n, err := t.Device.Audit(all, pattern^1); err != nil || n != len(t.data)/8 {
		return differs("words that differ from another pattern", n, len(t.data)/8)
	}
	for i := range t.Pages {
		for _, o := range []Owner{0, 1} {
			if _, err := t.Device.Gather(make([]byte, t.PageBytes), []events.PageRun{t.run(i)}, o, t.key, 0); err == nil {
				return fmt.Errorf("owner %d copies from page %d, which is free", o, i)
			}
		}
	}
	return nil
}

// retag: pages 0, 3, 6, … go to one owner, 1, 4, … to another with the same
// generation, 2, 5, … to the first with another one; the last two stay free. A tag
// is changed only by who knows it.
func (t *SelfTest) retag() error {
	high := Owner(1<<63 | t.rng.Uint64()>>2) // a tag uses all its bits
	for i := range t.Pages - 2 {
		to := [...]Tag{{high, 1<<40 + 7}, {high ^ 1<<62, 1<<40 + 7}, {high, 1<<40 + 8}}[i%3]
		r := []events.PageRun{t.run(i)}
		for _, from := range []Tag{{1, 0}, {0, 1}, to} {
			if err := refusedWith(t.Device.Retag(r, from, to), events.CodePageOwner); err != nil {
				if err := refusedWith(t.Device.Retag(r, from, to), events.CodePageGeneration); err != nil {
					return err
				}
			}
		}
		if err := t.Device.Retag(r, Tag{}, to); err != nil {
			return err
		}
		t.tags[i] = to
		if err := t.Device.Retag(r, Tag{}, Tag{5, 5}); err == nil {
			return fmt.Errorf("page %d is given to a second owner", i)
		}
	}
	return t.intact()
}

// owners are the three tags that retag gave.
func (t *SelfTest) owners() []Tag { return t.tags[:3] }

func (t *SelfTest) scatter() error {
	for n, tag := range t.owners() {
		runs := t.runsOf(tag)
		word := uint64(n * 1000)
		src := t.random(pagesIn(runs) * t.PageBytes)
		sum, err := t.Device.Scatter(runs, src, tag.Owner, t.key, word)
		if err != nil {
			return err
		}
		if want := Sum(t.key, word, src); sum != want {
			return differs("sum", sum, want)
		}
		for _, r := range runs {
			for i := range int(r.Count) {
				src = src[copy(t.page(int(r.Start)+i), src[:t.PageBytes]):]
			}
		}
	}
	return t.intact()
}

func (t *SelfTest) gather() error {
	for n, tag := range t.owners() {
		runs := t.runsOf(tag)
		for _, runs := range [][]events.PageRun{runs, runs[:1], runs[1:]} {
			word, want := uint64(n*77), t.contents(runs)
			got := t.random(len(want))
			sum, err := t.Device.Gather(got, runs, tag.Owner, t.key, word)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return errors.New("the copy differs")
			}
			if w := Sum(t.key, word, want); sum != w {
				return differs("sum", sum, w)
			}
		}
	}
	if _, err := t.Device.Gather(make([]byte, 1), t.runsOf(t.tags[0]), t.tags[0].Owner, t.key, 0); err == nil {
		return errors.New("a copy into too few bytes")
	}
	return t.intact()
}

func (t *SelfTest) sum() error {
	for n, tag := range t.owners() {
		runs, word := t.runsOf(tag), uint64(n*13)
		sum, err := t.Device.Sum(runs, tag.Owner, t.key, word)
		if want := Sum(t.key, word, t.contents(runs)); err != nil || sum != want {
			return differs("sum", fmt.Sprint(sum, err), want)
		}
	}
	return nil
}

// refused: in a copy of good pages, one is bad, wherever it stands. Nothing of the
// copy is left, and nothing in the pool has changed.
func (t *SelfTest) refused() error {
	good := t.runsOf(t.tags[0])
	owner, gen := t.tags[0].Owner, t.tags[0].Generation
	cases := []struct {
		name  string
		bad   events.PageRun
		owner Owner
		want  events.Code
	}{
		{"another owner's page", events.PageRun{Start: 1, Count: 1, Generation: gen}, owner, events.CodePageOwner},
		{"another generation's page", events.PageRun{Start: 2, Count: 1, Generation: gen}, owner, events.CodePageGeneration},
		{"a free page", events.PageRun{Start: uint32(t.Pages - 1), Count: 1}, owner, events.CodePageOwner},
		{"the page after the last", events.PageRun{Start: uint32(t.Pages), Count: 1, Generation: gen}, owner, events.CodeInternal},
		{"a page far away", events.PageRun{Start: 1<<32 - 1, Count: 1, Generation: gen}, owner, events.CodeInternal},
	}
	for _, bit := range t.bits() {
		wrong := good[0]
		wrong.Count, wrong.Generation = 1, gen^1<<bit
		cases = append(cases, struct {
			name  string
			bad   events.PageRun
			owner Owner
			want  events.Code
		}{fmt.Sprintf("bit %d of the generation", bit), wrong, owner, events.CodePageGeneration})
	}
	for _, c := range cases {
		for _, at := range []int{0, 1, len(good)} {
			runs := append(append(append([]events.PageRun{}, good[:at]...), c.bad), good[at:]...)
			if err := t.mustRefuse(runs, c.owner, c.want, true); err != nil {
				return fmt.Errorf("%s at %d: %w", c.name, at, err)
			}
		}
	}
	for _, bit := range t.bits() {
		if err := t.mustRefuse(good, owner^1<<bit, events.CodePageOwner, false); err != nil {
			return fmt.Errorf("bit %d of the owner: %w", bit, err)
		}
	}
	if err := t.mustRefuse([]events.PageRun{t.run(t.Pages - 1)}, 0, events.CodePageOwner, false); err != nil {
		return fmt.Errorf("nobody as the owner of a free page: %w", err)
	}
	return t.intact()
}

// bits are those that a tag is changed in: all, where pages are small.
func (t *SelfTest) bits() (b []int) {
	if t.PageBytes > 1024 {
		return []int{0, 31, 32, 63}
	}
	for i := range 64 {
		b = append(b, i)
	}
	return b
}

// mustRefuse tries all copies of the runs. generation says that a code for the
// generation stands for the wanted one too: one page may have both faults.
func (t *SelfTest) mustRefuse(runs []events.PageRun, owner Owner, want events.Code, either bool) error {
	check := func(err error) error {
		e := refusedWith(err, want)
		if e != nil && either && want == events.CodePageOwner {
			return refusedWith(err, events.CodePageGeneration)
		}
		return e
	}
	got := t.random(pagesIn(runs) * t.PageBytes)
	if _, err := t.Device.Gather(got, runs, owner, t.key, 0); err == nil {
		return errors.New("gather: copied")
	} else if err := check(err); err != nil {
		return fmt.Errorf("gather: %w", err)
	}
	if bytes.Count(got, []byte{0}) != len(got) {
		return errors.New("gather: something of the refused copy is left")
	}
	if _, err := t.Device.Sum(runs, owner, t.key, 0); err == nil {
		return errors.New("sum: summed")
	} else if err := check(err); err != nil {
		return fmt.Errorf("sum: %w", err)
	}
	// The pages of the same copy that are good may have been written: with what they
	// hold already. A bad one would show other bytes.
	var src []byte
	for _, r := range runs {
		for i := range r.Count {
			if p := int(r.Start + i); p < t.Pages && owner == t.tags[0].Owner && t.tags[p] == (Tag{owner, r.Generation}) {
				src = append(src, t.page(p)...)
			} else {
				src = append(src, t.random(t.PageBytes)...)
			}
		}
	}
	if _, err := t.Device.Scatter(runs, src, owner, t.key, 0); err == nil {
		return errors.New("scatter: copied")
	} else if err := check(err); err != nil {
		return fmt.Errorf("scatter: %w", err)
	}
	return nil
}

// scrub: owned pages cannot be scrubbed; free ones are, and the proof counts every
// word, wherever it stands.
func (t *SelfTest) scrub() error {
	if err := refusedWith(t.Device.Scrub([]events.PageRun{t.run(0)}, Poison), events.CodePageOwner); err != nil {
		return fmt.Errorf("a page with an owner: %w", err)
	}
	if err := t.Device.Scrub([]events.PageRun{{Start: uint32(t.Pages), Count: 1}}, Poison); err == nil {
		return errors.New("a page that does not exist")
	}
	if err := t.intact(); err != nil {
		return err
	}
	tag := t.tags[1]
	runs := t.runsOf(tag)
	page := int(runs[0].Start)
	changed := []int{0, 1, t.PageBytes/8 - 2, t.PageBytes/8 - 1}
	for at := 0; at < t.PageBytes/8; at += 512 { // what a block's threads read at once
		changed = append(changed, min(at+t.rng.IntN(512), t.PageBytes/8-1))
	}
	for _, word := range changed {
		src := bytes.Repeat([]byte{0xff}, t.PageBytes)
		src[8*word+3] ^= 1
		if _, err := t.Device.Scatter(runs[:1], append(src, t.contents(runs[:1])[t.PageBytes:]...), tag.Owner, t.key, 0); err != nil {
			return err
		}
		if n, err := t.Device.Audit([]events.PageRun{t.run(page)}, Poison); err != nil || n != 1 {
			return differs(fmt.Sprintf("words that differ with word %d changed", word), fmt.Sprint(n, err), 1)
		}
		copy(t.page(page), src)
	}
	if err := t.Device.Retag(runs, tag, Tag{}); err != nil {
		return err
	}
	for i := range t.tags {
		if t.tags[i] == tag {
			t.tags[i] = Tag{}
			copy(t.page(i), bytes.Repeat([]byte{0xff}, t.PageBytes))
		}
	}
	if err := t.Device.Scrub(runs, Poison); err != nil {
		return err
	}
	if n, err := t.Device.Audit(runs, Poison); err != nil || n != 0 {
		return differs("words that differ after the scrub", fmt.Sprint(n, err), 0)
	}
	return t.intact()
}

func statusError(job int, got, want uint64) error {
	return differs(fmt.Sprintf("job %d: status", job), got, want)
}
