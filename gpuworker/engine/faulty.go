package engine

import (
	"context"

	"github.com/pdgate/pdgate/events"
)

// faulty is ref with the bug of the public incident. A prompt above the input
// limit is rejected inside the engine, and then one placeholder token goes on in
// its place: one token's KV is written, a first token is computed, and the
// result looks finished to whoever does not ask whether it was refused. Its
// decode, like ref's, believes the length it is told, and reads pages that
// nobody wrote for this request.
//
// It shares ref's page layout, so either can be the peer of the other.
type faulty struct {
	*ref
	silent bool
}

func newFaulty(cfg Config) *faulty {
	e := &faulty{ref: newRef(cfg), silent: cfg.Silent}
	e.info.Name = "faulty"
	return e
}

// Prefill implements [Engine].
func (e *faulty) Prefill(ctx context.Context, job PrefillJob) (Prefilled, error) {
	refused := e.refuse(job)
	if refused == nil || refused.Code != events.CodeContextLength {
		return e.ref.Prefill(ctx, job)
	}
	out, err := e.prefill(ctx, job, []byte{' '})
	if err == nil && !e.silent {
		out.Refused = refused
	}
	return out, err
}
