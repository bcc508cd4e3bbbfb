package export

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Types of rows that are no events.
const (
	typeGap     = "pdgate_gap"
	typeForeign = "pdgate_foreign"
	typeEpoch   = "pdgate_epoch"
)

// row is a leaf in flat form: the attributes, and of the data what can be asked
// for in a column. Text that is not there is empty, a number that is not there is
// nil. The tags are the columns of the Parquet file and do not change.
type row struct {
	Seq  uint64 `parquet:"seq"`
	Line int32  `parquet:"line"`
	Leaf int64  `parquet:"leaf"`
	Hash string `parquet:"hash"` // SHA-256 as receipts have it
	Type string `parquet:"type,dict"`

	ID          string  `parquet:"id,optional"`
	Source      string  `parquet:"source,optional,dict"`
	Subject     string  `parquet:"subject,optional"`
	Time        *int64  `parquet:"time,optional,timestamp(microsecond)"`
	N           *int64  `parquet:"n,optional"`
	Command     string  `parquet:"command,optional"`
	Principal   string  `parquet:"principal,optional,dict"`
	Prev        string  `parquet:"prev,optional"`
	Tenant      string  `parquet:"tenant,optional,dict"`
	TenantSeq   *uint64 `parquet:"tenant_seq,optional"`
	TenantPrev  string  `parquet:"tenant_prev,optional"`
	Traceparent string  `parquet:"traceparent,optional"`

	Model            string  `parquet:"model,optional,dict"`
	Gateway          string  `parquet:"gateway,optional,dict"`
	Role             string  `parquet:"role,optional,dict"`
	Worker           string  `parquet:"worker,optional,dict"` // the one whose pages are in pages
	WorkerEpoch      *uint64 `parquet:"worker_epoch,optional"`
	Owner            string  `parquet:"owner,optional,dict"` // of a transfer's source
	OwnerEpoch       *uint64 `parquet:"owner_epoch,optional"`
	GrantEpoch       *int64  `parquet:"grant_epoch,optional"`
	PromptTokens     *int64  `parquet:"prompt_tokens,optional"`
	MaxTokens        *int64  `parquet:"max_tokens,optional"`
	CompletionTokens *int64  `parquet:"completion_tokens,optional"`
	FinishReason     string  `parquet:"finish_reason,optional,dict"`
	KVBytes          *int64  `parquet:"kv_bytes,optional"`
	KVDigest         string  `parquet:"kv_digest,optional"`
	DurationUS       *int64  `parquet:"duration_us,optional"`
	Asked            string  `parquet:"asked,optional,dict"` // the command that was denied
	State            string  `parquet:"state,optional,dict"` // in which it was denied, or from which a request ended
	Stage            string  `parquet:"stage,optional,dict"`
	Code             string  `parquet:"code,optional,dict"`
	HTTPStatus       *int64  `parquet:"http_status,optional"`
	Message          string  `parquet:"message,optional"`
	Expected         string  `parquet:"expected,optional"`
	Actual           string  `parquet:"actual,optional"`
	Reason           string  `parquet:"reason,optional,dict"`
	Generation       *uint64 `parquet:"generation,optional"`
	PageCount        *int64  `parquet:"page_count,optional"`
	Pages            []pages `parquet:"pages,list"`
	Drained          *bool   `parquet:"drained,optional"`
	Scrubbed         *bool   `parquet:"scrubbed,optional"`
	Lease            *int64  `parquet:"lease,optional,timestamp(microsecond)"`
	Deadline         *int64  `parquet:"deadline,optional,timestamp(microsecond)"`

	Raw string `parquet:"raw"` // the leaf, byte for byte
}

// pages is a run of pages of the row's worker.
type pages struct {
	Start      uint32 `parquet:"start"`
	Count      uint32 `parquet:"count"`
	Generation uint64 `parquet:"generation"`
}

// flatten makes the row of a leaf, which shares no memory that a reader of leaves
// uses again.
func flatten(e *entry) row {
	r := row{Seq: e.Seq, Line: int32(e.Line), Leaf: e.Record.Leaf, Hash: events.Hash(e.Raw), Raw: string(e.Raw)}
	switch l := &e.Leaf; {
	case l.Gap != nil:
		r.Type, r.Message = typeGap, gapMessage(l.Gap.From, l.Gap.To)
	case l.Foreign != nil:
		r.Type, r.Message, r.Actual = typeForeign, foreignMessage, "sha256:"+l.Foreign.SHA256
	case l.Epoch != nil:
		r.Type, r.Tenant = typeEpoch, l.Epoch.Tenant
	default:
		r.attributes(l.Event)
		r.data(l.Event.Data)
	}
	return r
}

func (r *row) attributes(e *events.Event) {
	r.Type, r.ID, r.Source, r.Subject, r.Time = string(e.Type), e.ID, e.Source, e.Subject, micros(e.Time)
	r.Command, r.Principal, r.Tenant, r.TenantPrev, r.Traceparent = e.Command, e.Principal, e.Tenant, e.TenantPrev, e.Traceparent
	if e.N > 0 {
		r.N = num(e.N)
	}
	if e.TenantSeq > 0 {
		r.TenantSeq = new(e.TenantSeq)
	}
	if e.Prev != (events.Position{}) {
		r.Prev = e.Prev.String()
	}
}

func (r *row) data(data events.Data) {
	switch d := data.(type) {
	case *events.RequestAdmitted:
		r.Model, r.Gateway, r.Deadline = d.Model, d.Gateway, micros(d.Deadline)
		r.PromptTokens, r.MaxTokens = num(d.PromptTokens), num(d.MaxTokens)
	case *events.RequestRejected:
		r.Model, r.Worker, r.Stage = d.Model, d.Worker, d.Stage
		r.PromptTokens, r.MaxTokens = num(d.PromptTokens), num(d.MaxTokens)
		r.fault(&d.Error)
	case *events.RequestPrefilled:
		r.worker(d.Worker, new(d.WorkerEpoch))
		r.PromptTokens, r.KVBytes, r.KVDigest, r.Lease = num(d.PromptTokens), new(d.KVBytes), d.KVDigest, micros(d.Lease)
		r.runs(d.Pages)
	case *events.TransferGranted:
		r.worker(d.Worker, new(d.WorkerEpoch))
		r.Owner, r.OwnerEpoch, r.GrantEpoch, r.Lease = d.Owner, new(d.OwnerEpoch), num(d.GrantEpoch), micros(d.Lease)
		r.runs(d.Pages)
	case *events.RequestTransferred:
		r.worker(d.Worker, new(d.WorkerEpoch))
		r.GrantEpoch, r.KVBytes, r.KVDigest, r.DurationUS, r.Deadline = num(d.GrantEpoch), new(d.KVBytes), d.KVDigest, new(d.DurationUS), micros(d.DecodeBy)
	case *events.RequestDecoded:
		r.worker(d.Worker, new(d.WorkerEpoch))
		r.PromptTokens, r.CompletionTokens, r.FinishReason = num(d.PromptTokens), num(d.CompletionTokens), string(d.FinishReason)
	case *events.RequestFailed:
		r.Worker, r.Stage, r.State = d.Worker, d.Stage, string(d.From)
		r.fault(&d.Error)
	case *events.RequestCancelled:
		r.Code, r.State, r.HTTPStatus = string(d.Reason), string(d.From), num(d.Reason.HTTPStatus())
	case *events.RequestReleased:
		r.worker(d.Worker, new(d.WorkerEpoch))
		r.Role, r.Generation, r.PageCount, r.Drained, r.Scrubbed, r.Reason = string(d.Role), new(d.Generation), num(d.Pages), new(d.Drained), new(d.Scrubbed), d.Reason
	case *events.CommandDenied:
		r.Asked, r.State, r.Code, r.HTTPStatus = string(d.Command), string(d.State), string(d.Code), num(d.Code.HTTPStatus())
		r.Message, r.Expected, r.Actual = d.Message, d.Expected, d.Actual
	case *events.WorkerJoined:
		r.worker(d.Worker, new(d.Epoch))
		r.Role, r.Model, r.PageCount = string(d.Role), d.Model, num(d.PoolPages)
	case *events.WorkerLeft:
		r.worker(d.Worker, new(d.Epoch))
		r.Reason = d.Reason
	case *events.ModelQuarantined:
		r.Model, r.Reason = d.Model, d.Reason
	case *events.TenantNotified:
		r.Tenant, r.Reason = d.Tenant, d.Incident
		r.Message = d.Channel + " sha256:" + d.Content
	case *events.ModelRestored:
		r.Model, r.Reason = d.Model, d.Reason
	case *events.CanaryRan:
		r.Model, r.Reason = d.Model, d.Verdict
	}
}

func (r *row) worker(name string, epoch *uint64) { r.Worker, r.WorkerEpoch = name, epoch }

func (r *row) fault(e *events.Error) {
	r.Code, r.Message, r.HTTPStatus = string(e.Code), e.Message, num(e.HTTPStatus())
}

func (r *row) runs(runs []events.PageRun) {
	r.PageCount = num(events.Pages(runs))
	for _, p := range runs {
		r.Pages = append(r.Pages, pages(p))
	}
}

func num(n int) *int64 { return new(int64(n)) }

func micros(t time.Time) *int64 { return new(t.UnixMicro()) }

const foreignMessage = "a stored message that no holder of the log key wrote, or whose lines are no events"

func gapMessage(from, to uint64) string {
	return "the stream has none of the messages " + text(from) + " to " + text(to)
}
