package audit

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// personalLog is a world whose events name people, and what discloses them.
type personalLog struct {
	*world
	key  events.DigestKey
	open []events.Disclosure // of all lines, in order
}

func newPersonalLog(t testing.TB) *personalLog {
	t.Helper()
	p := &personalLog{world: &world{testLog: newTestLog(t, "log"), bundles: map[string][]byte{}}, key: events.NewTenantKey(seed("acme's key"))}
	p.policyText = fmt.Appendf(nil, "log %s\nquorum none\n", p.vkey)
	for i := range 30 {
		p.admit(i)
	}
	p.start = p.sign()
	p.epoch = p.testLog.epoch("acme")
	p.end = p.sign()
	return p
}

// admit appends an admission. Some name nobody, some are of an older build's form.
func (p *personalLog) admit(i int) {
	p.t.Helper()
	p.seq++
	id := fmt.Sprintf("01890a5d-ac96-774b-bcce-%012x", p.seq)
	at := time.Date(2026, 1, 2, 3, 4, 5, int(p.seq)*1000, time.UTC)
	a := &events.RequestAdmitted{Model: "m", Gateway: "gw1", PromptTokens: 3, MaxTokens: 4, TenantKey: p.key.Fingerprint,
		PromptDigest: events.Digest(p.key.Request(id), events.KindPrompt, []byte("hello")), PrefillBy: at, Deadline: at}
	disclose := func(field, value string) string {
		d := p.key.Disclose(events.AdmissionID(id), field, value)
		p.open = append(p.open, d)
		return d.Digest()
	}
	if i%3 != 0 {
		a.Label = disclose(events.FieldLabel, fmt.Sprintf("order-%d", i))
	}
	if i%4 != 0 {
		a.User = disclose(events.FieldUser, fmt.Sprintf("user%d@example.com <\"é\">", i))
	}
	if i == 12 {
		a.Label = "hmac-sha256:" + strings.Repeat("0f", 32)
	}
	h := p.heads["acme"][0]
	e := &events.Event{ID: events.AdmissionID(id), N: 1, Source: "/pdgate/lifecycle/lc1", Type: events.TypeAdmitted, Subject: id, Time: at,
		Tenant: "acme", TenantSeq: h.Seq + 1, TenantPrev: h.Hash, Data: a}
	line, err := events.Append(nil, e)
	if err != nil {
		p.t.Fatal(err)
	}
	p.heads["acme"] = map[int]Head{0: {0, e.TenantSeq, events.Hash(line)}}
	p.append(line)
}

func (p *personalLog) bundle(open []events.Disclosure) []byte {
	var seq iter.Seq2[events.Disclosure, error]
	if open != nil {
		seq = func(yield func(events.Disclosure, error) bool) {
			for _, d := range open {
				if !yield(d, nil) {
					return
				}
			}
		}
	}
	return p.export(Export{Completeness: CompleteTenant, Filter: Filter{Tenant: "acme"}, Epoch: p.epoch,
		Lines: p.tenantLines("acme", 0, p.epoch), Disclosures: seq})
}

func factOf(r *Report, name string) string {
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// A bundle opens as many of its digests as its exporter chose, and says so.
func TestDisclosures(t *testing.T) {
	p := newPersonalLog(t)
	all := len(p.open)
	every := func(n int) (some []events.Disclosure) {
		for i := 0; i < all; i += n {
			some = append(some, p.open[i])
		}
		return some
	}
	for _, tt := range []struct {
		name string
		open []events.Disclosure
	}{
		{"all", p.open}, {"every third", every(3)}, {"none", []events.Disclosure{}}, {"no file", nil},
	} {
		b := p.bundle(tt.open)
		r := verify(t, b, Options{Policy: p.trusted()})
		want := fmt.Sprintf("%d of %d salted digests; %d are not", len(tt.open), all, all-len(tt.open))
		if got := factOf(r, "disclosed"); r.Exit != 0 || got != want {
			t.Errorf("%s: exit %d, %q, want %q: %+v", tt.name, r.Exit, got, want, r.Problems)
		}
		claimed := slices.ContainsFunc(r.Proven, func(s string) bool { return strings.Contains(s, FileDisclosures) })
		if claimed != (tt.open != nil) {
			t.Errorf("%s: claims to disclose: %v", tt.name, claimed)
		}
		if c := unzip(t, b); len(tt.open) == 0 {
			for file, text := range c {
				if bytes.Contains(text, []byte("example.com <")) || bytes.Contains(text, []byte("order-")) {
					t.Errorf("%s: %s shows a value", tt.name, file)
				}
			}
		}
	}
	// The rest of the bundle does not depend on what is disclosed.
	with, without := unzip(t, p.bundle(p.open)), unzip(t, p.bundle(nil))
	for _, file := range []string{FileLines, FileCheckpointEnd, FileConsistency} {
		if !bytes.Equal(with[file], without[file]) {
			t.Errorf("%s differs", file)
		}
	}
}

// TestDisclosureTamperings changes what a bundle discloses, with a manifest that
// agrees.
func TestDisclosureTamperings(t *testing.T) {
	p := newPersonalLog(t)
	edit := func(f func(lines [][]byte) [][]byte) []byte {
		c := unzip(t, p.bundle(p.open))
		lines := bytes.SplitAfter(bytes.TrimSuffix(c[FileDisclosures], []byte("\n")), []byte("\n"))
		last := len(lines) - 1
		lines[last] = append(bytes.Clone(lines[last]), '\n')
		c[FileDisclosures] = bytes.Join(f(lines), nil)
		return c.forge(t, nil).zip(t)
	}
	change := func(f func(d *events.Disclosure)) []byte {
		return edit(func(lines [][]byte) [][]byte {
			d := p.open[5]
			d.Salt = bytes.Clone(d.Salt)
			f(&d)
			lines[5] = canonical(&d)
			return lines
		})
	}
	for name, b := range map[string][]byte{
		"another value":   change(func(d *events.Disclosure) { d.Value += "x" }),
		"no value":        change(func(d *events.Disclosure) { d.Value = "" }),
		"another salt":    change(func(d *events.Disclosure) { d.Salt[0]++ }),
		"no salt":         change(func(d *events.Disclosure) { d.Salt = []byte{} }),
		"another field":   change(func(d *events.Disclosure) { d.Field = "label2" }),
		"another's event": change(func(d *events.Disclosure) { d.Event = p.open[20].Event }),
		"an event that is not here": change(func(d *events.Disclosure) {
			d.Event = strings.Replace(d.Event, "01890a5d", "01890a5e", 1)
		}),
		"salt moved into the value": change(func(d *events.Disclosure) {
			d.Value, d.Salt = string(d.Salt[31:])+d.Value, d.Salt[:31]
		}),
		"swapped":  edit(func(l [][]byte) [][]byte { l[3], l[4] = l[4], l[3]; return l }),
		"doubled":  edit(func(l [][]byte) [][]byte { return slices.Insert(l, 3, l[3]) }),
		"cut off":  edit(func(l [][]byte) [][]byte { l[len(l)-1] = l[len(l)-1][:9]; return l }),
		"not JSON": edit(func(l [][]byte) [][]byte { l[2] = []byte("{}x\n"); return l }),
		"another spelling": edit(func(l [][]byte) [][]byte {
			l[2] = append([]byte(" "), l[2]...)
			return l
		}),
		"too long": edit(func(l [][]byte) [][]byte {
			return slices.Insert(l, 2, append(bytes.Repeat([]byte("x"), maxDisclosure), '\n'))
		}),
	} {
		if r := verify(t, b, Options{Policy: p.trusted()}); r.Exit != 4 {
			t.Errorf("%s: exit %d: %+v", name, r.Exit, r.Problems)
		}
	}
	if r := verify(t, edit(func(l [][]byte) [][]byte { return slices.Delete(l, 7, 8) }), Options{Policy: p.trusted()}); r.Exit != 0 {
		t.Errorf("one is left out, and the bundle does not verify: %+v", r.Problems)
	}
	flipBits(t, p.world, "disclosed", p.bundle(p.open[:8]))
}

// Whoever has no key cannot find a value by trying, however few there are; with
// the key in place the same search finds it.
func TestDictionaryAttack(t *testing.T) {
	p := newPersonalLog(t)
	leaf, err := ParseLeaf(p.leaves[1])
	if err != nil {
		t.Fatal(err)
	}
	e := leaf.Event
	found := func(key events.DigestKey) (value, prompt bool) {
		for i := range 100 {
			d := key.Disclose(e.ID, events.FieldUser, fmt.Sprintf("user%d@example.com <\"é\">", i))
			value = value || d.Digest() == e.Data.(*events.RequestAdmitted).User
		}
		for _, guess := range []string{"hi", "hello", "help"} {
			prompt = prompt || events.Digest(key.Request(e.Subject), events.KindPrompt, []byte(guess)) == e.Data.(*events.RequestAdmitted).PromptDigest
		}
		return value, prompt
	}
	if value, prompt := found(p.key); !value || !prompt {
		t.Error("with the key in place the dictionary does not hold the value: the search below shows nothing")
	}
	for name, secret := range map[string][]byte{"none": nil, "zeros": make([]byte, 32), "another": seed("another"), "its fingerprint": []byte(p.key.Fingerprint)} {
		if value, prompt := found(events.DigestKey{Secret: secret}); value || prompt {
			t.Errorf("%s: the value was found without the key", name)
		}
	}
	// A disclosed field, and the key of one kind of digest, open nothing else.
	d := p.key.Disclose(e.ID, events.FieldLabel, "order-1")
	if value, prompt := found(events.DigestKey{Secret: d.Salt}); value || prompt {
		t.Error("the salt of one field opens another")
	}
	kind := events.KindKey(p.key.Request(e.Subject), events.KindOutput)
	if events.Digest(kind, events.KindPrompt, []byte("hello")) == e.Data.(*events.RequestAdmitted).PromptDigest {
		t.Error("the key of the output's digest opens the prompt's")
	}
}
