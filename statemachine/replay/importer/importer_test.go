package importer_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
	"github.com/pdgate/pdgate/statemachine/replay/importer"
)

// read replays files as the command does.
func read(t testing.TB, o replay.Options, files ...[]byte) (*replay.Result, error) {
	t.Helper()
	r := replay.New(o)
	j := importer.NewJoiner(2026)
	for i, b := range files {
		f, err := importer.Open(string(rune('a'+i)), bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		if err := f.Add(r, j); err != nil {
			return nil, err
		}
		j.AtEnd(f.Close)
	}
	if err := j.Add(r); err != nil {
		return nil, err
	}
	return r.Finish(), nil
}

func must(t testing.TB, o replay.Options, files ...[]byte) *replay.Result {
	t.Helper()
	r, err := read(t, o, files...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func affected(r *replay.Result) (ids []string) {
	for _, x := range r.Exposure.Responses {
		ids = append(ids, x.Request)
	}
	slices.Sort(ids)
	return ids
}

func group(r *replay.Result, id string) int64 {
	n := int64(0)
	for _, g := range r.Groups {
		if string(g.ID) == id {
			n += g.Count
		}
	}
	return n
}

// TestTimeStats finds the incident's requests from two SGLang nodes' time statistics
// alone: the input lengths of the legs differ.
func TestTimeStats(t *testing.T) {
	p, d, ids := corpus.TimeStats(1, 2000, 155)
	slices.Sort(ids)
	for name, files := range map[string][][]byte{"two files": {p, d}, "decode first": {d, p}, "one file": {append(bytes.Clone(p), d...)}} {
		r := must(t, replay.Options{}, files...)
		if diff := cmp.Diff(ids, affected(r)); diff != "" {
			t.Errorf("%s: affected (-truth +found):\n%s", name, diff)
		}
		if n := group(r, "token-count-prefill"); n != 155 {
			t.Errorf("%s: %d, want 155", name, n)
		}
		x := r.Exposure
		if r.Coverage != replay.LifecycleOnly || x.Rings.Confirmed != 0 || x.Rings.Possible != 155 || len(x.Edges) > 0 || x.MinPrompt <= corpus.PrefillPool {
			t.Errorf("%s: coverage %s, %+v, from %d tokens: a claim about pages that the logs do not carry", name, r.Coverage, x.Rings, x.MinPrompt)
		}
		if r.Verdict.Exit != replay.Incomplete || r.Range.Requests != 2000 {
			t.Errorf("%s: %+v, %d requests", name, r.Verdict, r.Range.Requests)
		}
		if r := must(t, replay.Options{AcceptLifecycle: true}, files...); r.Verdict.Exit != replay.Violated {
			t.Errorf("%s: exit %d where lifecycle-only is accepted, want 1", name, r.Verdict.Exit)
		}
	}
	// A leg is missing: nothing is made up of it.
	r := must(t, replay.Options{AcceptLifecycle: true}, d)
	if n := group(r, "leg-missing"); n != 2000 || r.Verdict.Exit != replay.Incomplete || len(affected(r)) > 0 {
		t.Errorf("decode's log alone: %d legs missing, %+v", n, r.Verdict)
	}
}

// TestLeaseLog counts the affected requests of a lease that was too short, from
// vLLM's two log lines.
func TestLeaseLog(t *testing.T) {
	log, ids := corpus.LeaseLog()
	slices.Sort(ids)
	if len(ids) != 8 {
		t.Fatalf("%d", len(ids))
	}
	r := must(t, replay.Options{AcceptLifecycle: true}, log)
	if d := cmp.Diff(ids, affected(r)); d != "" {
		t.Errorf("affected (-truth +found):\n%s", d)
	}
	if n := group(r, "read-past-lease"); n != 8 || r.Exposure.Rings.Possible != 8 || r.Verdict.Exit != replay.Violated {
		t.Errorf("%d, %+v, %+v", n, r.Exposure.Rings, r.Verdict)
	}
	if want := 21; r.Exposure.First.Day() != want {
		t.Errorf("first %s", r.Exposure.First)
	}
	// Only the first of the two lines: the lease ran out, and nobody read.
	var first []byte
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte("Potentially")) {
			first = append(first, line...)
		}
	}
	if r := must(t, replay.Options{AcceptLifecycle: true}, first); r.Verdict.Exit != replay.Clean {
		t.Errorf("leases that ran out: %+v", r.Verdict)
	}
}

const (
	requestLogs = `[2026-06-01 08:00:00] {"timestamp": "2026-06-01T08:00:00Z", "event": "request.received", "rid": "p1", "obj": {"rid": "p1", "bootstrap_room": 77, "text": "secret"}}
[2026-06-01 08:00:01] {"timestamp": "2026-06-01T08:00:01Z", "event": "request.finished", "rid": "p1", "obj": {"bootstrap_room": 77, "text": "secret"}, "out": {"text": "secret", "meta_info": {"id": "p1", "finish_reason": {"type": "abort", "message": "Input length (700000 tokens) exceeds the maximum allowed length (681274 tokens)", "status_code": 400}, "prompt_tokens": 1, "completion_tokens": 0}}}
[2026-06-01 08:00:09] {"timestamp": "2026-06-01T08:00:09Z", "event": "request.finished", "rid": "d1", "obj": {"bootstrap_room": 77}, "out": {"meta_info": {"id": "d1", "finish_reason": {"type": "stop"}, "prompt_tokens": 700000, "completion_tokens": 20}}}
[2026-06-01 08:00:10] {"timestamp": "2026-06-01T08:00:10Z", "event": "request.finished", "rid": "p2", "obj": {"bootstrap_room": 78}, "out": {"meta_info": {"finish_reason": {"type": "length", "length": 0}, "prompt_tokens": 50, "completion_tokens": 1}}}
[2026-06-01 08:00:12] {"timestamp": "2026-06-01T08:00:12Z", "event": "request.finished", "rid": "d2", "obj": {"bootstrap_room": 78}, "out": {"meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 50, "completion_tokens": 9}}}
`
	metrics = `{"id": "p1", "timestamp": 1780300000.5, "disaggregation_mode": "prefill", "prompt_tokens": 1, "completion_tokens": 1, "finish_reason": {"type": "length", "length": 0}, "request_parameters": "{\"bootstrap_room\": 77, \"text\": \"secret\"}"}
{"id": "d1", "timestamp": 1780300009.5, "disaggregation_mode": "decode", "prompt_tokens": 700000, "completion_tokens": 30, "finish_reason": {"type": "stop"}, "request_parameters": "{\"bootstrap_room\": 77}"}
`
	otlpLegs = `{"resourceSpans":[{"scopeSpans":[{"spans":[
{"traceId":"000000000000000089abcdef01234567","spanId":"0102030405060708","name":"prefill Req p1","startTimeUnixNano":"1780300000000000000","endTimeUnixNano":"1780300001000000000","attributes":[{"key":"rid","value":{"stringValue":"p1"}},{"key":"bootstrap_room","value":{"stringValue":"0x4d"}},{"key":"input_len","value":{"intValue":"1"}}]},
{"traceId":"000000000000000089abcdef01234567","spanId":"0102030405060709","name":"decode Req d1","startTimeUnixNano":"1780300000000000000","endTimeUnixNano":"1780300009000000000","attributes":[{"key":"rid","value":{"stringValue":"d1"}},{"key":"bootstrap_room","value":{"stringValue":"4d"}},{"key":"input_len","value":{"intValue":"700000"}}]}
]}]}]}
`
	tempoLegs = `{"batches":[{"instrumentationLibrarySpans":[{"spans":[
{"traceId":"AAAAAAAAAACJq83vASNFZw==","spanId":"AQIDBAUGBwg=","name":"prefill Req p1","startTimeUnixNano":"1780300000000000000","endTimeUnixNano":"1780300001000000000","attributes":[{"key":"rid","value":{"stringValue":"p1"}},{"key":"bootstrap_room","value":{"stringValue":"4d"}},{"key":"input_len","value":{"intValue":"1"}}]},
{"traceId":"AAAAAAAAAACJq83vASNFZw==","spanId":"AQIDBAUGBwk=","name":"decode Req d1","startTimeUnixNano":"1780300000000000000","endTimeUnixNano":"1780300009000000000","attributes":[{"key":"rid","value":{"stringValue":"d1"}},{"key":"bootstrap_room","value":{"stringValue":"4d"}},{"key":"input_len","value":{"intValue":"700000"}}]}
]}]}]}`
	jaegerLegs = `{"data":[{"traceID":"89abcdef01234567","spans":[
{"traceID":"89abcdef01234567","spanID":"1","operationName":"prefill Req p1","startTime":1780300000000000,"duration":1000000,"tags":[{"key":"rid","type":"string","value":"p1"},{"key":"bootstrap_room","type":"string","value":"4d"},{"key":"input_len","type":"int64","value":1}]},
{"traceID":"89abcdef01234567","spanID":"2","operationName":"decode Req d1","startTime":1780300000000000,"duration":9000000,"tags":[{"key":"rid","type":"string","value":"d1"},{"key":"bootstrap_room","type":"string","value":"4d"},{"key":"input_len","type":"int64","value":700000}]}
]}]}`
)

// TestForms finds the same request in every form that tells of its two legs.
func TestForms(t *testing.T) {
	for name, c := range map[string]struct{ text, format, finds string }{
		"request logs": {requestLogs, "sglang-requests", "decode-after-rejection"},
		"metrics":      {metrics, "sglang-metrics", "token-count-prefill"},
		"otlp":         {otlpLegs, "otlp", "token-count-prefill"},
		"otlp lines":   {strings.ReplaceAll(otlpLegs, "\n{", "{") + "", "otlp", "token-count-prefill"},
		"tempo":        {tempoLegs, "tempo", "token-count-prefill"},
		"jaeger":       {jaegerLegs, "jaeger", "token-count-prefill"},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, replay.Options{AcceptLifecycle: true}, []byte(c.text))
			if got := affected(r); !slices.Equal(got, []string{"d1"}) || group(r, c.finds) != 1 || r.Verdict.Exit != replay.Violated {
				t.Errorf("affected %v, %s, %+v", got, r.Verdict.Line, r.Groups)
			}
			if string(r.Inputs[0].Format) != c.format || r.Inputs[0].SHA256 == "" {
				t.Errorf("format %q, sha256 %q", r.Inputs[0].Format, r.Inputs[0].SHA256)
			}
			var text bytes.Buffer
			if err := r.WriteText(&text, 100); err != nil || strings.Contains(text.String(), "secret") {
				t.Errorf("a prompt is in the result: %v", err)
			}
		})
	}
}

// TestCompressed reads packed files, and files that are cut off.
func TestCompressed(t *testing.T) {
	var z, g bytes.Buffer
	zw, _ := zstd.NewWriter(&z)
	gw := gzip.NewWriter(&g)
	for _, w := range []interface{ Write([]byte) (int, error) }{zw, gw} {
		if _, err := w.Write([]byte(metrics)); err != nil {
			t.Fatal(err)
		}
	}
	zw.Close()
	gw.Close()
	for name, b := range map[string][]byte{"gzip": g.Bytes(), "zstd": z.Bytes()} {
		r := must(t, replay.Options{}, b)
		if got := affected(r); !slices.Equal(got, []string{"d1"}) || r.Inputs[0].Compression != name {
			t.Errorf("%s: %v, %+v", name, got, r.Inputs[0])
		}
		if _, err := read(t, replay.Options{}, b[:len(b)-7]); err == nil {
			t.Errorf("%s: a file that is cut off reads as a whole one", name)
		}
	}
}

// trace is a small clean log as a trace and as lines.
func trace(t testing.TB) (file, lines []byte) {
	t.Helper()
	var b, l bytes.Buffer
	w := replay.NewTraceWriter(&b, events.DefaultPartitions)
	if _, err := corpus.Incident(corpus.IncidentConfig{Seed: 3, Requests: 9, Clean: true}, func(env *events.Envelope) error {
		l.Write(env.Lines)
		return w.Add(env)
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), l.Bytes()
}

// TestClean: clean logs stay clean, and lines are not called clean by themselves.
func TestClean(t *testing.T) {
	file, lines := trace(t)
	if r := must(t, replay.Options{}, file); r.Verdict.Exit != replay.Clean {
		t.Errorf("%s %+v", r.Verdict.Line, r.Groups)
	}
	if r := must(t, replay.Options{}, lines); r.Verdict.Exit != replay.Incomplete || len(r.Groups) > 0 {
		t.Errorf("%s %+v", r.Verdict.Line, r.Groups)
	}
	if r := must(t, replay.Options{AcceptUnanchored: true}, lines); r.Verdict.Exit != replay.Clean {
		t.Errorf("%s %+v", r.Verdict.Line, r.Groups)
	}
	// What only changes how lines end is noted.
	other := append([]byte("\xef\xbb\xbf"), bytes.ReplaceAll(lines, []byte("\n"), []byte("\r\n"))...)
	if r := must(t, replay.Options{AcceptUnanchored: true}, other); r.Verdict.Exit != replay.Clean || len(r.Inputs[0].Notes) != 2 {
		t.Errorf("%s %+v", r.Verdict.Line, r.Inputs[0])
	}
}

// TestTampered drops, swaps, doubles and alters single events: none of that comes out
// clean.
func TestTampered(t *testing.T) {
	file, lines := trace(t)
	all := bytes.SplitAfter(lines, []byte("\n"))
	all = all[:len(all)-1]
	alter := func(b []byte) []byte { // the last digit of its time
		i := bytes.Index(b, []byte(`Z","datacontenttype"`)) - 1
		c := bytes.Clone(b)
		c[i] = '0' + (c[i]-'0'+1)%10
		return c
	}
	for i := range all {
		for name, edit := range map[string]func([][]byte) [][]byte{
			"dropped": func(l [][]byte) [][]byte { return slices.Delete(l, i, i+1) },
			"doubled": func(l [][]byte) [][]byte { return slices.Insert(l, i, l[i]) },
			"altered": func(l [][]byte) [][]byte { l[i] = alter(l[i]); return l },
			"swapped": func(l [][]byte) [][]byte {
				if i+1 < len(l) {
					l[i], l[i+1] = l[i+1], l[i]
				} else {
					l = l[:i]
				}
				return l
			},
		} {
			text := bytes.Join(edit(slices.Clone(all)), nil)
			if r, err := read(t, replay.Options{}, text); err == nil && r.Verdict.Exit == replay.Clean {
				t.Errorf("lines: event %d %s: clean", i, name)
			}
			// The same in the trace, with its heads as they were.
			changed := bytes.Clone(file)
			switch name {
			case "altered":
				changed = bytes.Replace(changed, all[i], alter(all[i]), 1)
			case "dropped":
				changed = bytes.Replace(changed, all[i], nil, 1)
			default:
				continue
			}
			if r, err := read(t, replay.Options{}, changed); err == nil && r.Verdict.Exit != replay.Broken && r.Verdict.Exit != replay.Incomplete {
				t.Errorf("trace: event %d %s: %s", i, name, r.Verdict.Line)
			}
		}
	}
	for n := 0; n < len(file)-1; n += 499 {
		if r, err := read(t, replay.Options{}, file[:n]); err == nil && r.Verdict.Exit < replay.Incomplete {
			t.Errorf("a trace of which %d bytes are left: %s", n, r.Verdict.Line)
		}
	}
}

// TestBrokenFiles: what cannot be read is named with line, offset and what was
// expected.
func TestBrokenFiles(t *testing.T) {
	_, lines := trace(t)
	first, rest, _ := bytes.Cut(lines, []byte("\n"))
	for name, b := range map[string][]byte{"empty": {}, "binary": {0x7f, 'E', 'L', 'F', 0, 1, 2}, "words": []byte("hello\nworld\n"), "newlines": []byte("\n\n\n")} {
		if _, err := read(t, replay.Options{}, b); !errors.Is(err, replay.ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		text []byte
		line int64
	}{
		"truncated":     {lines[:len(lines)-20], int64(bytes.Count(lines, []byte("\n")))},
		"wrong type":    {bytes.Join([][]byte{first, []byte(`{"specversion":"1.0","id":7}`), rest}, []byte("\n")), 2},
		"mixed version": {bytes.Replace(lines, []byte("worker.joined.v1"), []byte("worker.joined.v9"), 1), 1},
		"empty line":    {bytes.Join([][]byte{first, nil, rest}, []byte("\n")), 2},
		"other case":    {bytes.Replace(lines, []byte(`"subject"`), []byte(`"Subject"`), 1), 1},
		"bad stats":     {[]byte("ReqTimeStats(rid=a, bootstrap_room=1, input_len=x, type=prefill)\n"), 1},
		"bad room":      {[]byte("INFO\nReqTimeStats(rid=a, bootstrap_room=-1, input_len=1, type=prefill)\n"), 2},
		"bad log":       {[]byte("[2026-06-01 08:00:00] {\"event\": \"request.finished\", \n"), 1},
		"bad metrics":   {[]byte(`{"id": "a", "request_parameters": "no"}` + "\n"), 1},
		"no time":       {[]byte("WARNING Releasing expired KV blocks for request a which were retrieved by 0 remote\n"), 1},
		"cut lease":     {[]byte("INFO\nERROR 08-21 12:31:00 Potentially invalid KV blocks for unrecogn\n"), 2},
		"bad lease":     {[]byte("WARNING 08-21 12:31:00 Releasing expired KV blocks for request a, held by 0 peers\n"), 1},
		"bad otlp":      {[]byte(`{"resourceSpans": 7}` + "\n"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, replay.Options{AcceptLifecycle: true, AcceptUnanchored: true}, c.text)
			if r.Verdict.Exit < replay.Incomplete {
				t.Errorf("%s", r.Verdict.Line)
			}
			in := r.Inputs[0]
			if len(in.Problems) == 0 || in.Problems[0].Line != c.line || in.Problems[0].Want == "" {
				t.Errorf("problems %+v, want the first one in line %d", in.Problems, c.line)
			}
		})
	}
	// Another build's events are no sign of a change: the trace's own sum fits.
	newer := corpus.Whole()
	newer[0].Lines = bytes.Replace(newer[0].Lines, []byte("worker.joined.v1"), []byte("worker.joined.v9"), 1)
	var b bytes.Buffer
	w := replay.NewTraceWriter(&b, events.DefaultPartitions)
	for _, env := range newer {
		if err := w.Add(env); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if r := must(t, replay.Options{}, b.Bytes()); r.Verdict.Exit != replay.Incomplete || len(r.Inputs[0].Problems) != 1 {
		t.Errorf("a newer build's trace: %s %+v", r.Verdict.Line, r.Inputs[0].Problems)
	}
	// No spans is a failure, not a clean trace.
	if r := must(t, replay.Options{AcceptLifecycle: true}, []byte(`{"resourceSpans": []}`)); r.Verdict.Exit != replay.Incomplete {
		t.Errorf("%s", r.Verdict.Line)
	}
}
