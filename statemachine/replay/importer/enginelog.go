package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// maxLogLine bounds a line of a server's log. Request logs may hold whole prompts,
// which are skipped and never kept.
const maxLogLine = 64 << 20

// engineLog reads a server's log line by line: whatever its format was told to be,
// each line is told for itself, since servers write all kinds into one file.
type engineLog struct {
	r     *replay.LineReader
	in    *replay.Input
	year  int
	known int64
	other int64
}

func (l *engineLog) next() ([]*record, error) {
	line, err := l.r.Next()
	if errors.Is(err, io.EOF) {
		if l.known == 0 {
			l.known = -1
			return nil, &replay.Malformed{Where: l.r.Where(), Want: "a line of ReqTimeStats, of a request's log or metrics, or of vLLM's KV blocks: none is known", Cut: true}
		}
		if l.other > 0 {
			l.in.Notes = append(l.in.Notes, fmt.Sprintf("%d lines are of other things, and were passed over", l.other))
		}
		if l.r.CRLF > 0 {
			l.in.Notes = append(l.in.Notes, fmt.Sprintf("%d lines end in CR LF", l.r.CRLF))
		}
		return nil, io.EOF
	}
	var cut *replay.Malformed
	if err != nil && !(errors.As(err, &cut) && cut.Cut) {
		return nil, err
	}
	r, want := l.parse(line)
	switch {
	case want != "" && cut != nil:
		return nil, cut
	case want != "":
		l.known++
		return nil, &replay.Malformed{Where: l.r.Where(), Want: want}
	case r == nil:
		l.other++
		return nil, nil
	}
	l.known++
	r.where = l.r.Where()
	return []*record{r}, nil
}

var (
	vllmExpired = regexp.MustCompile(`Releasing expired KV blocks for request (\S+) which were retrieved by (\d+) `)
	vllmLate    = regexp.MustCompile(`Potentially invalid KV blocks for unrecognized request (\S+) were retrieved by a decode worker`)
	vllmLease   = regexp.MustCompile(`(?i)(expired|invalid) KV blocks for `)
	bracketTime = regexp.MustCompile(`\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)`)
	vllmTime    = regexp.MustCompile(`\b(\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\b`)
)

// parse reads one line. want says what is wrong with a line of a known kind; both
// are zero for a line of another kind.
func (l *engineLog) parse(line []byte) (r *record, want string) {
	trimmed := bytes.TrimSpace(line)
	switch {
	case bytes.Contains(line, []byte("ReqTimeStats(")):
		return parseTimes(string(line))
	case bytes.Contains(line, []byte("KV blocks for ")):
		return l.parseVLLM(string(line))
	case bytes.HasPrefix(trimmed, []byte("{")) && bytes.Contains(trimmed, []byte(`"request_parameters"`)):
		return parseMetrics(trimmed)
	case bytes.Contains(line, []byte(`"event"`)) && bytes.Contains(line, []byte(`request.`)):
		return parseRequestLog(trimmed)
	}
	return nil, ""
}

func (l *engineLog) time(line string) time.Time {
	if m := bracketTime.FindStringSubmatch(line); m != nil {
		for _, form := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05"} {
			if t, err := time.Parse(form, strings.Replace(m[1], ",", ".", 1)); err == nil {
				return events.Micros(t)
			}
		}
	}
	if m := vllmTime.FindStringSubmatch(line); m != nil {
		if t, err := time.Parse("2006-01-02 15:04:05", strconv.Itoa(max(l.year, 1))+"-"+strings.Replace(m[1], ",", ".", 1)); err == nil {
			return events.Micros(t)
		}
	}
	return time.Time{}
}

func (l *engineLog) parseVLLM(line string) (*record, string) {
	at := l.time(line)
	r := &record{engine: "vllm", role: prefill}
	switch m := vllmExpired.FindStringSubmatch(line); {
	case m != nil:
		r.request, r.expired = m[1], at
	default:
		if m = vllmLate.FindStringSubmatch(line); m == nil {
			if vllmLease.MatchString(line) {
				return nil, "vLLM's line of an expired or an invalid KV block, with its request"
			}
			return nil, ""
		}
		r.request, r.late = m[1], at
	}
	if at.IsZero() {
		return nil, "a time like 08-21 12:34:56 before the message"
	}
	r.key = r.request
	return r, ""
}

// parseTimes reads
//
//	ReqTimeStats(rid=…, bootstrap_room=…, input_len=…, output_len=…, type=prefill): … entry_time=…
func parseTimes(line string) (*record, string) {
	_, rest, _ := strings.Cut(line, "ReqTimeStats(")
	inside, tail, ok := strings.Cut(rest, ")")
	if !ok {
		return nil, "ReqTimeStats(…): with its closing bracket"
	}
	f := map[string]string{}
	for part := range strings.SplitSeq(inside, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, "name=value in ReqTimeStats, separated by commas"
		}
		f[k] = v
	}
	for part := range strings.FieldsSeq(strings.ReplaceAll(strings.TrimPrefix(tail, ":"), ",", " ")) {
		if k, v, ok := strings.Cut(part, "="); ok {
			f[k] = v
		}
	}
	r := &record{engine: "sglang", request: f["rid"]}
	switch f["type"] {
	case "prefill":
		r.role, r.finish = prefill, "length"
	case "decode":
		r.role, r.finish = decode, "stop"
	case "unified", "null", "":
		return nil, ""
	default:
		return nil, "type=prefill or type=decode in ReqTimeStats"
	}
	var err error
	if r.prompt, err = count(f["input_len"]); err != nil {
		return nil, "input_len=NUMBER in ReqTimeStats"
	}
	if f["output_len"] != "" {
		if r.output, err = count(f["output_len"]); err != nil {
			return nil, "output_len=NUMBER in ReqTimeStats"
		}
	}
	room := f["bootstrap_room"]
	switch {
	case room == "0":
		return nil, "" // a health check
	case room == "" || room == "None":
		r.key = r.request
	default:
		if _, err := strconv.ParseUint(room, 10, 64); err != nil {
			return nil, "bootstrap_room=NUMBER in ReqTimeStats"
		}
		r.key = "room " + room
	}
	if r.key == "" {
		return nil, "rid or bootstrap_room in ReqTimeStats"
	}
	r.begin = epoch(f["entry_time"])
	r.end = r.begin
	for k, v := range f {
		if ms, ok := strings.CutSuffix(v, "ms"); ok && strings.HasSuffix(k, "_duration") {
			if d, err := strconv.ParseFloat(ms, 64); err == nil && d > 0 && d < 1e9 && !r.end.IsZero() {
				r.end = r.end.Add(time.Duration(d * float64(time.Millisecond)))
			}
		}
	}
	r.begin, r.end = events.Micros(r.begin), events.Micros(r.end)
	return r, ""
}

const maxCount = 1 << 40

func count(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n > maxCount {
		return 0, fmt.Errorf("count %q", s)
	}
	return int(n), nil
}

// epoch reads seconds since 1970; a word that is none is no time.
func epoch(s string) time.Time {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 1e8 || f > 1e11 {
		return time.Time{}
	}
	return time.UnixMicro(int64(f * 1e6)).UTC()
}

// sgObject is what request logs and metrics hold of a request. Prompts and outputs
// are not among its fields: they are skipped as they are read.
type sgObject struct {
	RID           json.RawMessage `json:"rid"`
	BootstrapRoom json.RawMessage `json:"bootstrap_room"`
	BootstrapHost json.RawMessage `json:"bootstrap_host"`
	User          string          `json:"user"`
}

type sgMeta struct {
	ID           string          `json:"id"`
	Finish       json.RawMessage `json:"finish_reason"`
	PromptTokens *int            `json:"prompt_tokens"`
	Completion   *int            `json:"completion_tokens"`
}

type sgFinish struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Status  *int   `json:"status_code"`
	Length  *int   `json:"length"`
}

// word is a string or a number as text; the first of a list.
func word(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	var list []json.RawMessage
	if len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		raw = list[0]
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

func (r *record) object(o *sgObject) (skip bool) {
	room := word(o.BootstrapRoom)
	if room == "0" || word(o.BootstrapHost) == "2.2.2.2" {
		return true // a health check
	}
	if room != "" {
		r.key = "room " + room
	}
	r.tenant = o.User
	return false
}

func (r *record) finished(raw json.RawMessage) string {
	var f sgFinish
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		r.finish = "stop"
		return ""
	case raw[0] == '"':
		f.Type = word(raw)
	case json.Unmarshal(raw, &f) != nil:
		return "a finish_reason that is a word or an object"
	}
	switch f.Type {
	case "stop", "length":
		r.finish = f.Type
		r.zero = f.Length != nil && *f.Length == 0
	case "abort":
		r.finish, r.message = "abort", f.Message
		if f.Status != nil && *f.Status >= 100 && *f.Status <= 599 {
			r.status = *f.Status
		}
	default:
		r.finish = "stop" // matched strings, tool calls
	}
	return ""
}

func parseRequestLog(line []byte) (*record, string) {
	i := bytes.IndexByte(line, '{')
	if i < 0 {
		return nil, ""
	}
	var v struct {
		Timestamp json.RawMessage `json:"timestamp"`
		Event     string          `json:"event"`
		RID       json.RawMessage `json:"rid"`
		Obj       sgObject        `json:"obj"`
		Out       struct {
			Meta sgMeta `json:"meta_info"`
		} `json:"out"`
	}
	if err := json.Unmarshal(line[i:], &v); err != nil {
		return nil, "a request's log as JSON" + where(err)
	}
	if v.Event != "request.finished" {
		return nil, ""
	}
	r := &record{engine: "sglang", request: word(v.RID)}
	if r.request == "" {
		r.request = v.Out.Meta.ID
	}
	r.key = r.request
	if r.object(&v.Obj) {
		return nil, ""
	}
	if want := r.meta(&v.Out.Meta); want != "" {
		return nil, want
	}
	if r.key == "" {
		return nil, "a rid or a bootstrap_room"
	}
	r.end = stamp(v.Timestamp)
	if r.end.IsZero() {
		if m := bracketTime.FindSubmatch(line); m != nil {
			r.end, _ = time.Parse("2006-01-02 15:04:05", strings.Replace(string(m[1]), ",", ".", 1))
		}
	}
	r.begin = r.end
	return r, ""
}

func (r *record) meta(m *sgMeta) string {
	for _, n := range []struct {
		from *int
		to   *int
	}{{m.PromptTokens, &r.prompt}, {m.Completion, &r.output}} {
		if n.from == nil {
			continue
		}
		if *n.from < 0 || *n.from > maxCount {
			return "token counts of 0 or more"
		}
		*n.to = *n.from
	}
	return r.finished(m.Finish)
}

func stamp(raw json.RawMessage) time.Time {
	s := word(raw)
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return events.Micros(t)
	}
	return events.Micros(epoch(s))
}

// parseMetrics reads a line of --export-metrics-to-file.
func parseMetrics(line []byte) (*record, string) {
	var v struct {
		sgMeta
		Parameters json.RawMessage `json:"request_parameters"`
		Mode       string          `json:"disaggregation_mode"`
		Timestamp  json.RawMessage `json:"timestamp"`
		Received   json.RawMessage `json:"request_received_ts"`
		Sent       json.RawMessage `json:"response_sent_to_client_ts"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, "a request's metrics as JSON" + where(err)
	}
	var o sgObject
	text := word(v.Parameters)
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, "request_parameters as JSON inside a string"
	}
	r := &record{engine: "sglang", request: v.ID}
	if r.request == "" {
		r.request = word(o.RID)
	}
	r.key = r.request
	if r.object(&o) {
		return nil, ""
	}
	switch v.Mode {
	case "prefill":
		r.role = prefill
	case "decode":
		r.role = decode
	}
	if want := r.meta(&v.sgMeta); want != "" {
		return nil, want
	}
	if r.key == "" {
		return nil, "an id or a bootstrap_room"
	}
	r.begin, r.end = stamp(v.Received), stamp(v.Sent)
	if r.end.IsZero() {
		r.end = stamp(v.Timestamp)
	}
	if r.begin.IsZero() {
		r.begin = r.end
	}
	return r, ""
}

// where is the offset of a JSON error, without its text: that may quote a prompt.
func where(err error) string {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf(" (broken at its byte %d)", syntax.Offset)
	case errors.As(err, &typ):
		return fmt.Sprintf(" (another type at %s, byte %d)", typ.Field, typ.Offset)
	}
	return ""
}

// classify names an engine's message by what it begins with. The text itself may
// hold a client's and is not kept.
func classify(message string, code events.Code) events.Code {
	switch {
	case strings.Contains(message, "exceeds the maximum allowed length"):
		return events.CodeContextLength
	case strings.Contains(message, "transfer failed"), strings.Contains(message, "Metadata corruption"):
		return events.CodeTransferFailed
	case strings.Contains(message, "bootstrap failed"):
		return events.CodePrefillFailed
	}
	return code
}
