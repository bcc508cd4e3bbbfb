package events

import (
	"bytes"
	"errors"
	"flag"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares b, and a newline, with a file. The files are the contract
// with everything that was ever stored: a changed one is a broken version.
func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".json")
	b = append(bytes.Clone(b), '\n')
	if *update {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(b)); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

func TestEventGolden(t *testing.T) {
	for suffix, all := range map[string][]*Event{"": fullEvents(), ".lean": leanEvents()} {
		seen := make(map[Type]bool)
		for _, e := range all {
			seen[e.Type] = true
			b, err := Append(nil, e)
			if err != nil {
				t.Fatalf("%s: %v", e.Type, err)
			}
			golden(t, string(e.Type)+suffix, b)
			got, err := Decode(b)
			if err != nil {
				t.Fatalf("%s: %v", e.Type, err)
			}
			if diff := cmp.Diff(e, got); diff != "" {
				t.Errorf("%s comes back changed (-want +got):\n%s", e.Type, diff)
			}
		}
		for typ := range forms {
			if !seen[typ] {
				t.Errorf("%s has no golden%s sample", typ, suffix)
			}
		}
	}
}

// Stored bytes never change, so every golden file stays readable by every later
// build, also where no sample makes it any more.
func TestGoldenEventsStayReadable(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "*.v*.json"))
	if err != nil || len(files) < 2*len(allTypes) {
		t.Fatalf("%d golden events, %v", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(bytes.TrimSuffix(b, []byte("\n"))); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// The lists of words are written by hand; this reads the constants from the
// source and finds the ones that a list lacks.
func TestWordListsAreComplete(t *testing.T) {
	listed := map[string]map[string]bool{}
	note := func(kind, w string) {
		if listed[kind] == nil {
			listed[kind] = map[string]bool{}
		}
		if listed[kind][w] {
			t.Errorf("%s %q is listed twice", kind, w)
		}
		listed[kind][w] = true
	}
	for _, w := range AllTypes() {
		note("Type", string(w))
		if forms[w].fresh == nil || forms[w].up != nil || !w.Known() {
			t.Errorf("%s has no newest form", w)
		}
	}
	for _, w := range AllStates() {
		note("State", string(w))
	}
	for _, w := range AllRoles() {
		note("Role", string(w))
	}
	for _, w := range AllCodes() {
		note("Code", string(w))
	}
	for _, w := range AllCommandTypes() {
		note("CommandType", string(w))
		if d := newCommandData(w); d == nil || d.CommandType() != w {
			t.Errorf("%s has no data", w)
		}
	}
	for _, w := range AllFinishReasons() {
		note("FinishReason", string(w))
	}
	found := 0
	files, _ := filepath.Glob("*.go")
	for _, name := range files {
		f, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				s := s.(*ast.ValueSpec)
				kind, ok := s.Type.(*ast.Ident)
				if !ok || listed[kind.Name] == nil {
					continue
				}
				w, _ := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
				found++
				if !listed[kind.Name][w] {
					t.Errorf("%s %q is in no list", kind.Name, w)
				}
			}
		}
	}
	total := 0
	for _, l := range listed {
		total += len(l)
	}
	if found != total {
		t.Errorf("%d constants in the source, %d words in the lists", found, total)
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		field string
		spoil func(*Event)
	}{
		{"no id", "id", func(e *Event) { e.ID = "" }},
		{"no source", "source", func(e *Event) { e.Source = "" }},
		{"no subject", "subject", func(e *Event) { e.Subject = "" }},
		{"another number", "id", func(e *Event) { e.N = 4 }},
		{"a number outside of the history", "id", func(e *Event) { e.N = 0 }},
		{"a negative number", "id", func(e *Event) { e.N, e.ID = -1, e.Subject+".-1" }},
		{"unknown type", "type", func(e *Event) { e.Type = "request.admitted.v2" }},
		{"another type's data", "type", func(e *Event) { e.Data = &WorkerLeft{} }},
		{"no data", "data", func(e *Event) { e.Data = nil }},
		{"nil data", "data", func(e *Event) { e.Data = (*RequestFailed)(nil) }},
		{"line without sequence", "prev", func(e *Event) { e.Prev = Position{0, 1} }},
		{"negative line", "prev", func(e *Event) { e.Prev.Line = -1 }},
		{"year 10000", "time", func(e *Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }},
		{"id not UTF-8", "id", func(e *Event) { e.ID, e.N = "\xff", 0 }},
		{"source not UTF-8", "source", func(e *Event) { e.Source = "\xff" }},
		{"command not UTF-8", "command", func(e *Event) { e.Command = "\xff" }},
		{"principal not UTF-8", "principal", func(e *Event) { e.Principal = "\xff" }},
		{"tenant not UTF-8", "tenant", func(e *Event) { e.Tenant = "\xff" }},
		{"tenantprev not UTF-8", "tenantprev", func(e *Event) { e.TenantPrev = "\xff" }},
		{"traceparent not UTF-8", "traceparent", func(e *Event) { e.Traceparent = "\xff" }},
		{"unknown state", "data.from", func(e *Event) { e.Data.(*RequestFailed).From = "limbo" }},
		{"empty state", "data.from", func(e *Event) { e.Data.(*RequestFailed).From = "" }},
		{"unknown code", "data.error.code", func(e *Event) { e.Data.(*RequestFailed).Error.Code = "oops" }},
		{"negative status", "data.error.http_status", func(e *Event) { e.Data.(*RequestFailed).Error.Status = -1 }},
		{"message not UTF-8", "data.error.message", func(e *Event) { e.Data.(*RequestFailed).Error.Message = "\xc3" }},
		{"unknown role", "data.role", func(e *Event) { e.Type, e.Data = TypeReleased, &RequestReleased{Role: "king"} }},
		{"unknown finish reason", "data.finish_reason", func(e *Event) { e.Type, e.Data = TypeDecoded, &RequestDecoded{FinishReason: "abort"} }},
		{"unknown command", "data.command", func(e *Event) { e.Type, e.Data = TypeDenied, &CommandDenied{Code: CodeMalformed} }},
		{"negative fact", "data.facts.queue_depth", func(e *Event) {
			e.Type, e.Data = TypeAdmitted, &RequestAdmitted{Facts: AdmissionFacts{QueueDepth: -1}}
		}},
		{"empty run", "data.pages[1]", func(e *Event) { e.Type, e.Data = TypePrefilled, &RequestPrefilled{Pages: []PageRun{{0, 1, 1}, {}}} }},
		{"too many runs", "data.pages", func(e *Event) {
			e.Type, e.Data = TypePrefilled, &RequestPrefilled{Pages: make([]PageRun, MaxRuns+1)}
		}},
		{"too long", "", func(e *Event) { e.Data.(*RequestFailed).Stage = strings.Repeat("x", MaxEvent) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := fullEvents()[6]
			tc.spoil(e)
			dst := []byte("before")
			got, err := Append(dst, e)
			var f *FieldError
			if !errors.As(err, &f) || f.Field != tc.field {
				t.Fatalf("error %v, want one of field %q", err, tc.field)
			}
			if string(got) != "before" {
				t.Errorf("left %q behind", got)
			}
		})
	}
}

// The largest page list that an event may hold fits an entry.
func TestMaxRunsFit(t *testing.T) {
	e := fullEvents()[2]
	runs := make([]PageRun, MaxRuns)
	for i := range runs {
		runs[i] = PageRun{1<<32 - 1, 1<<32 - 1, 1<<64 - 1}
	}
	e.Data.(*RequestPrefilled).Pages = runs
	b, err := Append(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(b); err != nil {
		t.Fatal(err)
	}
}

func TestAppendCutsTimes(t *testing.T) {
	e := fullEvents()[0]
	e.Time = e.Time.Add(999 * time.Nanosecond).In(time.FixedZone("x", 3600))
	b, err := Append(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"time":"2026-01-02T03:04:05.678901Z"`; !bytes.Contains(b, []byte(want)) {
		t.Errorf("%s lacks %s", b, want)
	}
}

// Each case changes one place of a canonical event.
func TestDecodeRefuses(t *testing.T) {
	full := fullEvents()
	for _, tc := range []struct {
		name     string
		event    int
		old, new string
		field    string
	}{
		{"doubled attribute", 0, `"subject":`, `"source":"x","subject":`, "source"},
		{"doubled member", 0, `"max_tokens":`, `"model":"x","max_tokens":`, "data.model"},
		{"members out of order", 0, `"model":"llama-3.1","gateway":"gw1"`, `"gateway":"gw1","model":"llama-3.1"`, "data.model"},
		{"attributes out of order", 0, `"tenant":"acme","tenantseq":17`, `"tenantseq":17,"tenant":"acme"`, "tenant"},
		{"key in another case", 0, `"model":`, `"Model":`, "data.Model"},
		{"attribute in another case", 0, `"source":`, `"Source":`, "Source"},
		{"unknown attribute", 0, `"data":{`, `"extra":1,"data":{`, "extra"},
		{"unknown member", 0, `"gateway":`, `"extra":1,"gateway":`, "data.extra"},
		{"unknown member of a member", 0, `"context_tokens":`, `"extra":1,"context_tokens":`, "data.facts.extra"},
		{"escaped key", 0, `"model":`, `"\u006dodel":`, `data.\u006dodel`},
		{"missing attribute", 0, `"source":"/pdgate/lifecycle/lc1",`, ``, "source"},
		{"missing data", 11, `,"data":{"worker":"p1","epoch":1767323045678901,"reason":"shutdown"}`, ``, "data"},
		{"missing type", 0, `"type":"request.admitted.v1",`, ``, "data"},
		{"missing member", 0, `"gateway":"gw1",`, ``, "data.gateway"},
		{"missing member of a member", 0, `"queue_limit":512,`, ``, "data.facts.queue_limit"},
		{"another specversion", 0, `"specversion":"1.0"`, `"specversion":"1.1"`, "specversion"},
		{"another content type", 0, `"application/json"`, `"text/plain"`, "datacontenttype"},
		{"space", 0, `"gateway":`, ` "gateway":`, "data"},
		{"space after a colon", 0, `"gateway":`, `"gateway": `, "data.gateway"},
		{"trailing space", 11, `"shutdown"}}`, `"shutdown"}} `, ""},
		{"trailing object", 11, `"shutdown"}}`, `"shutdown"}}{}`, ""},
		{"cut off", 11, `"shutdown"}}`, `"shutdown"}`, ""},
		{"string for a number", 0, `"choice":1`, `"choice":"1"`, "data.choice"},
		{"number for a string", 0, `"gateway":"gw1"`, `"gateway":1`, "data.gateway"},
		{"null", 0, `"gateway":"gw1"`, `"gateway":null`, "data.gateway"},
		{"number for a boolean", 0, `"stream":true`, `"stream":1`, "data.stream"},
		{"list for an object", 0, `"facts":{`, `"facts":[{`, "data.facts"},
		{"object for a list", 2, `"pages":[[`, `"pages":{[`, "data.pages"},
		{"negative count", 0, `"choice":1`, `"choice":-1`, "data.choice"},
		{"fraction", 0, `"choice":1`, `"choice":1.0`, "data.choice"},
		{"exponent", 0, `"choice":1`, `"choice":1e0`, "data.choice"},
		{"leading zero", 0, `"choice":1`, `"choice":01`, "data.choice"},
		{"count out of range", 0, `"choice":1`, `"choice":9223372036854775808`, "data.choice"},
		{"epoch out of range", 2, `"worker_epoch":1767323045678901`, `"worker_epoch":18446744073709551616`, "data.worker_epoch"},
		{"page out of range", 2, `[4096,1,7]`, `[4294967296,1,7]`, "data.pages[1]"},
		{"empty page run", 2, `[4096,1,7]`, `[4096,0,7]`, "data.pages[1]"},
		{"short page run", 2, `[4096,1,7]`, `[4096,1]`, "data.pages[1]"},
		{"long page run", 2, `[4096,1,7]`, `[4096,1,7,1]`, "data.pages[1]"},
		{"comma after the last run", 2, `1,18446744073709551615]]`, `1,18446744073709551615],]`, "data.pages[3]"},
		{"empty optional text", 0, `"group":"` + groupID + `"`, `"group":""`, "data.group"},
		{"empty optional count", 0, `"choice":1`, `"choice":0`, "data.choice"},
		{"empty optional attribute", 0, `"tenantseq":17`, `"tenantseq":0`, "tenantseq"},
		{"needless escape", 0, `"gw1"`, `"gw\u0031"`, "data.gateway"},
		{"escaped slash", 0, `"/pdgate/lifecycle/lc1"`, `"\/pdgate/lifecycle/lc1"`, "source"},
		{"long escape", 12, `\n`, `\u000a`, "data.reason"},
		{"escape in upper case", 12, `\u0001`, `\u001F`, "data.reason"},
		{"raw control character", 12, `\u0001`, "\x01", "data.reason"},
		{"half a surrogate pair", 12, `\u0001`, `\ud800`, "data.reason"},
		{"unknown escape", 12, `\u0001`, `\x01`, "data.reason"},
		{"not UTF-8", 0, `"gw1"`, "\"gw\xff\"", "data.gateway"},
		{"time without fraction", 0, `03:04:05.678901Z","datacontent`, `03:04:05Z","datacontent`, "time"},
		{"time with another zone", 0, `03:04:05.678901Z","datacontent`, `03:04:05.678901+00:00","datacontent`, "time"},
		{"time in lower case", 0, `2026-01-02T03:04:05.678901Z","datacontent`, `2026-01-02t03:04:05.678901Z","datacontent`, "time"},
		{"31 April", 0, `2026-01-02T03:04:05.678901Z","datacontent`, `2026-04-31T03:04:05.678901Z","datacontent`, "time"},
		{"second 60", 0, `03:04:05.678901Z","datacontent`, `03:04:60.678901Z","datacontent`, "time"},
		{"unknown state", 7, `"from":"prefilled"`, `"from":"limbo"`, "data.from"},
		{"empty state", 7, `"from":"prefilled"`, `"from":""`, "data.from"},
		{"unknown code", 7, `"client_gone"`, `"gone"`, "data.reason"},
		{"escaped word", 7, `"from":"prefilled"`, `"from":"prefille\u0064"`, "data.from"},
		{"position without a line", 0, `"1207.4"`, `"1207"`, "prev"},
		{"position with zeros", 0, `"1207.4"`, `"01207.4"`, "prev"},
		{"empty position", 0, `"1207.4"`, `""`, "prev"},
		{"empty id", 0, `"id":"` + requestID + `.3"`, `"id":""`, "id"},
		{"empty source", 0, `"/pdgate/lifecycle/lc1"`, `""`, "source"},
		{"unknown version", 0, `"request.admitted.v1"`, `"request.admitted.v2"`, "type"},
		{"unknown type", 0, `"request.admitted.v1"`, `"request.vanished.v1"`, "type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := Append(nil, full[tc.event])
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(b), tc.old); n != 1 {
				t.Fatalf("%q stands %d times in %s", tc.old, n, b)
			}
			b = []byte(strings.Replace(string(b), tc.old, tc.new, 1))
			e, err := Decode(b)
			var f *FieldError
			if !errors.As(err, &f) {
				t.Fatalf("got %+v, %v", e, err)
			}
			if f.Field != tc.field {
				t.Errorf("error %q is of field %q, want %q", err, f.Field, tc.field)
			}
			if strings.Contains(tc.name, "unknown t") || strings.Contains(tc.name, "unknown v") {
				if !errors.Is(err, ErrUnknownType) {
					t.Errorf("error %q is not ErrUnknownType", err)
				}
			}
		})
	}
	if _, err := Decode(nil); err == nil {
		t.Error("nothing is an event")
	}
	if _, err := Decode(bytes.Repeat([]byte("x"), MaxEvent+1)); err == nil {
		t.Error("too long a line is an event")
	}
}

// Every prefix of an event is refused, and so is every changed byte that makes
// another text: the canonical form leaves no slack.
func TestDecodeTakesOneFormOnly(t *testing.T) {
	for _, e := range append(fullEvents(), leanEvents()...) {
		b, err := Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			if _, err := Decode(b[:i]); err == nil {
				t.Fatalf("%s: the first %d bytes decode", e.Type, i)
			}
			for _, c := range []byte{b[i] ^ 1, b[i] ^ 0x20, ' ', '0', '"'} {
				m := bytes.Clone(b)
				if m[i] = c; bytes.Equal(m, b) {
					continue
				}
				got, err := Decode(m)
				if err != nil {
					continue
				}
				if again, err := Append(nil, got); err != nil || !bytes.Equal(again, m) {
					t.Fatalf("%s: %s decodes, but encodes as %s, %v", e.Type, m, again, err)
				}
			}
		}
	}
}

func TestErrorsQuoteNoValues(t *testing.T) {
	b, _ := Append(nil, fullEvents()[7])
	for _, old := range []string{`"client_gone"`, `"prefilled"`, `"1207.4"`, `"request.cancelled.v1"`} {
		_, err := Decode(bytes.Replace(b, []byte(old), []byte(`"my secret prompt"`), 1))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v", old, err)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 4096)
	for _, e := range fullEvents() {
		if n := testing.AllocsPerRun(50, func() {
			if _, err := Append(buf, e); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", e.Type, n)
		}
	}
}
