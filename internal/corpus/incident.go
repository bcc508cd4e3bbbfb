package corpus

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Sizes of the public report.
const (
	Context     = 1_048_576
	PrefillPool = 681_280
	MaxInput    = 681_273 // what SGLang accepts of such a pool
	decodePool  = 1_310_720
	pageTokens  = 64
	tokenBytes  = 192
	layout      = "mha.v1:64:192"
	model       = "long-1"
)

// IncidentConfig says how the incident is rebuilt.
type IncidentConfig struct {
	Seed     uint64
	Requests int           // of the whole mix; 0: 20,000
	Affected int           // answers with others' data; 0: 155
	Clean    bool          // guarded and scrubbed: nobody is affected, and no rule is broken
	Batch    int           // most events of an envelope, which takes one partition; 0: 1
	Start    time.Time     // zero: 2026-06-01
	Length   time.Duration // 0: two weeks
}

// Truth is what a replay must find.
type Truth struct {
	Affected  []string // request ids, in order of their answers
	Receiving []string // tenants, sorted
	Exposed   []string // tenants, sorted
	First     time.Time
	Last      time.Time
	MinPrompt int
	Requests  int
}

// Incident writes the log of the public incident: two weeks of a cluster of two
// prefill and two decode workers, in which prompts above prefill's pool are rejected
// inside the engine, a placeholder of one token goes on, and decode answers from
// pages that still hold other requests' KV. Nothing is scrubbed, and nobody asks
// whether a request was rejected. The same seed writes the same bytes.
func Incident(cfg IncidentConfig, emit func(*events.Envelope) error) (*Truth, error) {
	if cfg.Requests == 0 {
		cfg.Requests = 20_000
	}
	if cfg.Affected == 0 {
		cfg.Affected = 155
	}
	if cfg.Clean {
		cfg.Affected = 0
	}
	if cfg.Start.IsZero() {
		cfg.Start = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	}
	if cfg.Length == 0 {
		cfg.Length = 14 * 24 * time.Hour
	}
	s := &incident{cfg: cfg, log: NewLog(emit), rnd: rand.New(rand.NewPCG(cfg.Seed, 0x1c1de17)), truth: &Truth{Requests: cfg.Requests}, receiving: map[string]bool{}, exposed: map[string]bool{}}
	if s.log.Batch = cfg.Batch; cfg.Batch > 1 {
		s.log.Partitions = 1
	}
	s.workers()
	s.arrivals()
	for s.due.Len() > 0 && s.log.Err() == nil {
		q := heap.Pop(&s.due).(*request)
		q.next(q)
	}
	s.log.Flush()
	if err := s.log.Err(); err != nil {
		return nil, fmt.Errorf("incident: %w", err)
	}
	s.truth.Receiving, s.truth.Exposed = names(s.receiving), names(s.exposed)
	return s.truth, nil
}

func names(set map[string]bool) (all []string) {
	for n := range set {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

type incident struct {
	cfg       IncidentConfig
	log       *Log
	rnd       *rand.Rand
	truth     *Truth
	due       schedule
	prefill   []*pool
	decode    []*pool
	requests  []*request // by number, from 1
	receiving map[string]bool
	exposed   map[string]bool
}

// request is one customer's, on its way.
type request struct {
	n        int32
	at       time.Time // of its next step
	next     func(*request)
	id       string
	tenant   string
	prompt   int
	output   int
	most     int
	affected bool
	fate     int // of those that are not affected
	p, d     *pool
	src, dst []events.PageRun
	lease    time.Time
	deadline time.Time
	kv       int64
	digest   string
}

// Fates.
const (
	fateDecoded = iota
	fateTooLong // above the context window: rejected at admission
	fateBusy    // the tenant's limit
	fateFailed
	fateCancelled
)

type schedule []*request

func (s schedule) Len() int      { return len(s) }
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s schedule) Less(i, j int) bool {
	return cmp.Or(s[i].at.Compare(s[j].at), cmp.Compare(s[i].n, s[j].n)) < 0
}
func (s *schedule) Push(x any) { *s = append(*s, x.(*request)) }
func (s *schedule) Pop() any {
	old := *s
	q := old[len(old)-1]
	*s = old[:len(old)-1]
	return q
}

func (s *incident) workers() {
	for i := range 4 {
		role, name, pool := events.RolePrefill, fmt.Sprintf("prefill-%d", i+1), PrefillPool
		limit := MaxInput
		if i >= 2 {
			role, name, pool, limit = events.RoleDecode, fmt.Sprintf("decode-%d", i-1), decodePool, Context
		}
		epoch := uint64(s.cfg.Start.UnixMicro()) + uint64(i)
		s.log.PutOps(s.cfg.Start, name, &events.WorkerJoined{
			Worker: name, Role: role, Model: model, Epoch: epoch, PublicKey: strings.Repeat("A", 43) + "=", Address: fmt.Sprintf("tcp://10.0.0.%d:7001", i+1),
			Engine: "sglang", Version: "0.5.18", ContextTokens: Context, MaxInputTokens: limit, PoolPages: pool / pageTokens, PageTokens: pageTokens, TokenBytes: tokenBytes, Layout: layout,
		})
		p := newPool(name, epoch, pool, pageTokens)
		if role == events.RolePrefill {
			s.prefill = append(s.prefill, p)
		} else {
			s.decode = append(s.decode, p)
		}
	}
}

// arrivals draws the mix: most prompts are short, a few fill the window, days are
// busier than nights, and a few customers send the long ones.
func (s *incident) arrivals() {
	n := s.cfg.Requests
	affected := map[int]bool{}
	for len(affected) < min(s.cfg.Affected, n/2) {
		affected[n/10+s.rnd.IntN(n-n/10)] = true // the pools have been in use by then
	}
	times := make([]time.Duration, n)
	for i := range times {
		for {
			at := time.Duration(s.rnd.Float64() * float64(s.cfg.Length))
			if hour := at.Hours() - 24*math.Floor(at.Hours()/24); s.rnd.Float64() < 0.25+0.75*math.Sin(math.Pi*hour/24) {
				times[i] = at
				break
			}
		}
	}
	slices.Sort(times)
	s.requests = make([]*request, 1, n+1)
	for i := range n {
		at := s.cfg.Start.Add(time.Second + times[i])
		q := &request{n: int32(i + 1), at: at, tenant: fmt.Sprintf("tenant-%02d", 1+s.rnd.IntN(40)), affected: affected[i], next: s.admit}
		q.id = fmt.Sprintf("%012x", at.UnixMilli())
		q.id = fmt.Sprintf("%s-%s-7%03x-%04x-%012x", q.id[:8], q.id[8:], s.rnd.IntN(1<<12), 0x8000|s.rnd.IntN(1<<14), s.rnd.Uint64()>>16)
		q.prompt = int(min(200_000, math.Exp(7.5+1.6*s.rnd.NormFloat64())+16))
		q.output = 1 + int(min(4000, math.Exp(5+s.rnd.NormFloat64())))
		switch x := s.rnd.Float64(); {
		case q.affected:
			q.tenant = fmt.Sprintf("tenant-%02d", 1+s.rnd.IntN(14))
			q.prompt = PrefillPool + 1 + s.rnd.IntN(Context-PrefillPool-5000)
		case x < 0.01: // long, and served
			q.prompt = 300_000 + s.rnd.IntN(MaxInput-300_000-8)
		case x < 0.012:
			q.prompt, q.fate = Context+s.rnd.IntN(200_000), fateTooLong
		case x < 0.02:
			q.fate = fateBusy
		case x < 0.03:
			q.fate = fateFailed
		case x < 0.05:
			q.fate = fateCancelled
		}
		q.most = q.output + s.rnd.IntN(500)
		s.requests = append(s.requests, q)
		heap.Push(&s.due, q)
	}
}

// then schedules a request's next step.
func (s *incident) then(q *request, after time.Duration, next func(*request)) {
	q.at, q.next = events.Micros(q.at.Add(after)), next
	heap.Push(&s.due, q)
}

func (s *incident) hash(kind string) string {
	return kind + fmt.Sprintf("%016x%016x%016x%016x", s.rnd.Uint64(), s.rnd.Uint64(), s.rnd.Uint64(), s.rnd.Uint64())
}

const policy = "sha256:6f1d0a6e5b7c4f0e9d3a2b1c8e7f605142332415061728394a5b6c7d8e9fa0b1"

func (s *incident) facts(q *request) events.AdmissionFacts {
	f := events.AdmissionFacts{ContextTokens: Context, MaxInputTokens: MaxInput, MaxDecodeTokens: decodePool, PrefillNodes: 2, DecodeNodes: 2, QueueDepth: s.rnd.IntN(4), TenantLimit: 16, TenantOpen: s.rnd.IntN(4), Policy: policy}
	if q.fate == fateBusy {
		f.TenantOpen = 16
	}
	return f
}

func (s *incident) admit(q *request) {
	f := s.facts(q)
	reject := func(e *events.Error) {
		s.log.Put(q.at, q.id, q.tenant, &events.RequestRejected{Error: *e, Stage: "admission", Model: model, PromptTokens: q.prompt, MaxTokens: q.most, Facts: &f})
		s.log.Forget(q.id)
	}
	switch q.fate {
	case fateTooLong:
		reject(events.ContextExceeded("prompt plus max_tokens, against the context window", q.prompt+q.most, Context))
		return
	case fateBusy:
		reject(events.NewError(events.CodeTenantConcurrency, "open requests: 16, the limit is 16"))
		return
	}
	q.p, q.d = s.prefill[s.rnd.IntN(2)], s.decode[s.rnd.IntN(2)]
	q.deadline = events.Micros(q.at.Add(10 * time.Minute))
	s.log.Put(q.at, q.id, q.tenant, &events.RequestAdmitted{
		Model: model, Gateway: "gw1", PromptTokens: q.prompt, MaxTokens: q.most, PromptDigest: s.hash("hmac-sha256:"), Stream: s.rnd.IntN(3) > 0,
		PrefillBy: events.Micros(q.at.Add(2 * time.Minute)), Deadline: q.deadline, Facts: f,
	})
	// The engine takes about 50,000 tokens a second.
	took := time.Duration(20+s.rnd.IntN(80))*time.Millisecond + time.Duration(q.prompt)*20*time.Microsecond
	if q.affected {
		took = time.Duration(5+s.rnd.IntN(20)) * time.Millisecond
		s.then(q, took, s.refused)
		return
	}
	s.then(q, took, s.prefilled)
}

// refused is the engine's own word: the request is rejected, and its queue entry
// goes on with a placeholder.
func (s *incident) refused(q *request) {
	s.log.Put(q.at, q.id, q.tenant, &events.RequestRejected{
		Error: events.Error{Code: events.CodeContextLength, Message: fmt.Sprintf("Input length (%d tokens) exceeds the maximum allowed length (%d tokens)", q.prompt, MaxInput+1), Status: 400},
		Stage: "engine", Model: model, PromptTokens: q.prompt, MaxTokens: q.most, Worker: q.p.worker,
	})
	s.then(q, time.Duration(2+s.rnd.IntN(5))*time.Millisecond, s.prefilled)
}

func (s *incident) prefilled(q *request) {
	tokens := q.prompt
	if q.affected {
		tokens = 1 // the placeholder
	}
	need := q.p.pagesFor(tokens)
	if q.src = q.p.alloc(q.n, need); q.src == nil { // full: wait
		s.then(q, 250*time.Millisecond, s.prefilled)
		return
	}
	q.p.write(q.src, 0, need, q.n)
	q.kv = int64(need) * pageTokens * tokenBytes
	q.digest = s.hash("hmac-sha256:")
	q.lease = events.Micros(q.at.Add(2 * time.Minute))
	if q.deadline.Before(q.lease) {
		q.lease = q.deadline
	}
	s.log.Put(q.at, q.id, q.tenant, &events.RequestPrefilled{
		Worker: q.p.worker, WorkerEpoch: q.p.epoch, PromptTokens: tokens, Pages: q.src, PageTokens: pageTokens, Layout: layout, KVBytes: q.kv, KVDigest: q.digest, Lease: q.lease,
	})
	if q.fate == fateFailed {
		s.then(q, time.Duration(50+s.rnd.IntN(500))*time.Millisecond, s.failed)
		return
	}
	s.then(q, time.Duration(1+s.rnd.IntN(10))*time.Millisecond, s.granted)
}

func (s *incident) granted(q *request) {
	if q.dst = q.d.alloc(q.n, q.d.pagesFor(q.prompt+q.most)); q.dst == nil {
		if q.at.Add(time.Second).After(q.lease) {
			s.failed(q)
		} else {
			s.then(q, 250*time.Millisecond, s.granted)
		}
		return
	}
	s.log.Put(q.at, q.id, q.tenant, &events.TransferGranted{
		GrantEpoch: 1, Owner: q.p.worker, OwnerEpoch: q.p.epoch, Worker: q.d.worker, WorkerEpoch: q.d.epoch, WorkerKey: strings.Repeat("A", 43) + "=", OwnerKey: strings.Repeat("A", 43) + "=",
		OwnerAddress: "tcp://10.0.0.1:7001", Pages: q.dst, ReservedTokens: q.prompt + q.most, Lease: q.lease,
	})
	s.then(q, time.Millisecond+time.Duration(q.kv/20_000)*time.Microsecond, s.transferred)
}

func (s *incident) transferred(q *request) {
	q.d.write(q.dst, 0, events.Pages(q.src), q.n)
	s.log.Put(q.at, q.id, q.tenant, &events.RequestTransferred{
		GrantEpoch: 1, Worker: q.d.worker, WorkerEpoch: q.d.epoch, KVBytes: q.kv, KVDigest: q.digest, DurationUS: 1000 + q.kv/20_000, DecodeBy: events.Micros(q.at.Add(5 * time.Minute)),
	})
	if q.fate == fateCancelled {
		s.then(q, time.Duration(100+s.rnd.IntN(3000))*time.Millisecond, s.cancelled)
		return
	}
	s.then(q, time.Duration(q.output)*20*time.Millisecond, s.decoded)
}

func (s *incident) decoded(q *request) {
	if q.affected {
		s.leak(q)
	}
	q.d.write(q.dst, q.d.pagesFor(q.prompt), q.d.pagesFor(q.prompt+q.output), q.n)
	reason := events.FinishStop
	if q.output == q.most {
		reason = events.FinishLength
	}
	s.log.Put(q.at, q.id, q.tenant, &events.RequestDecoded{
		Worker: q.d.worker, WorkerEpoch: q.d.epoch, PromptTokens: q.prompt, CompletionTokens: q.output, FinishReason: reason, OutputDigest: s.hash("hmac-sha256:"),
	})
	s.then(q, time.Duration(1+s.rnd.IntN(20))*time.Millisecond, s.released)
}

// leak notes whose KV decode attends over.
func (s *incident) leak(q *request) {
	t := s.truth
	t.Affected = append(t.Affected, q.id)
	if t.First.IsZero() {
		t.First = q.at
	}
	t.Last = q.at
	if t.MinPrompt == 0 || q.prompt < t.MinPrompt {
		t.MinPrompt = q.prompt
	}
	s.receiving[q.tenant] = true
	each(q.dst, 0, q.d.pagesFor(q.prompt), func(page int) {
		if w := q.d.writer[page]; w != 0 && w != q.n {
			s.exposed[s.requests[w].tenant] = true
		}
	})
}

func (s *incident) failed(q *request) {
	s.log.Put(q.at, q.id, q.tenant, &events.RequestFailed{Error: *events.NewError(events.CodeTransferFailed, "the puller is gone"), From: events.Prefilled, Stage: "transfer", Worker: q.d.worker})
	s.then(q, 5*time.Millisecond, s.released)
}

func (s *incident) cancelled(q *request) {
	s.log.Put(q.at, q.id, q.tenant, &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Transferred})
	s.then(q, 5*time.Millisecond, s.released)
}

// released gives pages back as they are.
func (s *incident) released(q *request) {
	give := func(p *pool, role events.Role, runs []events.PageRun) {
		if len(runs) == 0 {
			return
		}
		s.log.Put(q.at, q.id, q.tenant, &events.RequestReleased{
			Worker: p.worker, WorkerEpoch: p.epoch, Role: role, Generation: runs[0].Generation, Pages: events.Pages(runs), Drained: true, Scrubbed: s.cfg.Clean, Reason: "done",
		})
		p.free(runs)
	}
	give(q.p, events.RolePrefill, q.src)
	give(q.d, events.RoleDecode, q.dst)
	s.log.Forget(q.id)
}
