package lifecycle

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/statemachine"
)

// queryGroup is the queue group of queries: any one replica answers.
const queryGroup = "pdgate-lifecycle"

// Queries that read the disk, the read side or the log run beside the endpoint,
// a bounded number at once, each for a bounded time.
const (
	slowQueries  = 16
	queryTimeout = 5 * time.Second
)

// serveQueries opens the endpoints of queries; ctx ends those that still run.
func (s *Service) serveQueries(ctx context.Context) (micro.Service, error) {
	svc, err := s.addService("pdgate queries", map[string]string{"partition": "none"})
	if err != nil {
		return nil, err
	}
	for name, h := range map[string]func(context.Context, micro.Request){
		events.QueryGet: s.queryGet, events.QueryHistory: s.queryHistory, events.QueryList: s.queryList,
		events.QueryWorkers: s.queryWorkers, events.QueryInfo: s.queryInfo,
	} {
		err := svc.AddEndpoint("query-"+name, micro.HandlerFunc(func(req micro.Request) {
			if strings.HasPrefix(req.Reply(), replyPrefix) {
				h(ctx, req)
			}
		}), micro.WithEndpointSubject(events.QuerySubject("*", "*", name)), micro.WithEndpointQueueGroup(queryGroup))
		if err != nil {
			return nil, err
		}
	}
	return svc, nil
}

// slow runs f beside the endpoint. When too many run already the caller is told
// to come back.
func (s *Service) slow(ctx context.Context, req micro.Request, f func(ctx context.Context) (any, error)) {
	select {
	case s.slowTurns <- struct{}{}:
	default:
		s.refuse(req.Reply(), events.NewError(events.CodeOverloaded, "too many queries at once: ask again"))
		return
	}
	s.slowDone.Add(1)
	go func() {
		defer s.slowDone.Done()
		defer func() { <-s.slowTurns }()
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		v, err := f(ctx)
		s.show(req.Reply(), v, err)
	}()
}

// show sends a query's answer.
func (s *Service) show(reply string, v any, err error) {
	var e *events.Error
	switch {
	case errors.As(err, &e):
		s.refuse(reply, e)
		return
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		s.refuse(reply, events.NewError(events.CodeUnavailable, "the answer took too long"))
		return
	case err != nil:
		s.log.Error("query", "err", err)
		s.refuse(reply, events.NewError(events.CodeInternal, "the query could not be answered; the service's log says why"))
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		s.log.Error("encode query's answer", "err", err)
		s.refuse(reply, events.NewError(events.CodeInternal, "the answer could not be encoded"))
		return
	}
	if limit := s.cfg.Bus.MaxPayload(); limit > 0 && int64(len(b)) > limit {
		s.refuse(reply, events.NewError(events.CodeInvalidRequest, "the answer is larger than one NATS message: ask for fewer at once"))
		return
	}
	s.send(&nats.Msg{Subject: reply, Data: b})
}

func malformed(err error) *events.Error { return events.NewError(events.CodeMalformed, err.Error()) }

// errLeft is said of a request that is older than what the log has.
var errLeft = events.NewError(events.CodeNotFound, "no such request is known here; it is older than what the live log holds: pdgate export --request ID reads it from the audit log")

// hasLeft says whether a request is from before what the read side has.
func (s *Service) hasLeft(id string) bool {
	born, err := events.RequestTime(id)
	begin, since := s.projection.Begins()
	return err == nil && (begin > 1 && since.IsZero() || born.Before(since))
}

var errNotFound = events.NewError(events.CodeNotFound, "no such request is known here")

// queryGet answers from memory; what memory has forgotten, from the read side.
func (s *Service) queryGet(ctx context.Context, req micro.Request) {
	q, err := events.DecodeGet(req.Data())
	if err != nil {
		s.refuse(req.Reply(), malformed(err))
		return
	}
	if v := s.view(q.RequestID); v != nil {
		s.show(req.Reply(), v, nil)
		return
	}
	s.slow(ctx, req, func(ctx context.Context) (any, error) { return s.stored(ctx, q.RequestID) })
}

// view is a request as memory has it, nil if it has none.
func (s *Service) view(id string) *events.RequestView {
	n := s.nodeOf(events.CmdAdmit, id)
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.shard.find(id)
	if x == nil {
		return nil
	}
	v := viewOf(x.r)
	return &v
}

func (s *Service) stored(ctx context.Context, id string) (*events.RequestView, error) {
	v, ok, err := s.projection.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if !ok && s.hasLeft(id) {
		return nil, errLeft
	}
	if !ok {
		return nil, errNotFound
	}
	return &v, nil
}

func viewOf(r *statemachine.Request) events.RequestView {
	v := events.RequestView{
		RequestID: r.ID, State: r.State, Tenant: r.Tenant, Model: r.Model, Gateway: r.Gateway,
		PromptTokens: r.PromptTokens, MaxTokens: r.MaxTokens, Error: r.Error,
		AdmittedAt: r.AdmittedAt, UpdatedAt: r.UpdatedAt, Deadline: r.Deadline,
		Position: r.Pos.String(), Events: r.N,
	}
	if r.Prefill != nil {
		v.PrefillWorker = r.Prefill.Worker
	}
	if r.Grant != nil {
		v.DecodeWorker, v.GrantEpoch = r.Grant.Worker, r.Grant.GrantEpoch
	}
	if r.Decoded != nil {
		v.CompletionTokens, v.FinishReason = r.Decoded.CompletionTokens, r.Decoded.FinishReason
	}
	for _, h := range r.Held {
		v.Held = append(v.Held, events.Holding(h))
	}
	return v
}

// queryHistory walks back through the log from the request's last event.
func (s *Service) queryHistory(ctx context.Context, req micro.Request) {
	q, err := events.DecodeHistory(req.Data())
	if err != nil {
		s.refuse(req.Reply(), malformed(err))
		return
	}
	s.slow(ctx, req, func(ctx context.Context) (any, error) {
		v := s.view(q.RequestID)
		if v == nil {
			if v, err = s.stored(ctx, q.RequestID); err != nil {
				return nil, err
			}
		}
		pos, err := events.ParsePosition(v.Position)
		if err != nil {
			return nil, err
		}
		records, err := journal.History(ctx, s.cfg.Journal, pos)
		var left *journal.LeftError
		if errors.As(err, &left) {
			x, failed := s.cfg.Journal.Extent(ctx)
			if failed != nil {
				return nil, failed
			}
			if left.Pos.Seq >= x.First || x.First > s.trimmedBelow() {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		}
		h := &events.HistoryView{RequestID: q.RequestID, Events: make([]json.RawMessage, 0, len(records)), Positions: make([]string, 0, len(records))}
		for _, r := range records {
			h.Events = append(h.Events, r.Line)
			h.Positions = append(h.Positions, r.Pos.String())
		}
		if left != nil {
			h.Earlier = left.Pos.String()
		}
		return h, nil
	})
}

func (s *Service) queryList(ctx context.Context, req micro.Request) {
	q, err := events.DecodeList(req.Data())
	if err != nil {
		s.refuse(req.Reply(), malformed(err))
		return
	}
	s.slow(ctx, req, func(ctx context.Context) (any, error) {
		page, err := s.projection.List(ctx, *q)
		if err != nil {
			return nil, err
		}
		if page.Requests == nil {
			page.Requests = []events.RequestView{}
		}
		return &events.ListView{Requests: page.Requests, NextCursor: page.Next, AppliedSeq: page.Applied, LogSeq: max(s.logSeq.Load(), page.Applied), FromSeq: page.Begin, Since: page.Since}, nil
	})
}

func (s *Service) queryWorkers(_ context.Context, req micro.Request) {
	if _, err := events.DecodeWorkers(req.Data()); err != nil {
		s.refuse(req.Reply(), malformed(err))
		return
	}
	all := s.roster.view(s.now())
	slices.SortFunc(all, func(a, b events.WorkerView) int { return strings.Compare(a.Worker, b.Worker) })
	s.show(req.Reply(), &events.WorkersView{Workers: all}, nil)
}

func (s *Service) queryInfo(_ context.Context, req micro.Request) {
	if _, err := events.DecodeInfo(req.Data()); err != nil {
		s.refuse(req.Reply(), malformed(err))
		return
	}
	now := s.now()
	v := &events.InfoView{
		Partitions: len(s.nodes), Replica: s.cfg.Name, Version: Version,
		LogSeq: s.logSeq.Load(), AppliedSeq: s.followed.Load(),
		GrantKeys: []string{base64.StdEncoding.EncodeToString(s.grantPublic)},
		Models:    []events.ModelView{},
	}
	seen := map[string]bool{}
	o := s.roster.ops.Load()
	add := func(model string) {
		if seen[model] {
			return
		}
		seen[model] = true
		_, f := s.roster.admission(model, now)
		m := events.ModelView{
			Model: model, ContextTokens: f.ContextTokens, MaxInputTokens: f.MaxInputTokens,
			PrefillNodes: f.PrefillNodes, DecodeNodes: f.DecodeNodes, Open: s.counts.open(model),
		}
		if q, ok := o.Quarantined[model]; ok {
			m.Quarantined, m.Quarantine = true, quarantineView(q)
		}
		v.Models = append(v.Models, m)
	}
	for _, w := range o.Workers {
		add(w.Model)
	}
	for m := range o.Quarantined {
		add(m)
	}
	slices.SortFunc(v.Models, func(a, b events.ModelView) int { return strings.Compare(a.Model, b.Model) })
	s.show(req.Reply(), v, nil)
}

func quarantineView(q statemachine.Quarantine) *events.QuarantineView {
	v := &events.QuarantineView{Reason: q.Reason, By: q.By, Since: q.Since, Position: q.Position, Running: events.RunningDrain, Evidence: q.Evidence}
	if q.Cancel {
		v.Running = events.RunningCancel
	}
	return v
}
