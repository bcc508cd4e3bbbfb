package importer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// Attributes under which exports carry events whole, so that they import again to
// the same result.
const (
	AttrEvent    = "pdgate.event"    // the canonical line
	AttrPosition = "pdgate.position" // SEQ.LINE
)

// maxDocument bounds a document that is one JSON value.
const maxDocument = 1 << 30

// span is one span of any tool.
type span struct {
	name       string
	start, end time.Time
	attrs      map[string]string
	events     []span
	failed     bool
	message    string
}

// spanFile reads a file of spans: our own events where they carry them, and
// engines' legs otherwise.
type spanFile struct {
	in    *replay.Input
	r     *replay.LineReader
	spans int64
	own   []placed
	rest  []*record
	done  bool
	legs  map[string]*record // SGLang: by rid, of its root span and its stages
}

// placed is one of our events with its place.
type placed struct {
	pos  events.Position
	line []byte
}

// next reads on. A leg's stages are spans of their own, so records are whole only when
// all spans are read.
func (f *spanFile) next() ([]*record, error) {
	if f.done {
		return nil, io.EOF
	}
	line, err := f.r.Next()
	if errors.Is(err, io.EOF) {
		f.done = true
		if f.spans == 0 {
			return nil, &replay.Malformed{Want: "at least one span", Cut: true}
		}
		return nil, io.EOF
	}
	var m *replay.Malformed
	if err != nil && !(errors.As(err, &m) && m.Cut && len(line) > 0) {
		return nil, err
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil, nil
	}
	at := f.r.Where()
	doc := line
	if !json.Valid(line) { // one value over many lines
		if doc, err = f.whole(line); err != nil {
			return nil, &replay.Malformed{Where: at, Want: "a JSON value: one over the whole file, or one a line", Err: errors.New("cut off or broken"), Cut: true}
		}
	}
	spans, err := decodeSpans(f.in.Format, doc)
	if err != nil {
		return nil, &replay.Malformed{Where: at, Want: "spans as " + string(f.in.Format) + " JSON", Err: err}
	}
	for i := range spans {
		if err := f.span(&spans[i], at); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// whole reads a value that goes on over the following lines.
func (f *spanFile) whole(first []byte) ([]byte, error) {
	doc := append(bytes.Clone(first), '\n')
	for {
		line, err := f.r.Next()
		doc = append(append(doc, line...), '\n')
		if len(doc) > maxDocument {
			return nil, errors.New("too long")
		}
		if bytes.HasPrefix(line, []byte("}")) || bytes.HasPrefix(line, []byte("]")) || err != nil {
			if json.Valid(doc) {
				return doc, nil
			}
		}
		var m *replay.Malformed
		if err != nil && !(errors.As(err, &m) && m.Cut) {
			return nil, err
		}
	}
}

func (f *spanFile) span(s *span, at replay.Where) error {
	f.spans++
	if err := f.event(s, at); err != nil {
		return err
	}
	for i := range s.events {
		if err := f.event(&s.events[i], at); err != nil {
			return err
		}
	}
	f.leg(s, at)
	return nil
}

// event takes one of our events over, where the span carries one.
func (f *spanFile) event(s *span, at replay.Where) error {
	line := s.attrs[AttrEvent]
	if line == "" {
		return nil
	}
	pos, err := events.ParsePosition(s.attrs[AttrPosition])
	if err != nil || pos.IsZero() {
		return &replay.Malformed{Where: at, Want: AttrPosition + " of SEQ.LINE beside " + AttrEvent, Broken: true}
	}
	if strings.ContainsAny(line, "\n\r") {
		return &replay.Malformed{Where: at, Want: AttrEvent + " in one line", Broken: true}
	}
	f.own = append(f.own, placed{pos, []byte(line)})
	return nil
}

// leg reads what an engine's span tells of its leg.
func (f *spanFile) leg(s *span, at replay.Where) {
	id := cmp.Or(s.attrs["rid"], s.attrs["gen_ai.request.id"], s.attrs["request_id"])
	if id == "" || s.attrs[AttrEvent] != "" {
		return
	}
	r := f.legs[id]
	if r == nil {
		r = &record{engine: "sglang", request: id, key: id, where: at}
		f.legs[id] = r
		f.rest = append(f.rest, r)
	}
	if s.attrs["gen_ai.request.id"] != "" {
		r.engine = "vllm"
	}
	if room := s.attrs["bootstrap_room"]; room != "" { // hex, as SGLang writes it
		if n, err := strconv.ParseUint(strings.TrimPrefix(room, "0x"), 16, 64); err == nil && n > 0 {
			r.key = "room " + strconv.FormatUint(n, 10)
		}
	}
	name := strings.ToLower(s.name)
	switch {
	case strings.HasPrefix(name, "prefill"), name == "chunked_prefill":
		r.role = prefill
	case strings.HasPrefix(name, "decode"):
		r.role = decode
	}
	if r.begin.IsZero() || s.start.Before(r.begin) {
		r.begin = s.start
	}
	if s.end.After(r.end) {
		r.end = s.end
	}
	number := func(to *int, names ...string) {
		for _, n := range names {
			if v, err := count(s.attrs[n]); err == nil && s.attrs[n] != "" {
				*to = v
			}
		}
	}
	number(&r.prompt, "gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", "prompt_tokens", "input_len")
	number(&r.output, "gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens", "completion_tokens", "output_len")
	if r.finish == "" {
		r.finish = "stop"
	}
	if reason := cmp.Or(s.attrs["finish_reason"], s.attrs["gen_ai.response.finish_reasons"]); strings.Contains(reason, "abort") || s.failed {
		r.finish, r.message = "abort", s.message
		r.status = 500
		if n, err := strconv.Atoi(s.attrs["http.response.status_code"]); err == nil && n >= 100 && n <= 599 {
			r.status = n
		}
	}
}

func (f *spanFile) legsInOrder() []*record {
	slices.SortStableFunc(f.rest, func(a, b *record) int { return a.begin.Compare(b.begin) })
	return f.rest
}

// ownSource yields events that spans carried, in their places.
type ownSource struct {
	all   []placed
	env   events.Envelope
	lines []byte
}

func newOwnSource(all []placed) *ownSource {
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.pos.Seq, b.pos.Seq), cmp.Compare(a.pos.Line, b.pos.Line))
	})
	return &ownSource{all: all}
}

func (s *ownSource) Where() replay.Where { return replay.Where{} }

func (s *ownSource) Next() (*events.Envelope, error) {
	if len(s.all) == 0 {
		return nil, io.EOF
	}
	first := s.all[0]
	s.lines = s.lines[:0]
	n := 0
	for ; n < len(s.all) && s.all[n].pos.Seq == first.pos.Seq; n++ {
		if s.all[n].pos.Line != n {
			s.all = s.all[n+1:]
			return nil, &replay.Malformed{Want: "line " + strconv.Itoa(n) + " of message " + strconv.FormatUint(first.pos.Seq, 10) + ": a line is missing, or stands twice", Broken: true}
		}
		s.lines = append(append(s.lines, s.all[n].line...), '\n')
	}
	s.all = s.all[n:]
	s.env = events.Envelope{Partition: replay.PartitionOf(first.line), Seq: first.pos.Seq, Lines: s.lines}
	return &s.env, nil
}

// decodeSpans reads one JSON value.
func decodeSpans(format replay.Format, doc []byte) ([]span, error) {
	switch format {
	case replay.FormatOTLP:
		return otlpSpans(doc)
	case replay.FormatTempo:
		return tempoSpans(doc)
	case replay.FormatJaeger:
		return jaegerSpans(doc)
	}
	return perfettoSpans(doc)
}

func otlpSpans(doc []byte) (all []span, err error) {
	// The library is a reader of what collectors write, not of what an attacker does.
	defer func() {
		if recover() != nil {
			all, err = nil, errors.New("the OTLP decoder gave up")
		}
	}()
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(doc)
	if err != nil {
		return nil, errors.New("not OTLP JSON") // its own text may quote attributes
	}
	for _, rs := range td.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				x := span{name: s.Name(), start: s.StartTimestamp().AsTime(), end: s.EndTimestamp().AsTime(), attrs: attributes(s.Attributes()),
					failed: s.Status().Code() == ptrace.StatusCodeError, message: s.Status().Message()}
				for _, e := range s.Events().All() {
					x.events = append(x.events, span{name: e.Name(), start: e.Timestamp().AsTime(), attrs: attributes(e.Attributes())})
				}
				if n := s.DroppedEventsCount(); n > 0 && x.attrs["pdgate.request"] != "" {
					return nil, errors.New("a request's span has dropped " + strconv.FormatUint(uint64(n), 10) + " events")
				}
				all = append(all, x)
			}
		}
	}
	return all, nil
}

func attributes(m pcommon.Map) map[string]string {
	a := make(map[string]string, m.Len())
	for k, v := range m.All() {
		a[k] = v.AsString()
	}
	return a
}

// tempoSpans reads Tempo's form: OTLP under another name, with ids in base64.
func tempoSpans(doc []byte) ([]span, error) {
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, errors.New("not JSON")
	}
	if t, ok := v["trace"].(map[string]any); ok {
		v = t
	}
	batches, ok := v["batches"]
	if !ok {
		return nil, errors.New(`want "batches"`)
	}
	hexIDs(batches, 0)
	b, err := json.Marshal(map[string]any{"resourceSpans": batches})
	if err != nil {
		return nil, errors.New("not JSON")
	}
	return otlpSpans(b)
}

// hexIDs turns base64 ids into hex, and the older names of scopes into theirs.
func hexIDs(v any, depth int) {
	if depth > 32 {
		return
	}
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			hexIDs(x, depth+1)
		}
	case map[string]any:
		for _, k := range []string{"traceId", "spanId", "parentSpanId"} {
			s, ok := v[k].(string)
			if b, err := base64.StdEncoding.DecodeString(s); ok && err == nil && (len(b) == 16 && k == "traceId" || len(b) == 8 && k != "traceId") {
				v[k] = hex.EncodeToString(b)
			}
		}
		if old, ok := v["instrumentationLibrarySpans"]; ok {
			v["scopeSpans"] = old
			delete(v, "instrumentationLibrarySpans")
		}
		for _, x := range v {
			hexIDs(x, depth+1)
		}
	}
}

type jaegerTag struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

func jaegerTags(tags []jaegerTag) map[string]string {
	a := map[string]string{}
	for _, t := range tags {
		a[t.Key] = word(t.Value)
	}
	return a
}

func jaegerSpans(doc []byte) (all []span, err error) {
	var v struct {
		Data []struct {
			Spans []struct {
				Name     string      `json:"operationName"`
				Start    int64       `json:"startTime"`
				Duration int64       `json:"duration"`
				Tags     []jaegerTag `json:"tags"`
				Logs     []struct {
					At     int64       `json:"timestamp"`
					Fields []jaegerTag `json:"fields"`
				} `json:"logs"`
			} `json:"spans"`
		} `json:"data"`
	}
	if err := json.Unmarshal(doc, &v); err != nil {
		return nil, errors.New("not Jaeger's JSON" + where(err))
	}
	for _, d := range v.Data {
		for _, s := range d.Spans {
			x := span{name: s.Name, start: time.UnixMicro(s.Start).UTC(), end: time.UnixMicro(s.Start + s.Duration).UTC(), attrs: jaegerTags(s.Tags)}
			x.failed = x.attrs["error"] == "true" || x.attrs["otel.status_code"] == "ERROR"
			x.message = x.attrs["otel.status_description"]
			for _, l := range s.Logs {
				x.events = append(x.events, span{start: time.UnixMicro(l.At).UTC(), attrs: jaegerTags(l.Fields)})
			}
			all = append(all, x)
		}
	}
	return all, nil
}

func perfettoSpans(doc []byte) (all []span, err error) {
	var v struct {
		Events []struct {
			Name string                     `json:"name"`
			Args map[string]json.RawMessage `json:"args"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(doc, &v); err != nil {
		return nil, errors.New("not trace events" + where(err))
	}
	for _, e := range v.Events {
		x := span{name: e.Name, attrs: map[string]string{}}
		for k, raw := range e.Args {
			x.attrs[k] = word(raw)
		}
		all = append(all, x)
	}
	return all, nil
}
