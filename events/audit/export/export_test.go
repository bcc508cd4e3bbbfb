package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// read reads an export with a reader that knows nothing of this package, and
// counts what it holds.
func read(f Format, b []byte) (int, error) {
	switch f {
	case CSV:
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		return len(rows) - 1, err
	case Parquet:
		file, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return 0, err
		}
		return int(file.NumRows()), nil
	case OTLP:
		n := 0
		for line := range bytes.Lines(b) {
			traces, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
			if err != nil {
				return 0, err
			}
			n += traces.SpanCount()
		}
		return n, nil
	}
	n := 0
	for d := json.NewDecoder(bytes.NewReader(b)); ; n++ {
		var v map[string]any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

func TestGolden(t *testing.T) {
	all := testLog(t)
	for _, f := range Formats() {
		got := write(t, f, all)
		if _, err := read(f, got); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if f == Parquet {
			got = parquetText(t, got)
			golden(t, f.File()+".txt", got)
			continue
		}
		golden(t, f.File(), got)
	}
}

// parquetText is what a reader finds in a Parquet file: its bytes are those of the
// compressor's version.
func parquetText(t *testing.T, b []byte) []byte {
	t.Helper()
	file, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Appendf(nil, "%s\n", file.Schema())
	for _, r := range readParquet(t, b) {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

func readParquet(t *testing.T, b []byte) []row {
	t.Helper()
	rows, err := parquet.Read[row](bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Whatever breaks in the middle is an error, and leaves what no reader opens.
func TestErrorInTheMiddle(t *testing.T) {
	all := testLog(t)
	for _, f := range Formats() {
		for _, n := range []int{0, 1, 7, len(all)} {
			var b bytes.Buffer
			if err := Write(&b, f, broken(all, n)); !errors.Is(err, errBroken) {
				t.Errorf("%s after %d: %v", f, n, err)
			}
			if got, err := read(f, b.Bytes()); err == nil {
				t.Errorf("%s after %d: a reader takes it for whole, with %d", f, n, got)
			}
		}
	}
}

type fullDisk struct{ room int }

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) > d.room {
		return 0, errBroken
	}
	d.room -= len(p)
	return len(p), nil
}

func TestFullDisk(t *testing.T) {
	all := testLog(t)
	for _, f := range Formats() {
		if err := Write(&fullDisk{100}, f, sequence(all)); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestRefused(t *testing.T) {
	all := testLog(t)
	swapped := []Record{all[1], all[0]}
	damaged := []Record{{Seq: 1, Raw: []byte(`{"pdgate_gap":{"to":1,"from":1}}`)}}
	for _, f := range Formats() {
		if err := Write(io.Discard, f, sequence(swapped)); err == nil || !strings.Contains(err.Error(), "ascending") {
			t.Errorf("%s, out of order: %v", f, err)
		}
		if err := Write(io.Discard, f, sequence(damaged)); err == nil {
			t.Errorf("%s takes a damaged leaf", f)
		}
	}
	if err := Write(io.Discard, "avro", sequence(all)); err == nil || !strings.Contains(err.Error(), "cloudevents") {
		t.Errorf("unknown format: %v", err)
	}
	for _, f := range Formats() {
		if f.File() == "" {
			t.Errorf("%s has no file name", f)
		}
	}
	if f := Format("avro").File(); f != "" {
		t.Errorf("unknown format has file %q", f)
	}
}

// CloudEvents are the leaves, byte for byte.
func TestCloudEvents(t *testing.T) {
	all := testLog(t)
	lines := bytes.Split(bytes.TrimSuffix(write(t, CloudEvents, all), []byte("\n")), []byte("\n"))
	if len(lines) != len(all) {
		t.Fatalf("%d lines of %d", len(lines), len(all))
	}
	for i, r := range all {
		if !bytes.Equal(lines[i], r.Raw) {
			t.Errorf("line %d: %s", i, lines[i])
		}
	}
}

func TestCSV(t *testing.T) {
	all := testLog(t)
	got := write(t, CSV, all)
	if bytes.Count(got, []byte("\r\n")) < len(all) {
		t.Error("lines do not end in CRLF")
	}
	table, err := csv.NewReader(bytes.NewReader(got)).ReadAll()
	if err != nil || len(table) != len(all)+1 {
		t.Fatalf("%d lines: %v", len(table), err)
	}
	at := func(i int, name string) string { return table[i+1][slices.Index(table[0], name)] }
	for i, r := range all {
		if at(i, "sha256") != fmt.Sprintf("%x", sha256.Sum256(r.Raw)) || at(i, "seq") != fmt.Sprint(r.Seq) || at(i, "leaf") != fmt.Sprint(r.Leaf) {
			t.Errorf("line %d: %q", i, table[i+1])
		}
		for _, cell := range table[i+1] {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n") {
				t.Errorf("line %d: a spreadsheet runs %q", i, cell)
			}
		}
	}
	// The reader makes \n of \r\n.
	if want := "'" + strings.ReplaceAll(longMessage, "\r\n", "\n"); at(6, "message") != want {
		t.Errorf("%q", at(6, "message"))
	}
	for _, s := range []string{"=1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "＝1", "＋1", "－1", "＠x"} {
		if harmless(s) != "'"+s {
			t.Errorf("%q is a formula", s)
		}
	}
	for _, s := range []string{"", "a=1", "é", "12"} {
		if harmless(s) != s {
			t.Errorf("%q is no formula", s)
		}
	}
}

// What goes in comes out, the leaf byte for byte, and nil is not 0.
func TestParquet(t *testing.T) {
	all := testLog(t)
	rows := readParquet(t, write(t, Parquet, all))
	if len(rows) != len(all) {
		t.Fatalf("%d rows of %d", len(rows), len(all))
	}
	for i := range all {
		var want row
		err := each(sequence(all[i:i+1]), func(e *entry) error { want = flatten(e); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if want.Pages == nil {
			want.Pages = []pages{}
		}
		if rows[i].Pages == nil {
			rows[i].Pages = []pages{}
		}
		if d := cmp.Diff(want, rows[i]); d != "" {
			t.Errorf("row %d (-want +got):\n%s", i, d)
		}
		if rows[i].Raw != string(all[i].Raw) {
			t.Errorf("row %d: another leaf", i)
		}
	}
	if r := rows[8]; r.Drained == nil || *r.Drained || r.Scrubbed == nil || !*r.Scrubbed || rows[1].Drained != nil {
		t.Error("false and nil are one")
	}
	if n := len(rows[10].Pages); n != 300 {
		t.Errorf("%d page runs", n)
	}
}

// Row groups bound memory: by rows where leaves are short, and by bytes.
func TestRowGroups(t *testing.T) {
	all := testLog(t)
	short, long := all[13], all[10]
	if short.Seq != 54 || len(long.Raw) < 3000 {
		t.Fatal("the test's log is another one")
	}
	for _, x := range []struct {
		leaf         Record
		rows, groups int
	}{
		{short, groupRows + 10, 2},
		{long, 2*groupBytes/len(long.Raw) + 10, 3},
	} {
		var b bytes.Buffer
		err := Write(&b, Parquet, func(yield func(Record, error) bool) {
			for range x.rows {
				x.leaf.Seq++
				if !yield(x.leaf, nil) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		file, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if len(file.RowGroups()) != x.groups || file.NumRows() != int64(x.rows) {
			t.Errorf("leaves of %d bytes: %d groups with %d rows, want %d with %d", len(x.leaf.Raw), len(file.RowGroups()), file.NumRows(), x.groups, x.rows)
		}
	}
}

// Blast radius: which requests held pages of one worker that another one held too,
// from the Parquet file alone.
func TestBlastRadius(t *testing.T) {
	rows := readParquet(t, write(t, Parquet, testLog(t)))
	victim := slices.IndexFunc(rows, func(r row) bool { return r.Subject == failed && len(r.Pages) > 0 })
	var hit []string
	for _, r := range rows {
		if r.Subject == failed || r.Worker != rows[victim].Worker || r.WorkerEpoch == nil || *r.WorkerEpoch != *rows[victim].WorkerEpoch {
			continue
		}
		for _, p := range r.Pages {
			for _, q := range rows[victim].Pages {
				if p.Start < q.Start+q.Count && q.Start < p.Start+p.Count {
					hit = append(hit, r.Subject)
				}
			}
		}
	}
	if got := slices.Compact(hit); !reflect.DeepEqual(got, []string{decoded}) {
		t.Errorf("%q", got)
	}
}

type spanFacts struct {
	Name, Status string
	Events       []string
	Open, Before bool
}

func TestOTLP(t *testing.T) {
	got := map[string]spanFacts{}
	var alone []string
	for line := range bytes.Lines(write(t, OTLP, testLog(t))) {
		traces, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			t.Fatal(err)
		}
		spans := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans()
		for i := range spans.Len() {
			s := spans.At(i)
			if s.EndTimestamp() < s.StartTimestamp() || s.TraceID().IsEmpty() || s.SpanID().IsEmpty() {
				t.Errorf("%s: %v to %v", s.Name(), s.StartTimestamp(), s.EndTimestamp())
			}
			id, ok := s.Attributes().Get("pdgate.request")
			if !ok {
				alone = append(alone, s.Name())
				continue
			}
			f := spanFacts{Name: s.Name(), Status: s.Status().Code().String()}
			_, f.Open = s.Attributes().Get("pdgate.open")
			_, f.Before = s.Attributes().Get("pdgate.began_before")
			for j := range s.Events().Len() {
				f.Events = append(f.Events, strings.TrimSuffix(strings.TrimPrefix(s.Events().At(j).Name(), "request."), ".v1"))
			}
			if _, ok := got[id.Str()]; ok {
				t.Errorf("two spans of request %s", id.Str())
			}
			got[id.Str()] = f
			if id.Str() == decoded && (s.TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" || s.ParentSpanID().String() != "00f067aa0ba902b7") {
				t.Errorf("trace context is lost: %s %s", s.TraceID(), s.ParentSpanID())
			}
		}
	}
	want := map[string]spanFacts{
		decoded:  {"request", "Ok", []string{"admitted", "prefilled", "transfer_granted", "transferred", "decoded", "released", "released"}, false, false},
		rejected: {"request", "Error", []string{"rejected"}, false, false},
		failed:   {"request", "Error", []string{"admitted", "prefilled", "command.denied", "failed"}, false, false},
		open:     {"request", "Unset", []string{"admitted"}, true, false},
		before:   {"request", "Unset", []string{"cancelled"}, false, true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"worker.joined.v1", typeGap, typeForeign, "command.denied.v1", "command.denied.v1", "model.quarantined.v1"}, alone); d != "" {
		t.Errorf("spans of their own (-want +got):\n%s", d)
	}
}

// The open requests are all that OTLP holds.
func TestOTLPForgets(t *testing.T) {
	o := newOTLP(nil)
	all := testLog(t)[:9] // up to the release of all of the first request's pages
	if err := each(sequence(all), o.add); err != nil {
		t.Fatal(err)
	}
	if len(o.open) != 0 {
		t.Errorf("%d are held", len(o.open))
	}
}

// A span holds so many events, and counts the others.
func TestOTLPSpanIsBounded(t *testing.T) {
	all := testLog(t)
	admitted, denied := all[9], all[11]
	records := []Record{admitted}
	for range maxSpanEvents + 72 {
		denied.Seq++
		records = append(records, denied)
	}
	traces, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(write(t, OTLP, records))
	if err != nil || traces.SpanCount() != 1 {
		t.Fatalf("%d spans: %v", traces.SpanCount(), err)
	}
	s := traces.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0)
	if s.Events().Len() != maxSpanEvents || s.DroppedEventsCount() != 73 {
		t.Errorf("%d events, %d dropped", s.Events().Len(), s.DroppedEventsCount())
	}
}
