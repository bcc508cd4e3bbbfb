package auditor

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// refusal is why there is no answer, in HTTP's terms.
type refusal struct {
	status int
	code   events.Code // or codeMismatch
	say    string
	retry  time.Duration // 0: asking again does not help
}

// codeMismatch is the code of a receipt whose hash is not the log's.
const codeMismatch events.Code = "receipt_mismatch"

func refuse(status int, code events.Code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, say: fmt.Sprintf(format, args...)}
}

// receipt is what a gateway gave to its client: a position, and the hash of the
// event there.
type receipt struct {
	pos  events.Position
	hash string // empty: not given
}

func parseReceipt(s string) (receipt, *refusal) {
	at, hash, given := strings.Cut(s, ";")
	pos, err := events.ParsePosition(at)
	if err != nil || pos.IsZero() || given && hash == "" || len(hash) > 64 {
		return receipt{}, refuse(http.StatusBadRequest, events.CodeMalformed, "receipt: want SEQ.LINE;HASH or SEQ.LINE")
	}
	return receipt{pos, hash}, nil
}

// proof resolves a receipt into a proof that carries the event.
func (a *Auditor) proof(ctx context.Context, r receipt) (*audit.Proof, *refusal) {
	c := a.signed.Load()
	if c == nil || r.pos.Seq > c.CompleteUntil {
		return nil, a.notYet(ctx, r)
	}
	// The cosigned checkpoint is worth more, where it is new enough.
	if w := a.cosigned.Load(); w != nil && w.CompleteUntil >= r.pos.Seq {
		c = w
	}
	st := a.committed.Load()
	index, leaf, err := a.find(st, r.pos)
	var p *audit.Proof
	if err == nil && leaf != nil {
		p, err = audit.ProveLeaf(c.Tree, index, a.store.tiles.Hashes(st.head()), c.note)
	}
	switch {
	case err != nil:
		a.cfg.Logger.Error("receipt cannot be proven", "position", r.pos.String(), "err", err)
		return nil, refuse(http.StatusInternalServerError, events.CodeInternal, "the auditor cannot read its tiles")
	case leaf == nil:
		return nil, refuse(http.StatusNotFound, events.CodeNotFound, "the log has no event at %s", r.pos)
	case r.hash != "" && events.Hash(leaf) != r.hash:
		return nil, refuse(http.StatusConflict, codeMismatch, "the event at %s has another hash than the receipt: keep the receipt, it proves that the log was not what was shown", r.pos)
	}
	p.Extra = leaf
	return p, nil
}

// notYet tells what will be in the tree from what the log does not have.
func (a *Auditor) notYet(ctx context.Context, r receipt) *refusal {
	end, err := a.journal.Last(ctx)
	if err == nil && r.pos.Seq > end {
		return refuse(http.StatusNotFound, events.CodeNotFound, "the log ends before %s", r.pos)
	}
	f := refuse(http.StatusServiceUnavailable, events.CodeUnavailable, "%s is not in a signed tree yet", r.pos)
	f.retry = max(a.cfg.Interval, time.Second)
	return f
}

// find is the leaf of the event at pos; nil: there is none.
func (a *Auditor) find(st *state, pos events.Position) (int64, []byte, error) {
	from, to, err := a.store.leaves(st, pos.Seq)
	if err != nil {
		return 0, nil, err
	}
	// Notes stand between events: a line is counted in events.
	line, index := 0, from
	for leaf, err := range a.store.tiles.Leaves(from, to, st.Size) {
		if err != nil {
			return 0, nil, err
		}
		if isEvent(leaf) {
			if line == pos.Line {
				return index, append([]byte(nil), leaf...), nil
			}
			line++
		}
		index++
	}
	return 0, nil, nil
}

func isEpoch(leaf []byte) bool { return strings.HasPrefix(string(leaf), `{"pdgate_epoch"`) }

// isEvent tells events from notes by their first member.
func isEvent(leaf []byte) bool { return strings.HasPrefix(string(leaf), `{"specversion"`) }
