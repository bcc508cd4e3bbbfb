package projection

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// row is one request on its way into the database.
type row struct{ v events.RequestView }

// fold applies one event. The states come from the one table: an event that is
// not legal where it stands is counted and changes no state, as everywhere.
func (r *row) fold(e *events.Event, pos events.Position) {
	v := &r.v
	v.Events = e.N
	v.Position = pos.String()
	v.UpdatedAt = e.Time
	if e.Tenant != "" {
		v.Tenant = e.Tenant
	}
	to, legal := statemachine.Next(v.State, e.Type)
	if !legal {
		return
	}
	v.State = to
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		v.Model, v.Gateway = d.Model, d.Gateway
		v.PromptTokens, v.MaxTokens = d.PromptTokens, d.MaxTokens
		v.AdmittedAt, v.Deadline = e.Time, d.Deadline
	case *events.RequestRejected:
		v.Model = d.Model
		v.PromptTokens, v.MaxTokens = d.PromptTokens, d.MaxTokens
		if d.Worker != "" {
			v.PrefillWorker = d.Worker
		}
		first(v, d.Error)
	case *events.RequestPrefilled:
		v.PrefillWorker = d.Worker
		v.Held = append(v.Held, holding(d.Worker, d.WorkerEpoch, events.RolePrefill, d.Pages))
	case *events.TransferGranted:
		v.DecodeWorker, v.GrantEpoch = d.Worker, d.GrantEpoch
		h := holding(d.Worker, d.WorkerEpoch, events.RoleDecode, d.Pages)
		if !slices.ContainsFunc(v.Held, func(o events.Holding) bool { return same(o, h) }) {
			v.Held = append(v.Held, h)
		}
	case *events.RequestDecoded:
		v.CompletionTokens, v.FinishReason = d.CompletionTokens, d.FinishReason
	case *events.RequestFailed:
		first(v, d.Error)
	case *events.RequestCancelled:
		first(v, events.Error{Code: d.Reason, Message: "the request was cancelled", Status: d.Reason.HTTPStatus()})
	case *events.RequestReleased:
		h := events.Holding{Worker: d.Worker, Epoch: d.WorkerEpoch, Role: d.Role, Generation: d.Generation}
		v.Held = slices.DeleteFunc(v.Held, func(o events.Holding) bool { return same(o, h) })
	}
}

// first keeps the first error: it is never overwritten.
func first(v *events.RequestView, e events.Error) {
	if v.Error == nil {
		v.Error = &e
	}
}

func holding(worker string, epoch uint64, role events.Role, pages []events.PageRun) events.Holding {
	h := events.Holding{Worker: worker, Epoch: epoch, Role: role, Pages: events.Pages(pages)}
	if len(pages) > 0 {
		h.Generation = pages[0].Generation
	}
	return h
}

func same(a, b events.Holding) bool {
	return a.Worker == b.Worker && a.Epoch == b.Epoch && a.Role == b.Role && a.Generation == b.Generation
}

func (r *row) args() ([]any, error) {
	v := &r.v
	held := ""
	if len(v.Held) > 0 {
		b, err := json.Marshal(v.Held)
		if err != nil {
			return nil, fmt.Errorf("encode holdings: %w", err)
		}
		held = string(b)
	}
	var e events.Error
	if v.Error != nil {
		e = *v.Error
	}
	return []any{
		v.RequestID, string(v.State), v.Tenant, v.Model, v.Gateway, v.PromptTokens, v.MaxTokens,
		v.CompletionTokens, string(v.FinishReason), string(e.Code), e.Message, e.Status,
		v.PrefillWorker, v.DecodeWorker, v.GrantEpoch,
		micros(v.AdmittedAt), micros(v.UpdatedAt), micros(v.Deadline), v.Position, v.Events, held,
	}, nil
}

const columns = `id, state, tenant, model, gateway, prompt_tokens, max_tokens, completion_tokens, finish_reason,
	error_code, error_message, error_status, prefill_worker, decode_worker, grant_epoch,
	admitted_at, updated_at, deadline, position, events, held`

func scan(s interface{ Scan(...any) error }) (events.RequestView, error) {
	var v events.RequestView
	var e events.Error
	var admitted, updated, deadline int64
	var held string
	err := s.Scan(&v.RequestID, &v.State, &v.Tenant, &v.Model, &v.Gateway, &v.PromptTokens, &v.MaxTokens,
		&v.CompletionTokens, &v.FinishReason, &e.Code, &e.Message, &e.Status,
		&v.PrefillWorker, &v.DecodeWorker, &v.GrantEpoch,
		&admitted, &updated, &deadline, &v.Position, &v.Events, &held)
	if err != nil {
		return v, err
	}
	if e.Code != "" {
		v.Error = &e
	}
	v.AdmittedAt, v.UpdatedAt, v.Deadline = moment(admitted), moment(updated), moment(deadline)
	if held != "" {
		if err := json.Unmarshal([]byte(held), &v.Held); err != nil {
			return v, fmt.Errorf("decode holdings: %w", err)
		}
	}
	return v, nil
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
