package lifecycle

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Times of the work queues.
const (
	workAckWait = 30 * time.Second // silence after which a worker's item goes to another
	workDedupe  = 2 * time.Minute  // window in which a message id counts once
	staleAfter  = 15 * time.Second // a request that waits longer may have lost its item
	sweepEvery  = 5 * time.Second
	ensureEvery = 10 * time.Second
	apiTimeout  = 2 * time.Second
)

// queueKey names one work queue.
type queueKey struct {
	model string
	role  events.Role
}

// dispatcher keeps the work queues: a stream in memory, so that a queue costs no
// disk, and nothing in it is the only copy of anything. What a crash of the
// server loses is made again from the open requests. The stream is in a NATS
// account of its own, of which the bus imports what is needed to make it and its
// consumers, and nothing that takes away.
type dispatcher struct {
	svc   *Service
	js    jetstream.JetStream
	depth func(context.Context, queueKey) int // items in a queue, see queued
	kick  chan struct{}                       // something is wrong with the stream, or there is a queue to make
	due   atomic.Bool                         // the stream must be looked at now
	fresh atomic.Bool                         // items were published since it was looked at

	// Owned by the loop.
	created   time.Time // of the stream as last seen; a later time: it was lost and made anew
	consumers map[queueKey]bool
	ensured   time.Time
	swept     time.Time
}

func newDispatcher(svc *Service) (*dispatcher, error) {
	js, err := jetstream.NewWithDomain(svc.cfg.Bus, events.WorkDomain)
	if err != nil {
		return nil, fmt.Errorf("work queues: %w", err)
	}
	d := &dispatcher{svc: svc, js: js, kick: make(chan struct{}, 1), consumers: map[queueKey]bool{}}
	d.depth = d.queued
	return d, nil
}

// poke makes the loop look at the stream now.
func (d *dispatcher) poke() {
	d.due.Store(true)
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// publish queues one item. Nobody acknowledges it: the loop looks at the stream
// within a second, and one that is not there, or is another one, has lost the
// items. One that is lost otherwise is found by the sweep.
func (d *dispatcher) publish(w *events.Work, id string) {
	b, err := events.AppendWork(nil, w)
	if err != nil {
		d.svc.log.Error("work item cannot be encoded", "request_id", w.RequestID, "err", err)
		return
	}
	// An error means that the connection is closed or its buffer is full: the
	// sweep dispatches again.
	_ = d.svc.publish(&nats.Msg{
		Subject: events.WorkSubject(w.Model, w.Role), Data: b,
		Header: nats.Header{nats.MsgIdHdr: {id}},
	})
	d.fresh.Store(true)
}

// run looks after the stream, its consumers and lost items until ctx ends.
func (d *dispatcher) run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		now := d.svc.now()
		if d.mustLook(now) {
			if err := d.ensure(ctx); err != nil && ctx.Err() == nil {
				d.svc.log.Warn("work queues cannot be looked after", "err", err)
				d.due.Store(true) // next second
			} else {
				d.ensured = now
			}
		}
		if now.Sub(d.swept) >= sweepEvery {
			d.swept = now
			d.sweep(ctx, now)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-d.kick:
		}
	}
}

// mustLook says whether the stream and its consumers are to be looked at.
func (d *dispatcher) mustLook(now time.Time) bool {
	due, fresh := d.due.Swap(false), d.fresh.Swap(false)
	return due || fresh || now.Sub(d.ensured) >= ensureEvery || d.missing()
}

// wanted lists the queues that registered workers read.
func (d *dispatcher) wanted() map[queueKey]bool {
	all := map[queueKey]bool{}
	for _, w := range d.svc.roster.ops.Load().Workers {
		all[queueKey{w.Model, w.Role}] = true
	}
	return all
}

func (d *dispatcher) missing() bool {
	for k := range d.wanted() {
		if !d.consumers[k] {
			return true
		}
	}
	return false
}

func (d *dispatcher) streamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        events.WorkStream,
		Description: "pdgate: work for prefill and decode workers. Made again from the log when lost.",
		Subjects:    []string{events.WorkAll},
		Retention:   jetstream.WorkQueuePolicy,
		Storage:     jetstream.MemoryStorage,
		Discard:     jetstream.DiscardNew,
		// One copy would be gone with its server, and could not even be made again
		// while the cluster waits for that one to come back.
		Replicas:   max(1, d.svc.cfg.Replicas),
		Duplicates: workDedupe,
		// An item outlives its request's deadline for nothing.
		MaxAge: max(2*d.svc.cfg.Timeouts.Request, time.Hour),
	}
}

// ensure makes the stream and the consumers that are missing. When the stream is
// another one than before, whatever it held is gone: the open requests of this
// replica's partitions are dispatched again.
func (d *dispatcher) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	s, err := d.js.Stream(ctx, events.WorkStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = d.js.CreateStream(ctx, d.streamConfig())
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s, err = d.js.Stream(ctx, events.WorkStream) // another replica was first
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", events.WorkStream, err)
	}
	if have, want := s.CachedInfo().Config.Replicas, max(1, d.svc.cfg.Replicas); have < want {
		return fmt.Errorf("stream %s: it has %d replicas, want %d: work would stop with one server; run, as the user admin, nats stream rm %s in account WORK: it is made again", events.WorkStream, have, want, events.WorkStream)
	}
	created := s.CachedInfo().Created
	anew := !created.Equal(d.created)
	if anew {
		clear(d.consumers)
	}
	for k := range d.wanted() {
		if d.consumers[k] {
			continue
		}
		_, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable:       events.WorkConsumer(k.model, k.role),
			Description:   string(k.role) + " work for " + k.model,
			FilterSubject: events.WorkSubject(k.model, k.role),
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       workAckWait,
			MaxDeliver:    -1,
			MaxAckPending: 100_000,
		})
		if err != nil {
			return fmt.Errorf("consumer of %s work for %s: %w", k.role, k.model, err)
		}
		d.consumers[k] = true
	}
	if anew {
		d.created = created
		n := 0
		for _, x := range d.svc.nodes {
			if x.mine.Load() {
				n += d.again(x)
			}
		}
		d.svc.log.Info("work stream is there", "stream", events.WorkStream, "created", created, "dispatched", n)
	}
	return nil
}

// again dispatches all waiting requests of a partition: what the replica before
// published and the stream kept is dropped there by its message id.
func (d *dispatcher) again(x *node) int {
	var items []*events.Work
	x.mu.Lock()
	for _, e := range x.shard.open {
		if w := d.svc.workOf(e.r); w != nil {
			e.sent = d.svc.now()
			items = append(items, w)
		}
	}
	x.mu.Unlock()
	sortWork(items)
	for _, w := range items {
		d.publish(w, w.Event)
	}
	return len(items)
}

// sweep finds requests that wait longer than a queue should keep them, while
// the queue holds fewer items than there are requests: their items are lost. A
// queue that is merely long is left alone: another copy would lengthen it.
func (d *dispatcher) sweep(ctx context.Context, now time.Time) {
	have := map[queueKey]int{} // requests that should have an item in a queue or at a worker
	stale := map[queueKey]bool{}
	for _, x := range d.svc.nodes {
		x.mu.Lock()
		for _, e := range x.shard.open {
			if k, ok := queueOf(e.r); ok {
				have[k]++
				if x.mine.Load() && d.stale(e, now) {
					stale[k] = true
				}
			}
		}
		x.mu.Unlock()
	}
	for k := range stale {
		if d.depth(ctx, k) >= have[k] {
			delete(stale, k)
		}
	}
	if len(stale) == 0 {
		return
	}
	for _, x := range d.svc.nodes {
		if !x.mine.Load() {
			continue
		}
		var items []*events.Work
		ids := map[*events.Work]string{}
		x.mu.Lock()
		for _, e := range x.shard.open {
			k, ok := queueOf(e.r)
			if !ok || !stale[k] || !d.stale(e, now) {
				continue
			}
			if w := d.svc.workOf(e.r); w != nil {
				e.sent = now
				e.resent++
				items = append(items, w)
				ids[w] = w.Event + ".r" + strconv.Itoa(e.resent)
			}
		}
		x.mu.Unlock()
		sortWork(items)
		for _, w := range items {
			d.publish(w, ids[w])
		}
		if len(items) > 0 {
			d.svc.log.Warn("work was lost and is dispatched again", "partition", x.partition, "requests", len(items))
		}
	}
}

// sortWork puts items in the order in which their requests began: ids are
// UUIDv7. Maps have no order, and what waits longest goes first.
func sortWork(items []*events.Work) {
	slices.SortFunc(items, func(a, b *events.Work) int { return strings.Compare(a.RequestID, b.RequestID) })
}

func (d *dispatcher) stale(e *entry, now time.Time) bool {
	return now.Sub(e.since) >= staleAfter && now.Sub(e.sent) >= staleAfter && d.svc.workOf(e.r) != nil
}

// queued is how many items a queue holds, waiting and with workers; a queue that
// cannot be asked counts as empty when it does not exist, and as full otherwise.
func (d *dispatcher) queued(ctx context.Context, k queueKey) int {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := d.js.Consumer(ctx, events.WorkStream, events.WorkConsumer(k.model, k.role))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		delete(d.consumers, k) // somebody deleted it: ensure makes it again
		d.due.Store(true)
		return 0
	}
	if err != nil {
		return int(^uint(0) >> 1)
	}
	info := c.CachedInfo()
	return int(info.NumPending) + info.NumAckPending
}

// queueOf is the queue in which an open request has its item, until the item is
// acknowledged: prefill's when the KV is complete, decode's when the output is.
func queueOf(r *statemachine.Request) (queueKey, bool) {
	switch r.State {
	case events.Admitted:
		return queueKey{r.Model, events.RolePrefill}, true
	case events.Prefilled, events.Transferred:
		return queueKey{r.Model, events.RoleDecode}, true
	}
	return queueKey{}, false
}

// workOf is the work that a request waits for, nil if it waits for none: it is
// admitted, or prefilled without a grant to a worker that still lives, and its
// digests can be made here.
func (s *Service) workOf(r *statemachine.Request) *events.Work {
	w := &events.Work{
		RequestID: r.ID, Model: r.Model, Tenant: r.Tenant, Gateway: r.Gateway,
		PromptTokens: r.PromptTokens, MaxTokens: r.MaxTokens, PromptDigest: r.PromptDigest,
		Deadline: r.Deadline, Traceparent: r.Traceparent,
	}
	switch r.State {
	case events.Admitted:
		w.Role = events.RolePrefill
		w.Event = eventID(r, events.TypeAdmitted)
	case events.Prefilled:
		if g := r.Grant; g != nil {
			if ended, _ := s.roster.over(life{g.Worker, g.WorkerEpoch}); !ended {
				return nil
			}
			w.GrantEpoch = g.GrantEpoch
		}
		w.Role = events.RoleDecode
		w.Event = eventID(r, events.TypePrefilled)
		w.Layout, w.Lease = r.Prefill.Layout, r.Prefill.Lease
	default:
		return nil
	}
	if r.Tainted != "" {
		return nil
	}
	key, ok := s.keys.Under(r.Tenant, r.TenantKey)
	if !ok {
		// The tenant was erased, or this replica lacks its key: no worker could check
		// what it gets. The request ends at its deadline, or another replica has it.
		return nil
	}
	w.DigestKey = hex.EncodeToString(key.Request(r.ID))
	return w
}

// eventID is the id of the request's event of a type.
func eventID(r *statemachine.Request, t events.Type) string {
	n := r.N
	for _, rec := range r.Recorded {
		if rec.Type == t {
			n = rec.N
		}
	}
	return r.ID + "." + strconv.Itoa(n)
}
