package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/services/auditor"
)

// begin records the export, waits until the signed tree has the record, and plans.
func (x *exporter) begin(ctx context.Context) (*exportPlan, error) {
	key, err := fs.ReadFile(x.src.files, "log.vkey")
	if err != nil {
		return nil, fmt.Errorf("the log's key: %w", err)
	}
	plan := &exportPlan{Format: partFormat, Filter: x.filter(), Completeness: auditlog.CompleteRange, Key: strings.TrimSpace(string(key))}
	var pos events.Position
	if x.web != nil {
		plan.Position, err = x.web.record(auditor.ExportQuery{Tenant: x.tenant, Request: x.request, Model: x.model,
			FromSeq: x.fromSeq, ToSeq: x.toSeq, Since: x.since, Until: x.until})
		if err != nil {
			return nil, err
		}
		if pos, err = events.ParsePosition(plan.Position); err != nil {
			return nil, fmt.Errorf("record the export: %w", err)
		}
		x.web.export = plan.Position
		x.say("recorded at %s of the log", plan.Position)
	} else {
		x.say("no auditor is asked: this export is recorded nowhere")
	}
	end, note, err := x.await(ctx, plan.Key, pos)
	if err != nil {
		return nil, err
	}
	plan.End = string(note)
	return plan, x.bounds(plan, pos, end)
}

// await waits for a checkpoint of a tree that holds pos.
func (x *exporter) await(ctx context.Context, key string, pos events.Position) (*auditlog.SignedCheckpoint, []byte, error) {
	for {
		c, note, err := readCheckpoint(x.src.files, key)
		if err == nil && c.CompleteUntil >= pos.Seq {
			return c, note, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("checkpoint: %w", err)
		}
		at := uint64(0)
		if c != nil {
			at = c.CompleteUntil
		}
		x.progress("waits for the signed tree, which holds the log up to %d, to reach %d", at, pos.Seq)
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, nil, ctx.Err()
		}
	}
}

// margin is how far clocks may be apart: so much more is read at both ends of a
// span of time, since the log's order is not that of its times.
const margin = time.Hour

// bounds finds the leaves to read.
func (x *exporter) bounds(plan *exportPlan, pos events.Position, end *auditlog.SignedCheckpoint) error {
	size := end.Tree.N
	x.src.forget()
	plan.To = size
	var err error
	if pos.Seq > 0 {
		if plan.To, err = x.src.leafOf(pos.Seq+1, size); err != nil {
			return err
		}
	}
	if x.fromSeq > 0 {
		if plan.From, err = x.src.leafOf(x.fromSeq, size); err != nil {
			return err
		}
	}
	if plan.Filter.Tenant != "" && plan.Filter == (auditlog.Filter{Tenant: x.tenant}) && x.toSeq == 0 {
		plan.Completeness = auditlog.CompleteTenant
		if plan.Epoch, err = x.epoch(pos, size, plan.To); err != nil {
			return err
		}
		plan.To = plan.Epoch
		plan.From = min(plan.From, plan.To)
		return nil
	}
	if x.toSeq > 0 {
		last, err := x.src.leafOf(x.toSeq+1, size)
		if err != nil {
			return err
		}
		plan.To = min(plan.To, last)
	}
	since := x.since
	if x.request != "" && since.IsZero() {
		since, _ = events.RequestTime(x.request) // it was checked
	}
	if !since.IsZero() {
		if err := x.bisect(since.Add(-margin), size, func(leaf int64) { plan.From = max(plan.From, leaf) }); err != nil {
			return err
		}
	}
	if !x.until.IsZero() {
		if err := x.bisect(x.until.Add(margin), size, func(leaf int64) { plan.To = min(plan.To, leaf) }); err != nil {
			return err
		}
	}
	plan.From = min(plan.From, plan.To)
	return nil
}

// bisect finds the first message that is not before t.
func (x *exporter) bisect(t time.Time, size int64, found func(leaf int64)) error {
	tiles := auditlog.Tiles{FS: x.src.files}
	i, err := x.src.search(func(_ uint64, leaf int64) (bool, error) {
		if leaf >= size {
			return false, nil
		}
		for line, err := range tiles.Leaves(leaf, size, size) {
			if err != nil {
				return false, err
			}
			if l, err := auditlog.ParseLeaf(line); err == nil && l.Event != nil {
				return l.Event.Time.Before(t), nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	end, err := x.src.index.size()
	if err != nil {
		return err
	}
	if i == end/indexRecord {
		found(size)
		return nil
	}
	_, leaf, err := x.src.record(i)
	found(min(leaf, size))
	return err
}

// epoch is the first of the tenant's epoch leaves that follow the event at pos;
// with no pos, the last ones of the log.
func (x *exporter) epoch(pos events.Position, size, to int64) (int64, error) {
	tiles := auditlog.Tiles{FS: x.src.files}
	at, found := events.Position{}, int64(-1)
	look := func(from, to int64) error {
		i := from - 1
		for line, err := range tiles.Leaves(from, to, size) {
			i++
			if err != nil {
				return err
			}
			if !bytes.HasPrefix(line, []byte(`{"pdgate_epoch"`)) {
				continue
			}
			l, err := auditlog.ParseLeaf(line)
			if err != nil || l.Epoch == nil || l.Epoch.Tenant != x.tenant {
				continue
			}
			p := events.Position{Seq: l.Epoch.Seq, Line: l.Epoch.Line}
			if pos.IsZero() && p != at || p == pos && found < 0 {
				at, found = p, i
			}
		}
		return nil
	}
	if !pos.IsZero() {
		from, err := x.src.leafOf(pos.Seq, size)
		if err == nil {
			err = look(from, to)
		}
		if err == nil && found < 0 {
			err = fmt.Errorf("the log has no heads of tenant %s behind %s: does an older auditor run?", x.tenant, pos)
		}
		return found, err
	}
	for end := size; end > 0 && found < 0; {
		from := (end - 1) &^ (auditlog.TileWidth - 1)
		if err := look(max(0, from-auditlog.TileWidth), end); err != nil { // epochs go over the edge of a tile
			return 0, err
		}
		end = from
	}
	if found < 0 {
		return 0, fmt.Errorf("the log has no heads of tenant %s: nobody exported the tenant before, and without an auditor none come to be", x.tenant)
	}
	return found, nil
}

// forget drops what is kept of the index, which grew.
func (s *logSource) forget() {
	if w, ok := s.index.(*webSource); ok {
		w.length, w.page = 0, nil
	}
}
