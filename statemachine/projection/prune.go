package projection

import (
	"context"
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// first is the log's first sequence.
func (p *Projection) first(ctx context.Context) (uint64, error) {
	if p.cfg.Begin == nil {
		return 1, nil
	}
	seq, err := p.cfg.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("projection: beginning of the log: %w", err)
	}
	return seq, nil
}

// Prune lets go of the rows of ended requests that were admitted before a time, as
// the log did. It does not wait for that.
func (p *Projection) Prune(before time.Time) {
	for {
		select {
		case p.prune <- before:
			return
		default:
		}
		select {
		case <-p.prune: // the newer one says more
		default:
		}
	}
}

// pruneRows bounds one transaction that deletes: who reads waits for none.
const pruneRows = 5000

// drop deletes rows, a bounded number at a time, and gives the room that they took
// back to the file system. A crash leaves some of them, and the next call finds
// them.
func (p *Projection) drop(ctx context.Context, before time.Time) error {
	db := p.db.Load()
	for {
		r, err := db.ExecContext(ctx, `DELETE FROM request WHERE id IN (SELECT id FROM request WHERE id < ? AND held = '' AND state IN (?, ?, ?, ?) ORDER BY id LIMIT ?)`,
			idBound(before), string(events.Decoded), string(events.Rejected), string(events.Failed), string(events.Cancelled), pruneRows)
		if err != nil {
			return fmt.Errorf("projection: prune: %w", err)
		}
		n, err := r.RowsAffected()
		if err != nil {
			return fmt.Errorf("projection: prune: %w", err)
		}
		if n > 0 {
			if _, err := db.ExecContext(ctx, "UPDATE meta SET since = max(since, ?)", micros(before)); err != nil {
				return fmt.Errorf("projection: prune: %w", err)
			}
			p.since.Store(max(p.since.Load(), micros(before)))
		}
		if n < pruneRows {
			break
		}
	}
	// A bounded part of the free pages each time: the rest is used again.
	if _, err := db.ExecContext(ctx, "PRAGMA incremental_vacuum(4096)"); err != nil {
		return fmt.Errorf("projection: vacuum: %w", err)
	}
	return nil
}
