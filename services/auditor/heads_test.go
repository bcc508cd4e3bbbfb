package auditor

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/keyring"
)

// tenancy writes events of tenants, each in its chains.
type tenancy struct {
	*site
	ends map[string]map[int]audit.Head
}

// add stores one event of each tenant, in one message a partition.
func (y *tenancy) add(tenants ...string) {
	y.t.Helper()
	lines := map[int][]byte{}
	for _, tenant := range tenants {
		y.n++
		id := uuid.Must(uuid.NewV7()).String()
		p := events.PartitionOf(id, 2)
		if y.ends[tenant] == nil {
			y.ends[tenant] = map[int]audit.Head{}
		}
		end := y.ends[tenant][p]
		b, err := events.Append(nil, &events.Event{ID: id + ".1", Source: "test", Type: events.TypeCancelled, Subject: id, N: 1,
			Time: time.Unix(1_800_000_000, 0), Tenant: tenant, TenantSeq: end.Seq + 1, TenantPrev: end.Hash,
			Data: &events.RequestCancelled{Reason: events.CodeCancelled, From: events.Admitted}})
		if err != nil {
			y.t.Fatal(err)
		}
		y.ends[tenant][p] = audit.Head{Partition: p, Seq: end.Seq + 1, Hash: events.Hash(b)}
		lines[p] = append(append(lines[p], b...), '\n')
	}
	for p := range 2 {
		if len(lines[p]) == 0 {
			continue
		}
		for l := range bytes.Lines(lines[p]) {
			y.leaves = append(y.leaves, bytes.TrimSuffix(l, []byte("\n")))
		}
		y.store(p, lines[p])
	}
}

// audit stores a read's event, between two others, and returns its position.
func (s *site) audit(d *events.Audit) events.Position {
	s.t.Helper()
	s.n++
	id := uuid.Must(uuid.NewV7()).String()
	b, err := events.Append(nil, &events.Event{ID: "read." + id, Source: "test", Type: events.TypeAuditRead, Subject: id,
		Time: events.Micros(time.Now()), Data: &events.AuditRead{Reader: d.Reader, Kind: d.Kind, Via: d.Via, Reads: d.Reads, Tenant: d.Tenant}})
	if err != nil {
		s.t.Fatal(err)
	}
	before, after := s.event(), s.event()
	seq := s.store(events.OpsPartition, slices.Concat(before, []byte("\n"), b, []byte("\n"), after, []byte("\n")))
	s.leaves = append(s.leaves, before, b, after)
	return events.Position{Seq: seq, Line: 1}
}

// export stores an export's event and notes the epoch leaves that it asks for.
func (y *tenancy) export(tenant string) events.Position {
	y.t.Helper()
	pos := y.audit(&events.Audit{Reader: "local", Kind: events.ReadExport, Via: "http", Reads: 1, Tenant: tenant})
	var heads []audit.Head
	for _, h := range y.ends[tenant] {
		heads = append(heads, h)
	}
	after := y.leaves[len(y.leaves)-1]
	y.leaves = y.leaves[:len(y.leaves)-1]
	for _, e := range audit.NewEpochs(pos, tenant, heads) {
		y.leaves = append(y.leaves, e.Append(nil))
	}
	y.leaves = append(y.leaves, after)
	return pos
}

func (s *site) seqOf(leaf int) uint64 {
	s.t.Helper()
	end, err := s.log.Last(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for seq, n := uint64(1), 0; seq <= end; seq++ {
		env, err := s.log.Read(s.t.Context(), seq)
		if err != nil {
			s.t.Fatal(err)
		}
		if n += bytes.Count(env.Lines, []byte("\n")); leaf < n {
			return seq
		}
	}
	s.t.Fatalf("no leaf %d", leaf)
	return 0
}

// An export that names a tenant is followed by the ends of that tenant's chains,
// directly and at every replica, whether it grew up with the log or came back.
func TestEpochs(t *testing.T) {
	s := newSite(t, nil)
	y := &tenancy{s, map[string]map[int]audit.Head{}}
	y.export("nobody")
	for i := range 40 {
		y.add("acme", "globex", fmt.Sprintf("t%d", i%3))
	}
	cfg := s.config("a1", t.TempDir())
	r := s.start(cfg)
	r.signedAll()
	y.export("acme")
	s.audit(&events.Audit{Reader: "local", Kind: events.ReadExport, Via: "http", Reads: 1}) // of everybody: no epoch
	s.audit(&events.Audit{Reader: "local", Kind: events.ReadEntries, Via: "http", Reads: 1, Tenant: "acme"})
	y.add("acme", "acme", "globex")
	r.signedAll()
	line := s.leaves[len(s.leaves)-1]
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	y.export("acme") // while nobody follows
	y.export("globex")
	r = s.start(cfg)
	c := r.signedAll()
	// A line behind an epoch leaf is found by its place among events.
	p, f := r.proof(t.Context(), receipt{pos: events.Position{Seq: c.CompleteUntil, Line: 2}})
	if f != nil || !bytes.Equal(p.Extra, s.leaves[len(s.leaves)-1]) {
		t.Errorf("behind an epoch: %+v", f)
	}
	p, f = r.proof(t.Context(), receipt{pos: events.Position{Seq: s.tail[events.PartitionOf(subjectOf(t, line), 2)]}})
	if f != nil || len(p.Extra) == 0 {
		t.Errorf("before it: %+v", f)
	}

	// A rebuilt tree has the same root.
	cfg.Dir, cfg.Conn = t.TempDir(), s.connect(keyring.Auditor)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	head, err := a.Rebuild(t.Context())
	if err != nil || head.Tree != c.Tree {
		t.Errorf("rebuilt %v, signed %v: %v", head.Tree, c.Tree, err)
	}
}

func subjectOf(t *testing.T, line []byte) string {
	t.Helper()
	e, err := events.Decode(line)
	if err != nil {
		t.Fatal(err)
	}
	return e.Subject
}

// The file of heads spares reading the tree. Damaged, cut or of another tree, it is
// worth nothing, and what it held comes from the tiles.
func TestHeadsFile(t *testing.T) {
	s := newSite(t, nil)
	y := &tenancy{s, map[string]map[int]audit.Head{}}
	for range 30 {
		y.add("acme", "globex")
	}
	r := s.start(s.config("a1", t.TempDir()))
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st := r.committed.Load()
	path := filepath.Join(r.cfg.Dir, headsFile)
	open := func() *store {
		t.Helper()
		s, err := openStore(r.cfg.Dir, func(string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	store := open()
	defer func() { store.close() }()
	load := func(useful bool) *heads {
		t.Helper()
		h, useless, err := loadHeads(store, st, 2)
		if err != nil || (useless == nil) != useful {
			t.Fatalf("useless: %v, %v", useless, err)
		}
		for tenant, want := range y.ends {
			got := h.of(tenant)
			if len(got) != len(want) {
				t.Errorf("%s has %d chains, want %d", tenant, len(got), len(want))
			}
			for _, end := range got {
				if end != want[end.Partition] {
					t.Errorf("%s: %+v, want %+v", tenant, end, want[end.Partition])
				}
			}
		}
		return h
	}
	load(true) // there is no file
	if err := r.heads.save(store, st); err != nil {
		t.Fatal(err)
	}
	size := st.Size
	store.close()
	// What came after the file was written is read from the tiles, and nothing else.
	r = s.start(r.cfg)
	y.add("acme", "initech", "initech")
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	store, st = open(), r.committed.Load()
	if h := load(true); h.saved != size || st.Size != size+3 {
		t.Errorf("the file is of %d leaves, want %d of %d", h.saved, size, st.Size)
	}
	if err := r.heads.save(store, st); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"flipped":      bytes.Replace(whole, []byte("acme "), []byte("acmf "), 1),
		"cut":          whole[:len(whole)-10],
		"empty":        nil,
		"another tree": bytes.Replace(whole, []byte(`"root":"`), []byte(`"root":"AAAA`), 1),
		"of more":      bytes.Replace(whole, fmt.Appendf(nil, `"size":%d`, st.Size), fmt.Appendf(nil, `"size":%d`, st.Size+1), 1),
		"of less":      bytes.Replace(whole, fmt.Appendf(nil, `"size":%d`, st.Size), fmt.Appendf(nil, `"size":%d`, st.Size-1), 1),
	} {
		if bytes.Equal(b, whole) {
			t.Fatalf("%s: nothing changed", name)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		load(false)
	}
}

// Entries up to a recorded export may be read on its account, by its reader and
// nobody else, and are not recorded one by one.
func TestExportCovers(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	rec := &reads{site: s}
	cfg := s.config("a1", t.TempDir())
	cfg.Recorder = rec
	r := s.start(cfg)
	r.signedAll()
	code, body := post(t, r.url+"/export", s.token(), `{"model":"m"}`)
	if code != http.StatusOK || !strings.HasPrefix(body, `{"position":"`) {
		t.Fatalf("export: %d %s", code, body)
	}
	at := strings.Split(body, `"`)[3]
	if got := rec.take(); len(got) != 1 || got[0].Kind != events.ReadExport || got[0].Model != "m" || got[0].Reader != "local" {
		t.Errorf("recorded %+v", got)
	}
	other := s.audit(&events.Audit{Reader: "somebody", Kind: events.ReadExport, Via: "http", Reads: 1}).String()
	s.fill(600)
	last := s.audit(&events.Audit{Reader: "local", Kind: events.ReadEntries, Via: "http", Reads: 1}).String()
	r.signedAll()
	rec.take()
	for _, tt := range []struct {
		tile, export string
		code         int
	}{
		{"000", at, 200}, {"001", at, 200}, {"002", at, 403}, {"000", other, 403}, {"000", last, 403},
		{"000", "1.0", 403}, {"000", "999999.0", 403}, {"000", "x", 403}, {"000", "0.0", 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/tile/entries/"+tt.tile, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.token())
		req.Header.Set(ExportHeader, tt.export)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.code {
			t.Errorf("tile %s under %q: %d, want %d", tt.tile, tt.export, resp.StatusCode, tt.code)
		}
	}
	if got := rec.take(); len(got) != 0 {
		t.Errorf("recorded %+v", got)
	}
	for body, want := range map[string]int{`{"tenants":"x"}`: 400, `no`: 400} {
		if code, answer := post(t, r.url+"/export", s.token(), body); code != want {
			t.Errorf("%s: %d %s", body, code, answer)
		}
	}
	if code, _ := post(t, r.url+"/export", "", `{}`); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
}

// The heads that an export asks for may stand in the tile behind its event's.
func TestExportCoversHeads(t *testing.T) {
	s := newSite(t, nil)
	y := &tenancy{s, map[string]map[int]audit.Head{}}
	s.fill(audit.TileWidth - 2)
	pos := y.export("acme") // the event is the tile's last leaf
	s.fill(audit.TileWidth)
	r := s.start(s.config("a1", t.TempDir()))
	r.signedAll()
	for n, want := range map[int64]bool{0: true, 1: true, 2: false} {
		f := r.covered(pos.String(), "local", tlog.Tile{H: audit.TileHeight, L: audit.EntriesLevel, N: n, W: 1})
		if (f == nil) != want {
			t.Errorf("tile %d: %+v", n, f)
		}
	}
}

func post(t *testing.T, url, token, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	code, _, answer := send(t, req)
	return code, answer
}
