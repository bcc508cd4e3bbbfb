package replay

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// radius is the blast radius over all logs of a replay.
type radius struct {
	out       Exposure
	exposed   map[string]struct{}
	receiving map[string]struct{}
	owners    map[string]struct{} // requests whose pages were read
	maps      []PageMap
	hit       map[string]struct{}            // workers that gave affected responses
	given     map[string]*int64              // responses by worker
	base      map[string]int64               // given before the first affected one
	top       map[string]int64               // given at the last affected one
	suspects  map[string][]statemachine.Kind // of requests whose output may be another's
}

func newRadius() *radius {
	return &radius{exposed: map[string]struct{}{}, receiving: map[string]struct{}{}, owners: map[string]struct{}{}, hit: map[string]struct{}{}, given: map[string]*int64{},
		suspects: map[string][]statemachine.Kind{}, out: Exposure{Responses: []Response{}, Edges: []Edge{}}}
}

// suspect notes a violation after which the request's output may be another's.
func (x *radius) suspect(id string, k statemachine.Kind) {
	if !slices.Contains(x.suspects[id], k) {
		x.suspects[id] = append(x.suspects[id], k)
	}
}

// Bounds of lists in a result. Counts and tenants are complete. A response to a long
// prompt may have a hundred edges.
const (
	maxResponses = 10_000
	maxEdges     = 100_000
)

// gave notes a response, affected or not.
func (x *radius) gave(worker string, affected bool) {
	n := x.given[worker]
	if n == nil { // its name may be the decoder's, and assigning to a map keeps the last key
		n = new(int64)
		x.given[strings.Clone(worker)] = n
	}
	if affected && x.base == nil {
		x.base = x.counts()
	}
	*n++
	if affected {
		x.hit[strings.Clone(worker)] = struct{}{}
		x.top = x.counts()
	}
}

func (x *radius) counts() map[string]int64 {
	all := make(map[string]int64, len(x.given))
	for w, n := range x.given {
		all[w] = *n
	}
	return all
}

func (x *radius) add(r Response, edges []Edge) {
	if r.Ring == "confirmed" {
		x.out.Rings.Confirmed++
		if slices.ContainsFunc(edges, func(e Edge) bool { return e.OwnerTenant != e.ReaderTenant }) {
			x.out.CrossTenant++
		}
	} else {
		x.out.Rings.Possible++
	}
	if r.Tenant != "" {
		x.receiving[r.Tenant] = struct{}{}
	}
	if x.out.First.IsZero() || r.Time.Before(x.out.First) {
		x.out.First = r.Time
	}
	if r.Time.After(x.out.Last) {
		x.out.Last = r.Time
	}
	if r.PromptTokens > 0 && (x.out.MinPrompt == 0 || r.PromptTokens < x.out.MinPrompt) {
		x.out.MinPrompt = r.PromptTokens
	}
	x.out.MaxPrompt = max(x.out.MaxPrompt, r.PromptTokens)
	if len(x.out.Responses) < maxResponses {
		x.out.Responses = append(x.out.Responses, r)
	} else {
		x.out.ResponsesMore++
	}
	for _, e := range edges {
		x.exposed[e.OwnerTenant] = struct{}{}
		x.owners[e.Owner] = struct{}{}
		if len(x.out.Edges) < maxEdges {
			x.out.Edges = append(x.out.Edges, e)
		} else {
			x.out.EdgesMore++
		}
	}
}

// result closes the rings.
func (x *radius) result() Exposure {
	out := x.out
	for w := range x.hit {
		out.Rings.Population += x.top[w] - x.base[w]
	}
	out.Owners = int64(len(x.owners))
	out.TenantsExposed, out.TenantsReceiving = sorted(x.exposed), sorted(x.receiving)
	return out
}

func sorted(set map[string]struct{}) []string {
	all := make([]string, 0, len(set))
	for s := range set {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

// life is a request as its pages see it: what happened, whether or not it was
// lawful.
type life struct {
	owner   *owner
	config  *Config
	last    time.Time // of its last event
	filled  time.Time // when prefill was done
	prefill allocation
	grant   allocation
	bytes   int64 // of prefill's KV
	held    int
	written uint64 // pages of the grant that the transfer filled
	tokens  int    // of the prompt, as admitted
	moved   bool
	edges   []Edge // found by the transfer already
}

// allocation is pages of one worker's life.
type allocation struct {
	worker string
	epoch  uint64
	tokens int // a page
	runs   []events.PageRun
}

func (a *allocation) set(worker string, epoch uint64, tokens int, runs []events.PageRun) {
	if a.worker != worker {
		a.worker = strings.Clone(worker)
	}
	a.epoch, a.tokens, a.runs = epoch, tokens, append(a.runs[:0], runs...)
}

// pageLog follows one log's pages.
type pageLog struct {
	*radius
	pools    holders
	sizes    map[poolKey]int // tokens a page, as registered
	lives    map[string]*life
	free     []*life
	names    map[string]string
	shadow   bool // the pages are an external engine's account
	external bool // the lives are what engines tell: there are no pages
}

func newPageLog(x *radius) *pageLog {
	return &pageLog{radius: x, pools: holders{}, sizes: map[poolKey]int{}, lives: map[string]*life{}, names: map[string]string{}}
}

func (p *pageLog) life(e *events.Event) *life {
	l := p.lives[e.Subject]
	if l != nil {
		return l
	}
	if n := len(p.free); n > 0 {
		l, p.free = p.free[n-1], p.free[:n-1]
		*l = life{prefill: allocation{worker: l.prefill.worker, runs: l.prefill.runs[:0]}, grant: allocation{worker: l.grant.worker, runs: l.grant.runs[:0]}}
	} else {
		l = &life{}
	}
	l.owner = &owner{request: strings.Clone(e.Subject), tenant: p.name(e.Tenant)}
	p.lives[l.owner.request] = l
	return l
}

// name is a kept copy of a tenant's name.
func (p *pageLog) name(s string) string {
	if kept, ok := p.names[s]; ok {
		return kept
	}
	if len(p.names) >= maxNames {
		clear(p.names)
	}
	s = strings.Clone(s)
	p.names[s] = s
	return s
}

// maxNames bounds the names that are remembered.
const maxNames = 4096

// ended lets go of a life that nothing more can happen to.
func (p *pageLog) ended(l *life, state events.State) {
	if l.held > 0 || !state.Final() {
		return
	}
	delete(p.lives, l.owner.request)
	if len(p.free) < 1024 {
		p.free = append(p.free, l)
	}
}

// joined registers a worker's life.
func (p *pageLog) joined(d *events.WorkerJoined) {
	p.pools.joined(d.Worker, d.Epoch)
	p.sizes[poolKey{strings.Clone(d.Worker), d.Epoch}] = d.PageTokens
}

func pagesFor(tokens, perPage int) uint64 {
	if tokens <= 0 || perPage <= 0 {
		return 0
	}
	return uint64((tokens + perPage - 1) / perPage)
}

// see takes one event of a request.
func (p *pageLog) see(l *life, o *statemachine.Observation) {
	switch d := o.Event.Data.(type) {
	case *events.RequestAdmitted:
		l.tokens = d.PromptTokens
	case *events.RequestPrefilled:
		l.filled = o.Event.Time
		l.prefill.set(d.Worker, d.WorkerEpoch, d.PageTokens, d.Pages)
		l.bytes = d.KVBytes
		p.shadow = p.shadow || strings.HasPrefix(d.Layout, "external:")
		if len(d.Pages) > 0 {
			l.held++
			pool := p.pools.of(d.Worker, d.WorkerEpoch)
			prefix(d.Pages, 0, pagesFor(d.PromptTokens, d.PageTokens), func(from, to, gen uint64) { pool.write(from, to, gen, l.owner) })
		}
	case *events.TransferGranted:
		if len(l.grant.runs) == 0 && len(d.Pages) > 0 {
			l.held++
		}
		size := p.sizes[poolKey{d.Worker, d.WorkerEpoch}]
		if size == 0 {
			size = l.prefill.tokens
		}
		l.grant.set(d.Worker, d.WorkerEpoch, size, d.Pages)
	case *events.RequestTransferred:
		p.transferred(l, d, o)
	case *events.RequestDecoded:
		p.decoded(l, d, o)
	case *events.RequestFailed:
		p.broken(l, d.From, o)
	case *events.RequestCancelled:
		p.broken(l, d.From, o)
	case *events.RequestReleased:
		p.released(l, d)
	}
}

// transferred copies what stands in prefill's pages into decode's.
func (p *pageLog) transferred(l *life, d *events.RequestTransferred, o *statemachine.Observation) {
	l.moved = true
	if len(l.prefill.runs) > 0 {
		p.foreign(l, &l.prefill, 0, uint64(events.Pages(l.prefill.runs)), o)
	}
	if len(l.grant.runs) == 0 {
		return
	}
	pages := events.Pages(l.prefill.runs)
	tokens := 0
	if pages > 0 && l.bytes > 0 {
		tokens = int(d.KVBytes / max(l.bytes/int64(pages), 1) * int64(l.prefill.tokens))
	}
	l.written = pagesFor(tokens, l.grant.tokens)
	pool := p.pools.of(l.grant.worker, l.grant.epoch)
	prefix(l.grant.runs, 0, l.written, func(from, to, gen uint64) { pool.write(from, to, gen, l.owner) })
}

// foreign looks for what others wrote into an allocation's pages. It says whether
// there are pages of which the input does not tell who wrote them.
func (p *pageLog) foreign(l *life, a *allocation, from, to uint64, o *statemachine.Observation) (unknown bool) {
	pool := p.pools.of(a.worker, a.epoch)
	prefix(a.runs, from, to, func(start, end, gen uint64) {
		pool.read(start, end, func(from, to uint64, h held, known bool) {
			switch {
			case !known:
				unknown = true
			case h.owner == nil || h.owner == l.owner || h.owner.request == l.owner.request:
			default:
				l.edge(Edge{OwnerTenant: h.owner.tenant, Owner: h.owner.request, ReaderTenant: l.owner.tenant, Reader: l.owner.request, Worker: a.worker,
					FirstPage: from, Pages: int64(to - from), GenExpected: gen, GenRead: h.generation, Time: o.Event.Time, Position: o.Position.String()})
			}
		})
	})
	return unknown
}

// edge adds one, or lengthens the one to the same owner.
func (l *life) edge(e Edge) {
	for i := range l.edges {
		if x := &l.edges[i]; x.Owner == e.Owner && x.Worker == e.Worker && x.GenRead == e.GenRead {
			x.Pages += e.Pages
			x.FirstPage = min(x.FirstPage, e.FirstPage)
			return
		}
	}
	l.edges = append(l.edges, e)
}

// decoded reads the prompt's pages, and writes those of what was generated.
func (p *pageLog) decoded(l *life, d *events.RequestDecoded, o *statemachine.Observation) {
	unknown := false
	if len(l.grant.runs) > 0 {
		read := pagesFor(d.PromptTokens, l.grant.tokens)
		unknown = p.foreign(l, &l.grant, 0, read, o)
		pool := p.pools.of(l.grant.worker, l.grant.epoch)
		prefix(l.grant.runs, max(read, l.written), pagesFor(d.PromptTokens+d.CompletionTokens, l.grant.tokens), func(from, to, gen uint64) { pool.write(from, to, gen, l.owner) })
	}
	why := p.suspects[o.Event.Subject]
	affected := len(l.edges) > 0 || unknown || len(why) > 0
	p.gave(d.Worker, affected)
	if !affected {
		return
	}
	if len(l.edges) > 0 {
		why = append(why, KindStalePages)
	} else if unknown {
		why = append(why, KindUnknownRead)
	}
	if len(l.edges) > 0 {
		p.snapshot(l, &l.grant, d.PromptTokens, o)
	}
	p.response(l, o, d.Worker, d.PromptTokens, d.CompletionTokens, why)
}

// finish counts requests that have moved, and of whose output the input does not
// tell: engines log a transfer and not its answer.
func (p *pageLog) finish() {
	var ids []string
	for id, l := range p.lives {
		if l.moved && len(p.suspects[id]) > 0 && p.external {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		l := p.lives[id]
		p.gave(l.grant.worker, true)
		p.response(l, &statemachine.Observation{Event: &events.Event{Subject: id, Time: l.last}}, l.grant.worker, l.tokens, 0, p.suspects[id])
	}
}

// broken is an output that broke off after the pages were read: a part of it may
// have left.
func (p *pageLog) broken(l *life, from events.State, o *statemachine.Observation) {
	why := p.suspects[o.Event.Subject]
	if !l.moved || from != events.Transferred || len(why) == 0 && len(l.edges) == 0 {
		return
	}
	p.gave(l.grant.worker, true)
	edges := l.edges
	l.edges = nil // nobody says that a page was read to the end
	p.response(l, o, l.grant.worker, l.tokens, 0, why)
	l.edges = edges
}

func (p *pageLog) response(l *life, o *statemachine.Observation, worker string, prompt, output int, why []statemachine.Kind) {
	r := Response{Request: l.owner.request, Tenant: l.owner.tenant, Ring: "possible", Worker: strings.Clone(worker), Time: o.Event.Time,
		Position: o.Position.String(), PromptTokens: prompt, OutputTokens: output, Owners: int64(len(l.edges))}
	for _, k := range why {
		r.Why = append(r.Why, string(k))
	}
	for i := range l.edges {
		l.edges[i].OutputTokens = output
		r.Pages += l.edges[i].Pages
	}
	if len(l.edges) > 0 && !p.shadow {
		r.Ring = "confirmed"
	}
	slices.SortFunc(l.edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.FirstPage, b.FirstPage), cmp.Compare(a.Owner, b.Owner))
	})
	edges := l.edges
	if p.shadow {
		edges, r.Pages, r.Owners = nil, 0, 0
	}
	p.add(r, edges)
	if l.config != nil {
		l.config.Affected++
	}
	l.edges = nil
}

// released scrubs pages, or leaves what is in them to their next owner.
func (p *pageLog) released(l *life, d *events.RequestReleased) {
	a := &l.prefill
	if d.Role == events.RoleDecode {
		a = &l.grant
	}
	if len(a.runs) == 0 || a.worker != d.Worker || a.epoch != d.WorkerEpoch || a.runs[0].Generation != d.Generation {
		return
	}
	l.held--
	if d.Scrubbed {
		pool := p.pools.of(d.Worker, d.WorkerEpoch)
		for _, r := range a.runs {
			pool.write(uint64(r.Start), uint64(r.Start)+uint64(r.Count), r.Generation, nil)
		}
	}
	a.runs = a.runs[:0]
}
