package export

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/pdgate/pdgate/events"
)

const (
	batchSpans    = 256 // of one line
	maxSpanEvents = 128 // of one span; OpenTelemetry's own limit
)

// otlpFile writes OTLP JSON as the collector's file exporter does: an object a
// line, with spans in the order in which their requests ended. A request is one
// span, from its first event to the one that ended it, with an event for each of
// the log's. It is held until its pages are free again, so that their release is in
// it; what is said of a request after that is a span of its own, without length.
// Requests that the log does not see the end of come last, and say
// pdgate.open=true.
//
// Epoch leaves are bookkeeping for proofs, and left out.
type otlpFile struct {
	w     *bufio.Writer
	enc   *json.Encoder
	open  map[string]*request
	order int // requests seen
	batch otlpTraces
	last  int64 // time of the last event, in ns
}

// request is one that may still get events.
type request struct {
	otlpSpan
	order   int
	final   bool
	holders map[holder]bool // workers that hold pages of it
}

type holder struct {
	worker string
	epoch  uint64
}

func newOTLP(w *bufio.Writer) *otlpFile {
	o := &otlpFile{w: w, enc: json.NewEncoder(w), open: map[string]*request{}}
	o.enc.SetEscapeHTML(false)
	r := &o.batch.Resources[0]
	r.Resource.text("service.name", "pdgate")
	r.Scopes[0].Scope.Name = "github.com/pdgate/pdgate/events/audit/export"
	return o
}

func (o *otlpFile) add(e *entry) error {
	if e.Epoch != nil {
		return nil
	}
	r := flatten(e)
	if r.Time != nil {
		o.last = *r.Time * 1000
	}
	q := o.open[r.Subject]
	denied, ofRequest := r.Type == string(events.TypeDenied), strings.HasPrefix(r.Type, "request.")
	switch {
	case !ofRequest && (q == nil || !denied):
		return o.alone(&r)
	case q == nil && (r.Type == string(events.TypeReleased) || r.N == nil):
		return o.alone(&r)
	case q == nil:
		q = o.begin(&r)
	}
	q.event(&r, o.last)
	q.take(&r, o.last)
	if !q.final || len(q.holders) > 0 {
		return nil
	}
	delete(o.open, r.Subject)
	return o.emit(&q.otlpSpan)
}

// begin opens a request's span.
func (o *otlpFile) begin(r *row) *request {
	q := &request{otlpSpan: otlpSpan{Name: "request", Kind: kindServer, Start: o.last}, order: o.order, holders: map[holder]bool{}}
	o.order++
	o.open[r.Subject] = q
	q.identify(r)
	q.text("pdgate.request", r.Subject)
	q.text("pdgate.tenant", r.Tenant)
	if r.Type != string(events.TypeAdmitted) && r.Type != string(events.TypeRejected) {
		q.mark("pdgate.began_before")
	}
	return q
}

// identify gives the span the ids that the request's trace context asks for, or
// ones made from its id, which are the same in every export.
func (s *otlpSpan) identify(r *row) {
	sum := sha256.Sum256([]byte(cmp.Or(r.Subject, r.Hash)))
	s.TraceID, s.SpanID = hex.EncodeToString(sum[:16]), hex.EncodeToString(sum[16:24])
	if trace, parent, ok := traceContext(r.Traceparent); ok {
		s.TraceID, s.ParentID = trace, parent
	}
}

// traceContext reads a W3C traceparent: version-trace-parent-flags, in hex.
func traceContext(s string) (trace, parent string, ok bool) {
	p := strings.Split(s, "-")
	if len(p) != 4 || len(p[1]) != 32 || len(p[2]) != 16 || strings.Trim(p[1]+p[2], "0123456789abcdef") != "" {
		return "", "", false
	}
	return p[1], p[2], true
}

// event adds one of the log's events to the span.
func (q *request) event(r *row, at int64) {
	if len(q.Events) == maxSpanEvents {
		q.Dropped++
		return
	}
	v := otlpEvent{Name: r.Type, Time: at}
	v.describe(r)
	q.Events = append(q.Events, v)
}

// take carries what the event says over to the span.
func (q *request) take(r *row, at int64) {
	h := holder{worker: r.Worker}
	if r.WorkerEpoch != nil {
		h.epoch = *r.WorkerEpoch
	}
	final := false
	switch events.Type(r.Type) {
	case events.TypeAdmitted:
		q.number("gen_ai.request.max_tokens", r.MaxTokens)
	case events.TypePrefilled, events.TypeTransferGranted:
		q.holders[h] = true
	case events.TypeReleased:
		delete(q.holders, h)
	case events.TypeDecoded:
		q.Status.Code, final = codeOK, true
		q.number("gen_ai.usage.output_tokens", r.CompletionTokens)
		q.set("gen_ai.response.finish_reasons", otlpValue{Array: &otlpArray{[]otlpValue{{Text: new(r.FinishReason)}}}})
	case events.TypeRejected, events.TypeFailed:
		q.Status, final = otlpStatus{r.Code + ": " + r.Message, codeError}, true
		q.text("error.type", r.Code)
	case events.TypeCancelled:
		final = true
		q.text("error.type", r.Code)
	}
	q.text("gen_ai.request.model", r.Model)
	q.number("gen_ai.usage.input_tokens", r.PromptTokens)
	if final || !q.final {
		q.End = at
	}
	q.final = q.final || final
}

// alone writes a leaf that is in no request's span.
func (o *otlpFile) alone(r *row) error {
	s := &otlpSpan{Name: r.Type, Kind: kindInternal, Start: o.last, End: o.last}
	s.identify(r)
	if s.ParentID == "" && (r.Type == string(events.TypeReleased) || r.Type == string(events.TypeDenied)) {
		s.ParentID = s.SpanID // the request's, wherever that is
	}
	sum := sha256.Sum256([]byte(r.Hash))
	s.SpanID = hex.EncodeToString(sum[:8])
	s.text("pdgate.subject", r.Subject)
	s.text("pdgate.tenant", r.Tenant)
	s.describe(r)
	if r.Code != "" || r.ID == "" {
		s.Status = otlpStatus{message(r), codeError}
	}
	return o.emit(s)
}

// describe names where the leaf is, and what stands in it.
func (a *otlpAttributes) describe(r *row) {
	a.text("pdgate.position", text(r.Seq)+"."+text(r.Line))
	a.number("pdgate.leaf", new(r.Leaf))
	if r.ID != "" {
		a.text("pdgate.event", r.Raw) // whole: what was exported replays to the same result
	}
	a.text("pdgate.principal", r.Principal)
	a.text("pdgate.worker", r.Worker)
	a.text("pdgate.owner", r.Owner)
	a.text("pdgate.stage", r.Stage)
	a.text("pdgate.asked", r.Asked)
	a.text("pdgate.code", r.Code)
	a.text("pdgate.message", r.Message)
	a.text("pdgate.reason", r.Reason)
	a.number("pdgate.kv_bytes", r.KVBytes)
	a.number("pdgate.pages", r.PageCount)
}

func (o *otlpFile) emit(s *otlpSpan) error {
	spans := &o.batch.Resources[0].Scopes[0].Spans
	if *spans = append(*spans, s); len(*spans) < batchSpans {
		return nil
	}
	return o.flush()
}

func (o *otlpFile) flush() error {
	spans := &o.batch.Resources[0].Scopes[0].Spans
	if len(*spans) == 0 {
		return nil
	}
	err := o.enc.Encode(&o.batch)
	clear(*spans)
	*spans = (*spans)[:0]
	return err
}

func (o *otlpFile) close() error {
	rest := make([]*request, 0, len(o.open))
	for _, q := range o.open {
		rest = append(rest, q)
	}
	slices.SortFunc(rest, func(a, b *request) int { return a.order - b.order })
	for _, q := range rest {
		if !q.final {
			q.mark("pdgate.open")
		}
		if err := o.emit(&q.otlpSpan); err != nil {
			return err
		}
	}
	return o.flush()
}

func (o *otlpFile) abort() { _, _ = o.w.WriteString(brokenLine) }
