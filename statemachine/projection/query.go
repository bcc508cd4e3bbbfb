package projection

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Get returns one request's row.
func (p *Projection) Get(ctx context.Context, id string) (events.RequestView, bool, error) {
	v, err := scan(p.db.Load().QueryRowContext(ctx, "SELECT "+columns+" FROM request WHERE id = ?", id))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return events.RequestView{}, false, nil
	case err != nil:
		return events.RequestView{}, false, fmt.Errorf("projection: get: %w", p.noteDamage(err))
	}
	return v, true, nil
}

// View is one page of a list, newest first.
type View struct {
	Requests []events.RequestView
	Next     string    // cursor of the next page; "": this is the last one
	Applied  uint64    // how far the log was in the rows
	Begin    uint64    // sequence that the rows begin at; 0: at the log's beginning
	Since    time.Time // rows of ended requests from before are gone; zero: none are
}

// List returns one page. The cursor is the last id of the page before, so pages
// stay whole while requests come in: what is newer than the first page is not
// shown again.
func (p *Projection) List(ctx context.Context, q events.ListQuery) (View, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = events.DefaultListLimit
	}
	limit = min(limit, events.MaxListLimit)
	var where []string
	var args []any
	add := func(cond string, arg any) {
		where = append(where, cond)
		args = append(args, arg)
	}
	if q.Tenant != "" {
		add("tenant = ?", q.Tenant)
	}
	if q.State != "" {
		add("state = ?", string(q.State))
	}
	if q.Model != "" {
		add("model = ?", q.Model)
	}
	if !q.Since.IsZero() {
		add("id >= ?", idBound(q.Since))
	}
	if !q.Until.IsZero() {
		add("id < ?", idBound(q.Until))
	}
	if q.Cursor != "" {
		add("id < ?", q.Cursor)
	}
	query := "SELECT " + columns + " FROM request"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	query += " ORDER BY id DESC LIMIT ?"
	args = append(args, limit+1)

	view := View{Applied: p.applied.Load()}
	view.Begin, view.Since = p.Begins()
	rows, err := p.db.Load().QueryContext(ctx, query, args...)
	if err != nil {
		return View{}, fmt.Errorf("projection: list: %w", p.noteDamage(err))
	}
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return View{}, fmt.Errorf("projection: list: %w", p.noteDamage(err))
		}
		if len(view.Requests) == limit {
			view.Next = view.Requests[limit-1].RequestID
			break
		}
		view.Requests = append(view.Requests, v)
	}
	if err := rows.Err(); err != nil {
		return View{}, fmt.Errorf("projection: list: %w", p.noteDamage(err))
	}
	return view, nil
}

// idBound is the smallest request id of a moment: ids are UUIDv7 and begin with
// their milliseconds. It is a bound to compare with and no id itself.
func idBound(t time.Time) string {
	ms := max(t.UnixMilli(), 0)
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++ // ids within a cut millisecond lie before t
	}
	h := fmt.Sprintf("%012x", ms)
	return h[:8] + "-" + h[8:]
}
