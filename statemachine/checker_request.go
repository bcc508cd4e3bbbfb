package statemachine

import (
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// checked is one open request as the checker knows it.
type checked struct {
	Request
	partition int
	last      time.Time
	broken    bool            // its history has a hole: what follows cannot be judged
	floor     events.Position // see Checker.place
	extents   []extent

	// What Request points to, where it does. What stands here of an earlier
	// request is likely to come again.
	prefill  events.RequestPrefilled
	grant    events.TransferGranted
	transfer events.RequestTransferred
	decoded  events.RequestDecoded
}

// extent is where in a pool the pages of an allocation lie.
type extent struct {
	at         life
	generation uint64
	start, end uint64
}

// take enters an allocation into the ledger.
func (q *checked) take(l ledger, at life, runs []events.PageRun) (wrong breach) {
	gen := generation(runs)
	i := slices.IndexFunc(q.extents, func(x extent) bool { return x.at == at && x.generation == gen })
	if i < 0 {
		i = len(q.extents)
		q.extents = append(q.extents, extent{at: at, generation: gen, start: 1 << 63})
	}
	for _, r := range runs {
		x := &q.extents[i]
		x.start, x.end = min(x.start, uint64(r.Start)), max(x.end, uint64(r.Start)+uint64(r.Count))
	}
	return l.hold(at, q.ID, runs)
}

// giveBack frees an allocation.
func (q *checked) giveBack(l ledger, at life, gen uint64) (wrong breach) {
	var x extent
	if i := slices.IndexFunc(q.extents, func(x extent) bool { return x.at == at && x.generation == gen }); i >= 0 {
		x = q.extents[i]
		q.extents = slices.Delete(q.extents, i, i+1)
	}
	return l.release(at, q.ID, gen, x.start, x.end)
}

// keeper makes strings that may be kept.
type keeper struct {
	chunk strings.Builder
	words map[string]string
}

const (
	keptChunk = 4 << 10 // bytes that one kept string may keep
	keptWords = 4 << 10 // words that are remembered
)

// text is a copy of s.
func (k *keeper) text(s string) string {
	switch {
	case s == "":
		return ""
	case len(s) > keptChunk/8:
		return strings.Clone(s)
	case k.chunk.Cap()-k.chunk.Len() < len(s):
		k.chunk.Reset()
		k.chunk.Grow(keptChunk)
	}
	from := k.chunk.Len()
	k.chunk.WriteString(s)
	return k.chunk.String()[from:]
}

// word is a copy of s, and the same one each time: of names.
func (k *keeper) word(s string) string {
	if w, ok := k.words[s]; ok {
		return w
	}
	if len(k.words) >= keptWords || k.words == nil {
		k.words = map[string]string{}
	}
	w := strings.Clone(s)
	k.words[w] = w
	return w
}

// like is word for what mostly is the same as a kept one.
func (k *keeper) like(s, kept string) string {
	if s == kept {
		return kept
	}
	return k.word(s)
}

// own makes the request's what Fold has put there of an event that is the
// decoder's.
func (q *checked) own(e *events.Event, k *keeper) {
	if n := len(q.Recorded); e.Command != "" && n > 0 {
		a := &q.Recorded[n-1]
		a.Key = k.text(a.Key)
		if a.Denied != nil {
			a.Denied.Message = k.text(a.Denied.Message)
		}
	}
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		q.Tenant, q.Traceparent, q.Model, q.Gateway = k.word(q.Tenant), k.text(q.Traceparent), k.word(q.Model), k.word(q.Gateway)
		q.PromptDigest = k.text(q.PromptDigest)
	case *events.RequestRejected:
		q.Tenant, q.Traceparent, q.Model = k.word(q.Tenant), k.text(q.Traceparent), k.word(q.Model)
		q.ownError(k)
	case *events.RequestPrefilled:
		was := q.prefill
		p := &q.prefill
		*p = *d
		p.Pages, p.Worker, p.Layout = append(was.Pages[:0], d.Pages...), k.like(d.Worker, was.Worker), k.like(d.Layout, was.Layout)
		p.KVDigest, p.Reference = k.text(d.KVDigest), k.text(d.Reference)
		q.Prefill = p
		q.ownHeld(p.Worker)
	case *events.TransferGranted:
		was := q.grant
		g := &q.grant
		*g = *d
		g.Pages, g.Worker, g.WorkerKey = append(was.Pages[:0], d.Pages...), k.like(d.Worker, was.Worker), k.like(d.WorkerKey, was.WorkerKey)
		g.Owner, g.OwnerKey, g.OwnerAddress = k.like(d.Owner, was.Owner), k.like(d.OwnerKey, was.OwnerKey), k.like(d.OwnerAddress, was.OwnerAddress)
		q.Grant = g
		q.ownHeld(g.Worker)
	case *events.RequestTransferred:
		q.transfer = *d
		q.transfer.Worker, q.transfer.KVDigest = k.like(d.Worker, q.grant.Worker), k.like(d.KVDigest, q.prefill.KVDigest)
		q.Transfer = &q.transfer
	case *events.RequestDecoded:
		q.decoded = *d
		q.decoded.Worker, q.decoded.OutputDigest = k.like(d.Worker, q.grant.Worker), k.text(d.OutputDigest)
		q.Decoded = &q.decoded
	case *events.RequestFailed:
		q.ownError(k)
	}
}

func (q *checked) ownError(k *keeper) {
	e := *q.Error
	e.Message = k.text(e.Message)
	q.Error = &e
}

// ownHeld makes the last holding's name the request's own, if it is this one.
func (q *checked) ownHeld(worker string) {
	if n := len(q.Held); n > 0 && q.Held[n-1].Worker == worker {
		q.Held[n-1].Worker = worker
	}
}
