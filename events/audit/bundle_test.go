package audit

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
)

// world is a log with a bundle of each kind.
type world struct {
	*testLog
	start, end []byte
	policyText []byte
	bundles    map[string][]byte
	epoch      int64
}

func newWorld(t testing.TB, secret string) *world {
	w := &world{testLog: newTestLog(t, secret, newCosigner("w1.example"), newCosigner("w2.example")), bundles: map[string][]byte{}}
	w.policyText = fmt.Appendf(nil, "log %s\nwitness w1 %s\nwitness w2 %s\ngroup both all w1 w2\nquorum both\n", w.vkey, w.wit[0].vkey, w.wit[1].vkey)
	w.fill(40)
	w.start = w.sign()
	w.append((&Foreign{Seq: w.seq + 1, SHA256: strings.Repeat("5f", 32)}).Append(nil))
	w.seq++
	w.fill(230)
	w.epoch = w.testLog.epoch("acme")
	w.fill(20)
	w.end = w.sign()
	w.bundles["range"] = w.export(Export{Completeness: CompleteRange, From: 0, To: w.tree.Size(), Proofs: []int64{0, 17, w.tree.Size() - 1}})
	w.bundles["part"] = w.export(Export{Completeness: CompleteRange, From: 33, To: 270})
	w.bundles["filtered"] = w.export(Export{Completeness: CompleteRange, Filter: Filter{Tenant: "acme"}, From: 33, To: w.tree.Size(),
		Lines: w.shown(33, w.tree.Size(), Filter{Tenant: "acme"}), Proofs: []int64{40}})
	w.bundles["tenant"] = w.tenant("acme", w.epoch)
	return w
}

// shown are the leaves that a filter does not exclude.
func (l *testLog) shown(from, to int64, f Filter) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, b := range l.leaves[from:to] {
			if leaf, err := ParseLeaf(b); (err != nil || !f.Excludes(leaf)) && !yield(b, err) {
				return
			}
		}
	}
}

func (w *world) tenant(name string, epoch int64) []byte {
	return w.export(Export{Completeness: CompleteTenant, Filter: Filter{Tenant: name}, Epoch: epoch, Lines: w.tenantLines(name, 0, epoch)})
}

func (l *testLog) tenantLines(name string, from, to int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, b := range l.leaves[from:to] {
			leaf, err := ParseLeaf(b)
			if err == nil && leaf.Event != nil && leaf.Event.Tenant == name && !yield(b, nil) {
				return
			}
		}
	}
}

func (w *world) export(x Export) []byte {
	w.t.Helper()
	x.Tiles, x.Key, x.Policy, x.Start, x.End = w.tiles(), w.vkey, w.policyText, w.start, w.end
	var b bytes.Buffer
	if _, err := WriteBundle(&b, &x); err != nil {
		w.t.Fatal(err)
	}
	return b.Bytes()
}

func (w *world) trusted() *Policy {
	w.t.Helper()
	p, err := ParsePolicy(w.policyText)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func verify(t testing.TB, b []byte, o Options) *Report {
	t.Helper()
	r, err := VerifyBundle(bytes.NewReader(b), int64(len(b)), o)
	if err != nil {
		r = NewReport("bundle")
		r.Exit = 2
	}
	return r
}

// content is a bundle taken apart.
type content map[string][]byte

func unzip(t testing.TB, b []byte) content {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	c := content{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if c[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c content) zip(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(c)) {
		f, err := z.CreateHeader(&zip.FileHeader{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(c[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// forge makes the manifest agree with the files, as a forger would.
func (c content) forge(t testing.TB, change func(*Manifest)) content {
	t.Helper()
	m := &Manifest{}
	if err := parseCanonical(c[FileManifest], m); err != nil {
		t.Fatal(err)
	}
	m.Files = []File{}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if name != FileManifest {
			sum := sha256.Sum256(c[name])
			m.Files = append(m.Files, File{name, int64(len(c[name])), hex.EncodeToString(sum[:])})
		}
	}
	if change != nil {
		change(m)
	}
	c[FileManifest] = canonical(m)
	return c
}

func (c content) lines() [][]byte {
	return bytes.SplitAfter(bytes.TrimSuffix(c[FileLines], []byte("\n")), []byte("\n"))
}

func (c content) setLines(lines [][]byte) {
	last := len(lines) - 1
	lines[last] = append(bytes.TrimSuffix(bytes.Clone(lines[last]), []byte("\n")), '\n')
	for i := range lines[:last] {
		lines[i] = append(bytes.TrimSuffix(bytes.Clone(lines[i]), []byte("\n")), '\n')
	}
	c[FileLines] = bytes.Join(lines, nil)
}

func TestBundlesVerify(t *testing.T) {
	w := newWorld(t, "log")
	for name, b := range w.bundles {
		r := verify(t, b, Options{Policy: w.trusted()})
		if r.Exit != 0 {
			t.Errorf("%s: exit %d: %+v", name, r.Exit, r.Problems)
		}
		if len(r.Proven) == 0 || len(r.NotProven) == 0 {
			t.Errorf("%s: says nothing of what is proven and what is not", name)
		}
		if r := verify(t, b, Options{OwnKey: true}); r.Exit != 0 {
			t.Errorf("%s: by its own key: exit %d: %+v", name, r.Exit, r.Problems)
		}
		// A bundle that vouches for itself proves nothing.
		if r := verify(t, b, Options{}); r.Exit != 3 {
			t.Errorf("%s: without a key: exit %d", name, r.Exit)
		}
		start, err := OpenCheckpoint(w.start, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		if r := verify(t, b, Options{Policy: w.trusted(), Start: &start.Checkpoint}); r.Exit != 0 {
			t.Errorf("%s: with its start: %+v", name, r.Problems)
		}
		end, err := OpenCheckpoint(w.end, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		if r := verify(t, b, Options{Policy: w.trusted(), Start: &end.Checkpoint}); r.Exit != 4 {
			t.Errorf("%s: with another start: exit %d", name, r.Exit)
		}
		if !bytes.Equal(b, w.again(name)) {
			t.Errorf("%s: the same export made other bytes", name)
		}
	}
	if r := verify(t, w.bundles["range"], Options{Policy: w.trusted(), Strict: true}); r.Exit != 1 {
		t.Errorf("strict: a foreign message is a finding: exit %d", r.Exit)
	}
}

// again makes a bundle a second time.
func (w *world) again(name string) []byte { return newWorld(w.t, "log").bundles[name] }

// A tenant's bundle, and what a filtered one shows, holds nothing of others.
func TestBundleRevealsNothingOfOthers(t *testing.T) {
	w := newWorld(t, "log")
	for _, name := range []string{"tenant", "filtered"} {
		for file, b := range unzip(t, w.bundles[name]) {
			if bytes.Contains(b, []byte("globex")) {
				t.Errorf("%s: %s names another tenant", name, file)
			}
		}
	}
}

var everyBit = flag.Bool("every-bit", false, "flip each bit of the bundles' files, and not one of some bytes; takes many minutes")

// Flipped bits are found in every file, with the digests of the manifest as they
// were, and with a manifest forged to agree.
func TestFlippedBits(t *testing.T) {
	w := newWorld(t, "log")
	for name, b := range w.bundles {
		flipBits(t, w, name, b)
	}
}

func flipBits(t *testing.T, w *world, name string, b []byte) {
	t.Helper()
	o := Options{Policy: w.trusted()}
	for file, text := range unzip(t, b) {
		step := 8 * max(1, len(text)/60)
		if file == FileManifest {
			step = 8 * 7
		}
		if *everyBit {
			step = 1
		}
		for n := 0; n < 8*len(text); n += step {
			i, bit := n/8, n%8
			if !*everyBit {
				bit = i % 8
			}
			c := unzip(t, b)
			c[file] = bytes.Clone(text)
			c[file][i] ^= 1 << bit
			if r := verify(t, c.zip(t), o); r.Exit != 4 {
				t.Fatalf("%s: %s: bit %d of byte %d flipped: exit %d", name, file, bit, i, r.Exit)
			}
			signed := !strings.HasSuffix(file, FileReadme) && file != FilePolicy && file != FileManifest
			if !signed {
				continue
			}
			if r := verify(t, c.forge(t, nil).zip(t), o); r.Exit == 0 {
				t.Fatalf("%s: %s: bit %d of byte %d (%q) flipped, and the manifest forged: exit %d", name, file, bit, i, text[i], r.Exit)
			}
		}
	}
}

// A flip in the zip's own bytes is found, or changes no file.
func TestFlippedZipBytes(t *testing.T) {
	w := newWorld(t, "log")
	b := w.bundles["tenant"]
	was := unzip(t, b)
	for i := 0; i < len(b); i += 13 {
		c := bytes.Clone(b)
		c[i] ^= 1 << (i % 8)
		if r := verify(t, c, Options{Policy: w.trusted()}); r.Exit == 0 && !maps.EqualFunc(was, unzip(t, c), bytes.Equal) {
			t.Fatalf("byte %d flipped: verified, with other content", i)
		}
	}
	for _, n := range []int{0, 1, len(b) / 2, len(b) - 1} {
		if r := verify(t, b[:n], Options{Policy: w.trusted()}); r.Exit != 2 {
			t.Errorf("cut to %d bytes: exit %d", n, r.Exit)
		}
	}
}

type tampering struct {
	name   string
	bundle string
	change func(t *testing.T, w *world, c content) []byte
	exit   int
}

func forged(change func(c content)) func(*testing.T, *world, content) []byte {
	return func(t *testing.T, _ *world, c content) []byte {
		change(c)
		n := int64(len(c.lines()))
		return c.forge(t, func(m *Manifest) {
			if m.Range != nil {
				m.Withheld += m.Lines - n
			}
			m.Lines = n
		}).zip(t)
	}
}

func manifest(change func(m *Manifest)) func(*testing.T, *world, content) []byte {
	return func(t *testing.T, _ *world, c content) []byte { return c.forge(t, change).zip(t) }
}

func dropLine(i int) func(content) {
	return func(c content) {
		l := c.lines()
		if i < 0 {
			i += len(l)
		}
		c.setLines(slices.Delete(l, i, i+1))
	}
}

func swapLines(i, j int) func(content) {
	return func(c content) {
		l := c.lines()
		l[i], l[j] = l[j], l[i]
		c.setLines(l)
	}
}

func other(t *testing.T) *world { return newWorld(t, "log of somebody else") }

var tamperings = []tampering{
	{"a file that nobody listed", "range", func(t *testing.T, _ *world, c content) []byte { c["x.txt"] = nil; return c.zip(t) }, 4},
	{"a file that does not belong", "range", func(t *testing.T, _ *world, c content) []byte { c["x.txt"] = nil; return c.forge(t, nil).zip(t) }, 4},
	{"a file that is gone", "range", func(t *testing.T, _ *world, c content) []byte { delete(c, FileReadme); return c.zip(t) }, 4},
	{"a file that is gone, unlisted", "range", func(t *testing.T, _ *world, c content) []byte {
		delete(c, FileRangeProof)
		return c.forge(t, nil).zip(t)
	}, 4},
	{"no manifest", "range", func(t *testing.T, _ *world, c content) []byte { delete(c, FileManifest); return c.zip(t) }, 4},
	{"a doubled file", "range", func(t *testing.T, _ *world, c content) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, name := range append(slices.Sorted(maps.Keys(c)), FileLines) {
			f, _ := z.Create(name)
			_, _ = f.Write(c[name])
		}
		_ = z.Close()
		return b.Bytes()
	}, 4},
	{"a path that leads out", "range", func(t *testing.T, _ *world, c content) []byte {
		c["derived/../../x"] = nil
		return c.forge(t, nil).zip(t)
	}, 4},
	{"a derived file", "range", func(t *testing.T, _ *world, c content) []byte {
		c["derived/x.csv"] = []byte("a")
		return c.forge(t, nil).zip(t)
	}, 0},
	{"a derived file that changed", "range", func(t *testing.T, _ *world, c content) []byte {
		c["derived/x.csv"] = []byte("a")
		c.forge(t, nil)
		c["derived/x.csv"] = []byte("b")
		return c.zip(t)
	}, 4},

	{"dropped line", "range", forged(dropLine(100)), 4},
	{"first line dropped", "range", forged(dropLine(0)), 4},
	{"last line dropped", "range", forged(dropLine(-1)), 4},
	{"swapped lines", "range", forged(swapLines(10, 11)), 4},
	{"doubled line", "range", forged(func(c content) { l := c.lines(); c.setLines(slices.Insert(l, 5, l[5])) }), 4},
	{"last line cut off", "range", forged(func(c content) { c[FileLines] = c[FileLines][:len(c[FileLines])-9] }), 4},
	{"last newline cut off", "range", forged(func(c content) { c[FileLines] = c[FileLines][:len(c[FileLines])-1] }), 4},
	{"empty line", "range", forged(func(c content) { l := c.lines(); c.setLines(slices.Insert(l, 5, []byte{})) }), 4},
	{"line too long", "range", forged(func(c content) { l := c.lines(); c.setLines(slices.Insert(l, 5, bytes.Repeat([]byte("x"), MaxLeaf+1))) }), 4},
	{"dropped line of a filtered range", "filtered", forged(dropLine(10)), 4},
	{"last line dropped before the epoch of a filtered range", "filtered", func(t *testing.T, w *world, c content) []byte {
		at := slices.IndexFunc(c.lines(), func(l []byte) bool { return bytes.HasPrefix(l, []byte(`{"pdgate_epoch"`)) })
		return forged(dropLine(at-1))(t, w, c)
	}, 4},
	{"swapped lines of a filtered range", "filtered", forged(swapLines(10, 11)), 4},
	{"withheld leaf dropped", "filtered", forged(func(c content) { c[FileLeaves] = slices.Delete(c[FileLeaves], 320, 352) }), 4},
	{"withheld leaves cut off", "filtered", forged(func(c content) { c[FileLeaves] = c[FileLeaves][:len(c[FileLeaves])-5] }), 4},
	{"first event withheld, and made a start", "filtered", func(t *testing.T, w *world, _ content) []byte {
		f := Filter{Tenant: "acme"}
		c := unzip(t, w.export(Export{Completeness: CompleteRange, Filter: f, To: w.tree.Size(), Lines: w.shown(0, w.tree.Size(), f)}))
		l := c.lines()
		link := Link{1, events.Hash(bytes.TrimSuffix(l[0], []byte("\n")))}
		c.setLines(l[1:])
		return c.forge(t, func(m *Manifest) { m.Lines, m.Withheld, m.Starts = m.Lines-1, m.Withheld+1, []Link{link} }).zip(t)
	}, 4},
	{"nobody's line in a filtered range", "filtered", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		at := slices.IndexFunc(w.leaves[60:], func(b []byte) bool { return !bytes.Contains(b, []byte("tenant")) }) + 60
		before := 0
		for i, line := range l {
			if n := slices.IndexFunc(w.leaves, func(b []byte) bool { return bytes.Equal(b, bytes.TrimSuffix(line, []byte("\n"))) }); n < at {
				before = i + 1
			}
		}
		c.setLines(slices.Insert(l, before, w.leaves[at]))
		n := int64(len(l) + 1)
		return c.forge(t, func(m *Manifest) { m.Withheld, m.Lines = m.Withheld-1, n }).zip(t)
	}, 4},

	{"dropped event of a tenant", "tenant", forged(dropLine(20)), 4},
	{"first event of a tenant dropped", "tenant", forged(dropLine(0)), 4},
	{"newest event of a tenant dropped", "tenant", forged(dropLine(-2)), 4},
	{"epoch leaf dropped", "tenant", forged(dropLine(-1)), 4},
	{"a whole chain dropped", "tenant", func(t *testing.T, w *world, c content) []byte {
		last := ""
		return forged(func(c content) {
			c.setLines(slices.DeleteFunc(c.lines(), func(b []byte) bool {
				b = bytes.TrimSuffix(b, []byte("\n"))
				e, err := events.Decode(b)
				if err != nil || e.TenantPrev != last {
					return false
				}
				last = events.Hash(b)
				return true
			}))
		})(t, w, c)
	}, 4},
	{"epoch leaf and its proof dropped", "tenant", func(t *testing.T, w *world, c content) []byte {
		delete(c, fmt.Sprintf("proofs/%d.tlog-proof", w.epoch))
		return forged(dropLine(-1))(t, w, c)
	}, 4},
	{"an event made up behind the epoch leaf", "tenant", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		last := bytes.TrimSuffix(l[len(l)-2], []byte("\n"))
		e, err := events.Decode(last)
		if err != nil {
			t.Fatal(err)
		}
		e.TenantSeq, e.TenantPrev = e.TenantSeq+1, events.Hash(last)
		b, err := events.Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		return forged(func(c content) { c.setLines(append(l, b)) })(t, w, c)
	}, 4},
	{"an event behind the epoch leaf", "tenant", forged(func(c content) { l := c.lines(); n := len(l) - 1; l[n-1], l[n] = l[n], l[n-1]; c.setLines(l) }), 4},
	{"doubled event of a tenant", "tenant", forged(func(c content) { l := c.lines(); c.setLines(slices.Insert(l, 5, l[5])) }), 4},
	{"swapped events of one chain", "tenant", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		e, err := ParseLeaf(bytes.TrimSuffix(l[0], []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		next := slices.IndexFunc(l, func(b []byte) bool {
			return bytes.Contains(b, []byte(events.Hash(bytes.TrimSuffix(l[0], []byte("\n")))))
		})
		if e.Event.TenantSeq != 1 || next < 0 {
			t.Fatal("the first event's successor is not there")
		}
		return forged(swapLines(0, next))(t, w, c)
	}, 4},
	{"an event that is in no chain", "tenant", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		e, err := events.Decode(bytes.TrimSuffix(l[3], []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		e.TenantSeq, e.TenantPrev = 0, ""
		b, err := events.Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		return forged(func(c content) { c.setLines(slices.Insert(l, 3, b)) })(t, w, c)
	}, 4},
	{"an event removed, its successor made a start", "tenant", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		gone, err := events.Decode(bytes.TrimSuffix(l[20], []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		c.setLines(slices.Delete(slices.Clone(l), 20, 21))
		link := Link{gone.TenantSeq, events.Hash(bytes.TrimSuffix(l[20], []byte("\n")))}
		return c.forge(t, func(m *Manifest) { m.Lines, m.Starts = m.Lines-1, []Link{link} }).zip(t)
	}, 4},
	{"a start that no chain has", "tenant", manifest(func(m *Manifest) { m.Starts = []Link{{7, events.Hash(nil)}} }), 4},
	{"an older epoch leaf", "tenant", func(t *testing.T, w *world, c content) []byte {
		l := c.lines()
		l[len(l)-1] = []byte(`{"pdgate_epoch":{"seq":1,"line":0,"tenant":"acme","chains":[]}}`)
		c.setLines(l)
		return c.forge(t, nil).zip(t)
	}, 4},
	{"the epoch's proof gone", "tenant", func(t *testing.T, w *world, c content) []byte {
		delete(c, fmt.Sprintf("proofs/%d.tlog-proof", w.epoch))
		return c.forge(t, nil).zip(t)
	}, 4},

	{"forged count of lines", "range", manifest(func(m *Manifest) { m.Lines-- }), 4},
	{"forged count of lines of a tenant", "tenant", manifest(func(m *Manifest) { m.Lines++ }), 4},
	{"forged count of withheld leaves", "filtered", manifest(func(m *Manifest) { m.Lines++; m.Withheld-- }), 4},
	{"forged range", "part", manifest(func(m *Manifest) { m.Range.From++; m.Range.To++ }), 4},
	{"forged types", "range", manifest(func(m *Manifest) { m.Types = m.Types[1:] }), 4},
	{"forged filter", "filtered", manifest(func(m *Manifest) { m.Filter.Tenant = "globex" }), 4},
	{"forged digest", "range", manifest(func(m *Manifest) { m.Files[0].SHA256 = strings.Repeat("0", 64) }), 4},
	{"forged size", "range", manifest(func(m *Manifest) { m.Files[0].Size++ }), 4},
	{"forged root", "range", manifest(func(m *Manifest) { m.End.Root[0] ^= 1 }), 4},
	{"forged start", "range", manifest(func(m *Manifest) { m.Start.Size++ }), 4},
	{"forged log", "range", manifest(func(m *Manifest) { m.Log = "example.org/log" }), 4},
	{"forged key id", "range", manifest(func(m *Manifest) { m.Key = "example.com/log+00000000" }), 4},
	{"another format", "range", manifest(func(m *Manifest) { m.Format = "pdgate-bundle/2" }), 4},
	{"another algorithm", "range", manifest(func(m *Manifest) { m.Algorithms = []string{"none", "none"} }), 4},
	{"another order", "range", manifest(func(m *Manifest) { m.Order = "time" }), 4},
	{"tenant's completeness claimed for a range", "range", manifest(func(m *Manifest) { m.Completeness = CompleteTenant }), 4},

	{"an older checkpoint", "range", func(t *testing.T, w *world, c content) []byte {
		c[FileCheckpointEnd] = w.start
		return c.forge(t, func(m *Manifest) { m.End = m.Start }).zip(t)
	}, 4},
	{"an older checkpoint, a fitting manifest", "part", func(t *testing.T, w *world, c content) []byte {
		c[FileCheckpointEnd] = w.start
		p, err := OpenCheckpoint(w.start, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		c[FileConsistency] = (&Consistency{From: p.Tree.N, To: p.Tree.N, Hashes: []tlog.Hash{}}).Text()
		l := c.lines()
		c.setLines(l[:p.Tree.N-33])
		return c.forge(t, func(m *Manifest) { m.End, m.Range.To, m.Lines = m.Start, p.Tree.N, p.Tree.N-33 }).zip(t)
	}, 4},
	{"a start that is complete further than the end", "range", func(t *testing.T, w *world, c content) []byte {
		p, err := OpenCheckpoint(w.start, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		p.CompleteUntil = 1 << 40
		c[FileCheckpointStart], err = SignCheckpoint(&p.Checkpoint, w.signer)
		if err != nil {
			t.Fatal(err)
		}
		return c.forge(t, nil).zip(t)
	}, 4},
	{"a start that the end does not continue", "range", func(t *testing.T, w *world, c content) []byte {
		p, err := OpenCheckpoint(w.start, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		p.Tree.Hash[0] ^= 1
		c[FileCheckpointStart], err = SignCheckpoint(&p.Checkpoint, w.signer, w.wit[0], w.wit[1])
		if err != nil {
			t.Fatal(err)
		}
		return c.forge(t, func(m *Manifest) { m.Start.Root = p.Tree.Hash }).zip(t)
	}, 4},
	{"another log's checkpoint", "range", func(t *testing.T, w *world, c content) []byte {
		c[FileCheckpointEnd] = other(t).end
		return c.forge(t, nil).zip(t)
	}, 4},
	{"another key", "range", func(t *testing.T, w *world, c content) []byte { return other(t).bundles["range"] }, 4},
	{"another key in log.vkey", "range", func(t *testing.T, w *world, c content) []byte {
		c[FileKey] = []byte(other(t).vkey + "\n")
		return c.forge(t, nil).zip(t)
	}, 4},
	{"another log in policy.txt", "range", func(t *testing.T, w *world, c content) []byte {
		c[FilePolicy] = []byte("log " + other(t).vkey + "\nquorum none\n")
		return c.forge(t, nil).zip(t)
	}, 4},
	{"no policy in policy.txt", "range", func(t *testing.T, w *world, c content) []byte {
		c[FilePolicy] = []byte("trust me\n")
		return c.forge(t, nil).zip(t)
	}, 4},
	{"spliced lines", "range", func(t *testing.T, w *world, c content) []byte {
		l, m := c.lines(), unzip(t, w.bundles["tenant"]).lines()
		c.setLines(append(l[:len(l)-len(m):len(l)-len(m)], m...))
		return c.forge(t, nil).zip(t)
	}, 4},
	{"spliced proofs", "range", func(t *testing.T, w *world, c content) []byte {
		c["proofs/17.tlog-proof"] = c["proofs/0.tlog-proof"]
		return c.forge(t, nil).zip(t)
	}, 4},
	{"proof of another leaf", "range", func(t *testing.T, w *world, c content) []byte {
		p, err := ParseProof(c["proofs/17.tlog-proof"])
		if err != nil {
			t.Fatal(err)
		}
		p.Index = 18
		delete(c, "proofs/17.tlog-proof")
		c["proofs/18.tlog-proof"] = p.Text()
		return c.forge(t, nil).zip(t)
	}, 4},
	{"proof beyond the range", "part", func(t *testing.T, w *world, c content) []byte {
		c["proofs/0.tlog-proof"] = unzip(t, w.bundles["range"])["proofs/0.tlog-proof"]
		return c.forge(t, nil).zip(t)
	}, 4},
	{"proof under an older checkpoint", "range", func(t *testing.T, w *world, c content) []byte {
		head, err := OpenCheckpoint(w.start, w.trusted())
		if err != nil {
			t.Fatal(err)
		}
		p, err := ProveLeaf(head.Tree, 17, w.tiles().Hashes(head.Tree), w.start)
		if err != nil {
			t.Fatal(err)
		}
		c["proofs/17.tlog-proof"] = p.Text()
		return c.forge(t, nil).zip(t)
	}, 4},
	{"spliced range proof", "range", func(t *testing.T, w *world, c content) []byte {
		c[FileRangeProof] = unzip(t, w.bundles["part"])[FileRangeProof]
		return c.forge(t, nil).zip(t)
	}, 4},
	{"a witness's signature gone", "range", func(t *testing.T, w *world, c content) []byte {
		c[FileCheckpointEnd] = dropCosignature(w.end, "w2.example")
		for _, n := range []string{"0", "17", fmt.Sprint(w.tree.Size() - 1)} {
			c["proofs/"+n+".tlog-proof"] = dropCosignature(c["proofs/"+n+".tlog-proof"], "w2.example")
		}
		return c.forge(t, nil).zip(t)
	}, 1},
}

func dropCosignature(signed []byte, name string) []byte {
	lines := bytes.SplitAfter(signed, []byte("\n"))
	return bytes.Join(slices.DeleteFunc(lines, func(l []byte) bool { return bytes.HasPrefix(l, []byte("— "+name)) }), nil)
}

func TestTamperings(t *testing.T) {
	w := newWorld(t, "log")
	for _, x := range tamperings {
		t.Run(x.name, func(t *testing.T) {
			b := x.change(t, w, unzip(t, w.bundles[x.bundle]))
			if r := verify(t, b, Options{Policy: w.trusted()}); r.Exit != x.exit {
				t.Errorf("exit %d, want %d: %+v", r.Exit, x.exit, r.Problems)
			}
		})
	}
}

// Each event of a tenant, removed, is missed.
func TestEveryEventOfATenantCounts(t *testing.T) {
	w := newWorld(t, "log")
	c := unzip(t, w.bundles["tenant"])
	for i := range c.lines() {
		b := forged(dropLine(i))(t, w, unzip(t, w.bundles["tenant"]))
		if r := verify(t, b, Options{Policy: w.trusted()}); r.Exit != 4 {
			t.Errorf("line %d removed: exit %d", i+1, r.Exit)
		}
	}
}

// What is missing from the log itself, or cannot be judged, is not a success.
func TestIncompleteLogs(t *testing.T) {
	w := &world{testLog: newTestLog(t, "log"), bundles: map[string][]byte{}}
	w.fill(10)
	w.start = w.sign()
	w.append((&Gap{From: w.seq + 1, To: w.seq + 3}).Append(nil))
	w.seq += 3
	w.fill(10)
	epoch := w.testLog.epoch("acme")
	w.end = w.sign()
	v, err := note.NewVerifier(w.vkey)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Policy: KeyPolicy(v)}
	if r := verify(t, w.export(Export{Completeness: CompleteRange, To: w.tree.Size()}), o); r.Exit != 3 {
		t.Errorf("a gap: exit %d: %+v", r.Exit, r.Problems)
	}
	if r := verify(t, w.tenant("acme", epoch), o); r.Exit != 0 {
		t.Errorf("a tenant: exit %d: %+v", r.Exit, r.Problems)
	}
	// The later part of a tenant's events, for who has the earlier one.
	later := w.export(Export{Completeness: CompleteTenant, Filter: Filter{Tenant: "acme"}, Epoch: epoch, Lines: w.tenantLines("acme", 11, epoch)})
	if r := verify(t, later, o); r.Exit != 3 {
		t.Errorf("a tenant from midway: exit %d: %+v", r.Exit, r.Problems)
	}
	o.Midway = true
	if r := verify(t, later, o); r.Exit != 0 {
		t.Errorf("a tenant from midway, as meant: exit %d: %+v", r.Exit, r.Problems)
	}
	o.Midway = false

	w.append(bytes.Replace(w.leaves[0], []byte("request.failed.v1"), []byte("request.failed.v9"), 1))
	w.end = w.sign()
	c := unzip(t, w.export(Export{Completeness: CompleteRange, To: w.tree.Size() - 1}))
	c.setLines(append(c.lines(), w.leaves[w.tree.Size()-1]))
	p, err := ProveRange(0, w.tree.Size(), w.tree.Head(), w.tiles().Hashes(w.tree.Head()))
	if err != nil {
		t.Fatal(err)
	}
	c[FileRangeProof] = p.Text()
	b := c.forge(t, func(m *Manifest) { m.Lines++; m.Range.To++ }).zip(t)
	if r := verify(t, b, o); r.Exit != 3 || len(r.Proven) == 0 {
		t.Errorf("a type of a newer version: exit %d: %+v", r.Exit, r.Problems)
	}
	// In a tenant's bundle nothing binds such a line.
	c = unzip(t, w.tenant("acme", epoch))
	l := c.lines()
	c.setLines(slices.Insert(l, 1, w.leaves[w.tree.Size()-1]))
	b = c.forge(t, func(m *Manifest) { m.Lines++ }).zip(t)
	if r := verify(t, b, o); r.Exit != 3 || len(r.Proven) != 0 {
		t.Errorf("a tenant's line of a newer version: exit %d, proven %q: %+v", r.Exit, r.Proven, r.Problems)
	}
}

// A log whose own chains are torn is not whole, whatever it signed.
func TestTornLog(t *testing.T) {
	for what, tear := range map[string]func(Head) Head{
		"an event that was never stored": func(h Head) Head { return Head{0, h.Seq, someHash} },
		"a number that was never given":  func(h Head) Head { return Head{0, h.Seq + 1, h.Hash} },
	} {
		w := &world{testLog: newTestLog(t, "log"), bundles: map[string][]byte{}}
		w.fill(10)
		w.heads["acme"][0] = tear(w.heads["acme"][0])
		w.fill(10)
		w.start = w.sign()
		w.end = w.start
		b := w.export(Export{Completeness: CompleteRange, To: w.tree.Size()})
		if r := verify(t, b, Options{Policy: w.policy()}); r.Exit != 4 {
			t.Errorf("%s: exit %d", what, r.Exit)
		}
	}
}

// A tenant with more chains than a leaf takes has an epoch of several leaves.
func TestLongEpoch(t *testing.T) {
	w := &world{testLog: newTestLog(t, "log"), bundles: map[string][]byte{}}
	for p := range MaxChains {
		w.event("acme", p-1)
	}
	at := w.testLog.epoch("acme")
	if n := w.tree.Size() - at; n != 2 {
		t.Fatalf("%d leaves", n)
	}
	w.event("globex", 0)
	w.start = w.sign()
	w.end = w.start
	if r := verify(t, w.tenant("acme", at), Options{Policy: w.policy()}); r.Exit != 0 {
		t.Errorf("exit %d: %+v", r.Exit, r.Problems)
	}
	whole := w.export(Export{Completeness: CompleteRange, To: w.tree.Size()})
	if r := verify(t, whole, Options{Policy: w.policy()}); r.Exit != 0 {
		t.Errorf("range: exit %d: %+v", r.Exit, r.Problems)
	}
	b := forged(dropLine(-1))(t, w, unzip(t, w.tenant("acme", at)))
	if r := verify(t, b, Options{Policy: w.policy()}); r.Exit != 4 {
		t.Errorf("without its second leaf: exit %d", r.Exit)
	}
	part := w.export(Export{Completeness: CompleteRange, To: at + 1})
	if r := verify(t, part, Options{Policy: w.policy()}); r.Exit != 0 {
		t.Errorf("a range that ends within it: exit %d: %+v", r.Exit, r.Problems)
	}
}
