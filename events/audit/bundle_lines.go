package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
)

// lineCheck follows events.jsonl and, where there is one, leaves.bin beside it.
type lineCheck struct {
	b      *bundle
	lines  *bufio.Reader
	leaves *bufio.Reader // nil: every leaf is shown
	rng    *RangeCheck   // nil: a tenant's bundle
	next   int64         // index of the leaf that comes next, in a range

	disclosed *disclosureCheck

	chains   *chains // nil: the filter tears them
	unknown  bool    // a type that this build does not know came by: chains are not followed further
	types    map[string]bool
	shown    int64
	withheld int64
	gaps     uint64
	foreign  int64
	bytes    int64
	epoch    []Head // of the epoch leaves that are coming in
	tenant   string // whose they are; "" outside of an epoch
	epochs   []tlog.Hash
}

// content checks the lines, and what they are bound by.
func (b *bundle) content() {
	lines, err := b.stream(FileLines)
	if err != nil {
		b.finish(FileLines, lines, err)
		return
	}
	c := &lineCheck{b: b, lines: bufio.NewReaderSize(lines, MaxLeaf+2), types: map[string]bool{}}
	var leaves *fileStream
	if b.m.Completeness == CompleteRange {
		text, ok := b.read(FileRangeProof, maxSmall)
		p, perr := ParseRangeProof(text)
		if ok && perr == nil && (p.From != b.m.Range.From || p.To != b.m.Range.To) {
			perr = errors.New("is of another range than the manifest's")
		}
		if ok && perr != nil {
			b.Add(Broken, FileRangeProof, "%v", perr)
		}
		if !ok || perr != nil {
			lines.r.Close() // rest reads it again, for its digest
			return
		}
		c.rng, c.next = NewRangeCheck(p), p.From
		if !b.m.Filter.IsZero() {
			if leaves, err = b.stream(FileLeaves); err != nil {
				b.finish(FileLeaves, leaves, err)
				lines.r.Close()
				return
			}
			c.leaves = bufio.NewReaderSize(leaves, 64<<10)
		}
	}
	c.startChains()
	c.disclosed = b.openDisclosures()
	err = c.run()
	c.disclosed.finish()
	b.finish(FileLines, lines, err)
	if leaves != nil {
		b.finish(FileLeaves, leaves, c.drain())
	}
	c.finish(err == nil)
	// Without its chains nothing binds a tenant's line to the log.
	b.unbound = c.unknown && b.m.Completeness == CompleteTenant
}

// startChains decides how strictly chains are followed.
func (c *lineCheck) startChains() {
	m := c.b.m
	switch {
	case m.Filter.onlyTenant():
		c.chains = newChains(false)
		for _, s := range m.Starts {
			c.chains.begin(m.Filter.Tenant, s)
		}
	case m.Filter.IsZero():
		c.chains = newChains(m.Range.From > 0)
	}
}

// run reads all lines. It goes on past what is wrong with one of them, so that a
// report shows how much is; it stops where bytes cannot be split into lines.
func (c *lineCheck) run() error {
	for {
		line, err := c.lines.ReadSlice('\n')
		switch {
		case err == io.EOF && len(line) == 0:
			return c.endEpoch(true)
		case err == io.EOF:
			return errors.New("the last line is cut off")
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("line %d: want %d bytes at most", c.shown+1, MaxLeaf)
		case err != nil:
			return err
		}
		c.bytes += int64(len(line))
		line = line[:len(line)-1]
		c.shown++
		if err := c.place(tlog.RecordHash(line)); err != nil {
			return err
		}
		c.leaf(line)
	}
}

// place finds the line's leaf in the range: the next one, or behind withheld ones.
func (c *lineCheck) place(h tlog.Hash) error {
	if c.rng == nil {
		return nil
	}
	for c.leaves != nil {
		next, err := c.hash()
		if err != nil {
			return fmt.Errorf("line %d is no leaf of the range, or not in order", c.shown)
		}
		if next == h {
			break
		}
		c.add(next)
		c.withheld++
	}
	c.add(h)
	return nil
}

func (c *lineCheck) hash() (h tlog.Hash, err error) {
	_, err = io.ReadFull(c.leaves, h[:])
	return h, err
}

// add takes the next leaf of the range.
func (c *lineCheck) add(h tlog.Hash) {
	if c.b.proofs[c.next] != nil {
		c.b.proof(c.next, h)
	}
	c.rng.Add(h)
	c.next++
}

// drain takes the withheld leaves behind the last line.
func (c *lineCheck) drain() error {
	for {
		h, err := c.hash()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		c.add(h)
		c.withheld++
	}
}

func (c *lineCheck) where() string { return FileLines + ":" + strconv.FormatInt(c.shown, 10) }

// leaf judges what a line says.
func (c *lineCheck) leaf(line []byte) {
	l, err := ParseLeaf(line)
	if err != nil {
		if errors.Is(err, events.ErrUnknownType) {
			c.unknown = true
			c.b.Add(Incomplete, c.where(), "%v: a newer verifier knows it", err)
			return
		}
		c.b.Add(Broken, c.where(), "%v", err)
		return
	}
	if c.b.m.Filter.Excludes(l) {
		c.b.Add(Broken, c.where(), "the filter does not show such a leaf")
	}
	if l.Epoch == nil {
		if err := c.endEpoch(false); err != nil {
			c.b.Add(Broken, c.where(), "%v", err)
		}
	}
	switch {
	case l.Gap != nil:
		c.gaps += l.Gap.To - l.Gap.From + 1
		c.b.Add(Incomplete, c.where(), "the stream has no sequences %d to %d", l.Gap.From, l.Gap.To)
	case l.Foreign != nil:
		c.foreign++
		c.b.Add(Noted, c.where(), "the message at sequence %d was not written by a holder of the log key", l.Foreign.Seq)
	case l.Epoch != nil:
		c.inEpoch(l.Epoch, tlog.RecordHash(line))
	default:
		c.event(l.Event, line)
	}
}

func (c *lineCheck) event(e *events.Event, line []byte) {
	c.types[string(e.Type)] = true
	c.disclosed.event(e)
	if c.b.m.Completeness == CompleteTenant {
		if len(c.epochs) > 0 {
			c.b.Add(Broken, c.where(), "stands behind the epoch leaf")
		}
		if e.TenantSeq == 0 {
			c.b.Add(Broken, c.where(), "is in no chain, so nothing binds it to the log")
		}
	}
	if c.chains != nil && !c.unknown {
		if err := c.chains.add(e, events.Hash(line)); err != nil {
			c.b.Add(Broken, c.where(), "%v", err)
		}
	}
}

// inEpoch collects the leaves of one epoch.
func (c *lineCheck) inEpoch(e *Epoch, h tlog.Hash) {
	if c.tenant != "" && c.tenant != e.Tenant {
		if err := c.endEpoch(false); err != nil {
			c.b.Add(Broken, c.where(), "%v", err)
		}
	}
	if c.b.m.Completeness == CompleteTenant && len(c.epochs) > 0 && c.tenant == "" {
		c.b.Add(Broken, c.where(), "is a second epoch")
	}
	c.epochs = append(c.epochs, h)
	if len(c.epochs) > maxProofs {
		c.epochs = c.epochs[:maxProofs] // of a range, where they are not looked at
	}
	c.tenant = e.Tenant
	if len(c.epoch) > 0 && len(e.Chains) > 0 && e.Chains[0].Partition <= c.epoch[len(c.epoch)-1].Partition {
		c.b.Add(Broken, c.where(), "does not continue the epoch leaf before it")
	}
	if len(c.epoch) < 64*MaxChains {
		c.epoch = append(c.epoch, e.Chains...)
	}
	if len(e.Chains) < MaxChains {
		c.matchEpoch()
	}
}

// matchEpoch holds a whole epoch against the chains that were followed.
func (c *lineCheck) matchEpoch() {
	heads, tenant := c.epoch, c.tenant
	c.epoch, c.tenant = nil, ""
	if c.chains == nil || c.unknown {
		return
	}
	m := c.b.m
	all := m.Completeness == CompleteTenant || m.Range.From == 0
	if err := c.chains.matches(tenant, heads, all); err != nil {
		c.b.Add(Broken, c.where(), "%v", err)
	}
}

// endEpoch wants that no epoch is unfinished. A range may end within one.
func (c *lineCheck) endEpoch(last bool) error {
	if c.tenant == "" {
		return nil
	}
	c.epoch, c.tenant = nil, ""
	if m := c.b.m; last && m.Range != nil && c.next == m.Range.To {
		return nil
	}
	return errors.New("an epoch's last leaf is missing before it")
}

// finish holds the outcome against the manifest and the end checkpoint.
func (c *lineCheck) finish(whole bool) {
	b, m := c.b, c.b.m
	if c.shown != m.Lines || c.withheld != m.Withheld {
		b.Add(Broken, FileManifest, "%d lines and %d withheld leaves, the content has %d and %d", m.Lines, m.Withheld, c.shown, c.withheld)
	}
	types := make([]string, 0, len(c.types))
	for t := range c.types {
		types = append(types, t)
	}
	slices.Sort(types)
	if !slices.Equal(types, m.Types) && !c.unknown {
		b.Add(Broken, FileManifest, "types: the content has others")
	}
	b.fact("lines", "%d (%d bytes)", c.shown, c.bytes)
	if c.gaps > 0 {
		b.fact("gaps", "%d stream sequences", c.gaps)
	}
	if c.foreign > 0 {
		b.fact("foreign", "%d messages", c.foreign)
	}
	if c.rng == nil {
		c.finishTenant(whole)
		return
	}
	b.fact("range", "leaves %d to %d of %d, %d withheld", m.Range.From, m.Range.To-1, m.End.Size, c.withheld)
	if err := c.rng.Check(b.end.Tree); err != nil {
		b.Add(Broken, FileRangeProof, "%v", err)
	}
}

// finishTenant proves the epoch leaves, to which the chains lead.
func (c *lineCheck) finishTenant(whole bool) {
	b := c.b
	if n := len(b.m.Starts); n > 0 {
		severity := Incomplete
		if b.o.Midway {
			severity = Noted
		}
		b.Add(severity, FileManifest, "%d of the tenant's chains do not begin with their first event: earlier ones are not here", n)
	}
	if !whole {
		return
	}
	if len(c.epochs) == 0 {
		b.Add(Broken, FileLines, "the epoch leaf is missing: nothing says where the tenant's chains end")
		return
	}
	var index []int64
	for i := range b.proofs {
		index = append(index, i)
	}
	slices.Sort(index)
	if len(index) != len(c.epochs) || index[len(index)-1]-index[0] != int64(len(index)-1) {
		b.Add(Broken, FileLines, "%d epoch leaves and %d proofs: want one proof for each, one after the other", len(c.epochs), len(index))
		return
	}
	for i, n := range index {
		b.proof(n, c.epochs[i])
	}
}
