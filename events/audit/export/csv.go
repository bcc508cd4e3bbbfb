package export

import (
	"bufio"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// csvColumns are the columns of the summary, in their order.
var csvColumns = []struct {
	name  string
	value func(*row) string
}{
	{"seq", func(r *row) string { return text(r.Seq) }},
	{"line", func(r *row) string { return text(r.Line) }},
	{"leaf", func(r *row) string { return text(r.Leaf) }},
	{"time", func(r *row) string { return clock(r.Time) }},
	{"type", func(r *row) string { return r.Type }},
	{"subject", func(r *row) string { return r.Subject }},
	{"n", func(r *row) string { return opt(r.N) }},
	{"tenant", func(r *row) string { return r.Tenant }},
	{"tenant_seq", func(r *row) string { return opt(r.TenantSeq) }},
	{"principal", func(r *row) string { return r.Principal }},
	{"model", func(r *row) string { return r.Model }},
	{"worker", func(r *row) string { return r.Worker }},
	{"worker_epoch", func(r *row) string { return opt(r.WorkerEpoch) }},
	{"state", func(r *row) string { return r.State }},
	{"stage", func(r *row) string { return r.Stage }},
	{"code", func(r *row) string { return r.Code }},
	{"http_status", func(r *row) string { return opt(r.HTTPStatus) }},
	{"message", func(r *row) string { return r.Message }},
	{"reason", func(r *row) string { return r.Reason }},
	{"prompt_tokens", func(r *row) string { return opt(r.PromptTokens) }},
	{"completion_tokens", func(r *row) string { return opt(r.CompletionTokens) }},
	{"finish_reason", func(r *row) string { return r.FinishReason }},
	{"kv_bytes", func(r *row) string { return opt(r.KVBytes) }},
	{"pages", func(r *row) string { return opt(r.PageCount) }},
	{"sha256", hexHash}, // in base64 it may start as a formula

}

// csvFile writes a table after RFC 4180: CRLF, quotes where needed, a header.
type csvFile struct {
	out   *bufio.Writer
	w     *csv.Writer
	cells []string
}

func newCSV(w *bufio.Writer) (*csvFile, error) {
	c := &csvFile{out: w, w: csv.NewWriter(w), cells: make([]string, len(csvColumns))}
	c.w.UseCRLF = true
	for i, col := range csvColumns {
		c.cells[i] = col.name
	}
	return c, c.w.Write(c.cells)
}

func (c *csvFile) add(e *entry) error {
	r := flatten(e)
	for i, col := range csvColumns {
		c.cells[i] = harmless(col.value(&r))
	}
	return c.w.Write(c.cells)
}

func (c *csvFile) close() error {
	c.w.Flush()
	return c.w.Error()
}

func (c *csvFile) abort() {
	c.w.Flush()
	_, _ = c.out.WriteString(`"export incomplete`) // a quote that nothing ends
}

// harmless keeps a spreadsheet from running a cell as a formula: texts of clients
// and models stand in some. A text that starts as a formula gets a quote before it.
func harmless(s string) string {
	if s != "" && strings.ContainsAny(s[:1], "=+-@\t\r\n") || strings.HasPrefix(s, "＝") || strings.HasPrefix(s, "＋") ||
		strings.HasPrefix(s, "－") || strings.HasPrefix(s, "＠") {
		return "'" + s
	}
	return s
}

func hexHash(r *row) string {
	sum := sha256.Sum256([]byte(r.Raw))
	return hex.EncodeToString(sum[:])
}

type integer interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64
}

func text[T integer](n T) string {
	if n < 0 {
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatUint(uint64(n), 10)
}

func opt[T integer](n *T) string {
	if n == nil {
		return ""
	}
	return text(*n)
}

func clock(us *int64) string {
	if us == nil {
		return ""
	}
	return time.UnixMicro(*us).UTC().Format("2006-01-02T15:04:05.000000Z")
}
