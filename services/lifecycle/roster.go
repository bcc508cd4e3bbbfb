package lifecycle

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Times of the workers' heartbeats.
const (
	liveFor   = 5 * time.Second  // silence after which nobody is admitted on a worker's account
	lostAfter = 15 * time.Second // silence after which a worker's life counts as ended

	admissionFor = 250 * time.Millisecond // how long limits over the live workers are kept
)

// life is one life of a worker.
type life struct {
	worker string
	epoch  uint64
}

// sign is the last heartbeat of a worker.
type sign struct {
	role events.Role
	beat events.Heartbeat
	at   time.Time // of this replica's clock
}

// roster joins what the log says of workers with their heartbeats. Who is
// registered comes from the log alone; heartbeats say who is alive, which is a
// fact that an admission records and a reason to append worker.left, and decides
// nothing by itself.
type roster struct {
	ops atomic.Pointer[statemachine.Ops] // registrations, quarantines and erasures; replaced whole, never written to

	mu      sync.Mutex
	started time.Time            // listening since; until a worker had time to be heard it counts as alive
	signs   map[string]sign      // guarded by mu
	joined  map[string]time.Time // when this replica folded a worker's registration; guarded by mu
	ended   map[life]time.Time   // when it found that a life had ended; guarded by mu
	limits  map[string]limits    // by model; guarded by mu
}

// limits are the admission facts that the workers of a model make.
type limits struct {
	known bool
	facts events.AdmissionFacts
	until time.Time
}

func newRoster() *roster {
	r := &roster{signs: map[string]sign{}, joined: map[string]time.Time{}, ended: map[life]time.Time{}, limits: map[string]limits{}}
	r.ops.Store(&statemachine.Ops{})
	return r
}

// listen begins the time in which workers may still be unheard.
func (r *roster) listen(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = now
}

// publish takes over the operations' state after a fold that changed it. The
// maps are copied, so readers need no lock.
func (r *roster) publish(o *statemachine.Ops, e *events.Event, now time.Time) {
	r.ops.Store(&statemachine.Ops{Pos: o.Pos, Workers: maps.Clone(o.Workers), Quarantined: maps.Clone(o.Quarantined), Erased: maps.Clone(o.Erased)})
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.limits)
	if e == nil {
		return
	}
	switch d := e.Data.(type) {
	case *events.WorkerJoined:
		r.joined[d.Worker] = now
	case *events.WorkerLeft:
		delete(r.joined, d.Worker)
	}
}

// beat notes a heartbeat, and says whether it is the first of a life.
func (r *roster) beat(name string, role events.Role, b events.Heartbeat, now time.Time) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.signs[name]
	if known && was.beat.Epoch > b.Epoch && now.Sub(was.at) < liveFor {
		return false // of the life before, overtaken on the way
	}
	r.signs[name] = sign{role, b, now}
	first = !known || was.beat.Epoch != b.Epoch || now.Sub(was.at) >= liveFor
	if first {
		clear(r.limits)
	}
	return first
}

// worker is the present registration of a worker, nil if there is none.
func (r *roster) worker(name string) *events.WorkerJoined { return r.ops.Load().Workers[name] }

// gone says whether a tenant's requests may not be admitted under the key.
func (r *roster) gone(tenant, key string) bool { return r.ops.Load().Gone(tenant, key) }

// last is when a registered life last gave a sign: by a heartbeat, by
// registering, or by this replica not having listened yet. r.mu is held.
func (r *roster) last(w *events.WorkerJoined) time.Time {
	at := r.started
	if j := r.joined[w.Worker]; j.After(at) {
		at = j
	}
	if s, ok := r.signs[w.Worker]; ok && s.beat.Epoch == w.Epoch && s.role == w.Role && s.at.After(at) {
		at = s.at
	}
	return at
}

// admission is what a model's live workers allow.
func (r *roster) admission(model string, now time.Time) (known bool, f events.AdmissionFacts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l, ok := r.limits[model]; ok && now.Before(l.until) {
		return l.known, l.facts
	}
	o := r.ops.Load()
	known, f = o.Admission(model, func(name string, _ uint64) bool {
		return now.Sub(r.last(o.Workers[name])) < liveFor
	})
	if len(r.limits) > 1024 {
		clear(r.limits) // models come from clients: the names are not ours to trust
	}
	r.limits[model] = limits{known, f, now.Add(admissionFor)}
	return known, f
}

// lost lists the registered lives that have been silent for too long.
func (r *roster) lost(now time.Time, after time.Duration) []*events.WorkerJoined {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*events.WorkerJoined
	for _, w := range r.ops.Load().Workers {
		if now.Sub(r.last(w)) >= after {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *events.WorkerJoined) int { return strings.Compare(a.Worker, b.Worker) })
	return all
}

// over says whether a life has ended: the worker left, or lives under a newer
// epoch. A life that this replica has not heard of yet has not ended.
func (r *roster) over(l life) (ended, restarted bool) {
	w := r.worker(l.worker)
	switch {
	case w == nil:
		return true, false
	case w.Epoch > l.epoch:
		return true, true
	}
	return false, false
}

// overSince is when this replica first found that the life had ended. It lets
// the others act only after the preferred replica had its chance.
func (r *roster) overSince(l life, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.ended[l]
	if !ok {
		if len(r.ended) >= 4096 {
			clear(r.ended) // only delays what is due
		}
		at = now
		r.ended[l] = now
	}
	return at
}

// view is the answer to the query workers.
func (r *roster) view(now time.Time) []events.WorkerView {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []events.WorkerView{}
	for _, w := range r.ops.Load().Workers {
		v := events.WorkerView{WorkerJoined: *w, Live: now.Sub(r.last(w)) < liveFor}
		if s, ok := r.signs[w.Worker]; ok && s.beat.Epoch == w.Epoch && s.role == w.Role {
			v.LastSeen = events.Micros(s.at)
			v.FreePages, v.HeldPages, v.Running = s.beat.FreePages, s.beat.HeldPages, s.beat.Running
		}
		all = append(all, v)
	}
	return all
}
