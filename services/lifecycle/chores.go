package lifecycle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// The service's own commands come from one principal on every replica. Two
// replicas that find the same deadline over therefore send the same command, by
// content, and one event is recorded.
const self = "lifecycle"

const choresEvery = time.Second

// order is a command of the service's own.
func (s *Service) order(subject string, d events.CommandData) *events.Command {
	c := &events.Command{Type: d.CommandType(), Subject: subject, Role: events.RoleLifecycle, Principal: self, Data: d}
	if _, err := events.AppendCommand(nil, c); err != nil {
		s.log.Error("own command cannot be encoded", "command", c.Type, "request_id", subject, "err", err)
		return nil
	}
	return c
}

// overdue is called by the wheel for a request whose state's deadline is over.
// The preferred replica ends the request; the others do so later, in case it is
// gone. The node's lock is held.
func (n *node) overdue(id string, now time.Time) {
	x := n.shard.open[id]
	if x == nil || x.r.State.Final() || x.r.StateBy.IsZero() {
		return
	}
	due := x.r.StateBy
	if !n.mine.Load() {
		due = due.Add(standbyLag)
	}
	if now.Before(due) || !n.svc.caughtUp() {
		// Not ours to end yet; or the log may hold more than what is folded.
		n.shard.wheel.set(&x.deadline, later(due, now.Add(100*time.Millisecond)))
		return
	}
	// Until the log settles it, the wheel asks again; the loop joins the two.
	n.shard.wheel.set(&x.deadline, now.Add(time.Second))
	n.order(n.svc.order(id, &events.Fail{
		Stage: string(x.r.State),
		Error: *events.NewError(events.CodeDeadline, "state "+string(x.r.State)+" was to end by "+x.r.StateBy.UTC().Format(time.RFC3339Nano)),
	}), now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// chores ends the lives of silent workers, and what hung on lives that ended.
func (s *Service) chores(ctx context.Context) {
	t := time.NewTicker(choresEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.kickChores:
		}
		s.choresOnce(s.now())
	}
}

// choresOnce is one round. A replica that has not read the log knows too little.
func (s *Service) choresOnce(now time.Time) {
	if !s.caughtUp() {
		return
	}
	s.buryWorkers(now)
	for _, n := range s.nodes {
		n.settleLives(now)
	}
}

// buryWorkers records that a worker is gone whose heartbeats have ended.
func (s *Service) buryWorkers(now time.Time) {
	after := lostAfter
	if !s.opsNode.mine.Load() {
		after += standbyLag
	}
	for _, w := range s.roster.lost(now, after) {
		c := s.order(w.Worker, &events.Leave{Epoch: w.Epoch, Reason: "lost"})
		s.opsNode.mu.Lock()
		s.opsNode.order(c, now)
		s.opsNode.mu.Unlock()
	}
}

// settleLives ends what hangs on workers' lives that have ended: requests whose
// KV or decoding is gone fail, grants to the dead make way for others, and
// holdings are released, since the pages went with the process. Open requests of
// a model that is quarantined with cancel are cancelled, also one whose admission
// passed the quarantine on its way into the log.
func (n *node) settleLives(now time.Time) {
	mine := n.mine.Load()
	var again []*events.Work
	var orders []*events.Command
	n.mu.Lock()
	for id, x := range n.shard.open {
		for _, c := range n.settle(id, x, now, mine) {
			if c != nil { // nil: it could not be encoded
				orders = append(orders, c)
			}
		}
		if mine && regrant(n.svc, x.r) && now.Sub(x.sent) >= staleAfter {
			if w := n.svc.workOf(x.r); w != nil {
				x.sent = now
				again = append(again, w)
			}
		}
	}
	// Oldest requests first; a request's own orders keep their order.
	slices.SortStableFunc(orders, func(a, b *events.Command) int { return strings.Compare(a.Subject, b.Subject) })
	for _, c := range orders {
		n.order(c, now)
	}
	n.mu.Unlock()
	sortWork(again)
	for _, w := range again {
		// The worker that is gone may have had the only item. Once for each grant.
		n.svc.work.publish(w, w.Event+".g"+itoa(w.GrantEpoch))
	}
}

// regrant says whether a prefilled request's grant went to a life that ended.
func regrant(s *Service, r *statemachine.Request) bool {
	if r.State != events.Prefilled || r.Grant == nil {
		return false
	}
	ended, _ := s.roster.over(life{r.Grant.Worker, r.Grant.WorkerEpoch})
	return ended
}

// settle lists the orders that one request's dead workers call for.
func (n *node) settle(id string, x *entry, now time.Time, mine bool) []*events.Command {
	r := x.r
	if n.stopped(r, now, mine) {
		return []*events.Command{n.svc.order(id, &events.Cancel{Reason: events.CodeModelQuarantined})}
	}
	var orders []*events.Command
	due := func(l life) (ended, restarted bool) {
		ended, restarted = n.svc.roster.over(l)
		if ended && !mine && now.Sub(n.svc.roster.overSince(l, now)) < standbyLag {
			return false, false
		}
		return ended, restarted
	}
	var gone string
	switch {
	case r.State == events.Prefilled && r.Prefill != nil:
		if ended, _ := due(life{r.Prefill.Worker, r.Prefill.WorkerEpoch}); ended {
			gone = r.Prefill.Worker
		}
	case r.State == events.Transferred && r.Transfer != nil:
		if ended, _ := due(life{r.Transfer.Worker, r.Transfer.WorkerEpoch}); ended {
			gone = r.Transfer.Worker
		}
	}
	if gone != "" {
		orders = append(orders, n.svc.order(id, &events.Fail{
			Stage: string(r.State), Error: *events.NewError(events.CodeWorkerLost, "worker "+gone+" is gone, and its pages with it"),
		}))
		// One order a request and envelope: holdings follow when this is settled.
		return orders
	}
	for _, h := range r.Held {
		ended, restarted := due(life{h.Worker, h.Epoch})
		if !ended {
			continue
		}
		reason := "worker_lost"
		if restarted {
			reason = "worker_restarted"
		}
		orders = append(orders, n.svc.order(id, &events.Release{
			Worker: h.Worker, WorkerEpoch: h.Epoch, Role: h.Role, Generation: h.Generation, Pages: h.Pages, Reason: reason,
		}))
	}
	return orders
}

// stopped says whether the request's model is quarantined, and its open requests
// are not to end by themselves.
func (n *node) stopped(r *statemachine.Request, now time.Time, mine bool) bool {
	q, quarantined := n.svc.roster.ops.Load().Quarantined[r.Model]
	return quarantined && q.Cancel && !r.State.Final() && (mine || now.Sub(q.Since) >= standbyLag)
}
