package auditor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// ExportHeader names, on reads of entries, the event that recorded the export that
// they belong to: SEQ.LINE, as [ExportAnswer] has it.
const ExportHeader = "Pdgate-Export"

// ExportQuery is the body of POST /export: what is going to be exported.
type ExportQuery struct {
	Tenant  string    `json:"tenant,omitempty"`
	Request string    `json:"request,omitempty"`
	Model   string    `json:"model,omitempty"`
	FromSeq uint64    `json:"from_seq,omitempty"`
	ToSeq   uint64    `json:"to_seq,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
}

// ExportAnswer says where the export is recorded. Entries up to there may be read
// on its account once the signed tree has it.
type ExportAnswer struct {
	Position string `json:"position"`
}

// exportLife is how long entries may be read on an export's account.
const exportLife = 24 * time.Hour

// serveExport records an export.
func (a *Auditor) serveExport(w http.ResponseWriter, r *http.Request) {
	reader, f := a.reader(r)
	if f != nil {
		f.serve(w)
		return
	}
	var q ExportQuery
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		refuse(http.StatusBadRequest, events.CodeMalformed, "want the export's filter in JSON").serve(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), recordTimeout)
	defer cancel()
	answer, err := a.cfg.Recorder.Audit(ctx, &events.Audit{
		Reader: reader, Kind: events.ReadExport, Via: "http", Reads: 1, Tenant: q.Tenant, Request: q.Request, Model: q.Model,
		FromSeq: q.FromSeq, ToSeq: q.ToSeq, Since: events.Micros(q.Since), Until: events.Micros(q.Until),
	})
	if err == nil {
		err = answer.Err()
	}
	var refused *events.Error
	switch {
	case errors.As(err, &refused) && refused.Code == events.CodeMalformed:
		refuse(http.StatusBadRequest, events.CodeMalformed, "%s", refused.Message).serve(w)
		return
	case err != nil:
		a.cfg.Logger.Error("an export is not recorded, and does not begin", "reader", reader, "err", err)
		f := refuse(http.StatusServiceUnavailable, events.CodeUnavailable, "the export cannot be recorded now")
		f.retry = time.Second
		f.serve(w)
		return
	}
	a.metrics.read(events.ReadExport, "http")
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(ExportAnswer{answer.Position}) // a client that has gone has gone
}

// covered refuses a read unless the reader recorded an export, at the position that
// the header names, that the tile belongs to. The log is asked and nothing else, so that
// an export goes on after a restart, and at any replica.
func (a *Auditor) covered(header, reader string, t tlog.Tile) *refusal {
	no := func(why string) *refusal {
		return refuse(http.StatusForbidden, events.CodeForbidden, "%s: %s", ExportHeader, why)
	}
	pos, err := events.ParsePosition(header)
	c := a.signed.Load()
	if err != nil || c == nil || pos.IsZero() || pos.Seq > c.CompleteUntil {
		return no("want the position of an export that is in the signed tree")
	}
	st := a.committed.Load()
	_, leaf, err := a.find(st, pos)
	var end int64 // of the message, with the heads that the export asks for
	if err == nil {
		_, end, err = a.store.leaves(st, pos.Seq)
	}
	if err != nil {
		a.cfg.Logger.Error("export cannot be looked up", "position", pos.String(), "err", err)
		return refuse(http.StatusInternalServerError, events.CodeInternal, "the auditor cannot read its tiles")
	}
	if leaf == nil {
		return no("the log has no event there")
	}
	e, err := events.Decode(leaf)
	if err != nil {
		return no("the event there is not an export's")
	}
	d, ok := e.Data.(*events.AuditRead)
	switch {
	case !ok || d.Kind != events.ReadExport || d.Reader != reader:
		return no("the event there is not an export of yours")
	case time.Since(e.Time) > exportLife:
		return no(fmt.Sprintf("the export is older than %s: record a new one", exportLife))
	case t.N<<audit.TileHeight >= end:
		return no("the export was recorded before what is read")
	}
	return nil
}

// entries checks a read of a tile of entries, and has it recorded.
func (a *Auditor) entries(r *http.Request, reader string, t tlog.Tile) *refusal {
	if h := r.Header.Get(ExportHeader); h != "" {
		return a.covered(h, reader, t)
	}
	st := a.committed.Load()
	first := min(t.N<<audit.TileHeight, st.Size-1)
	last := min(first+int64(t.W), st.Size) - 1
	from, err1 := a.store.seqOf(st, first)
	to, err2 := a.store.seqOf(st, last)
	if err := errors.Join(err1, err2); err != nil {
		a.cfg.Logger.Error("the index cannot be read", "err", err)
		return refuse(http.StatusInternalServerError, events.CodeInternal, "the auditor cannot read its index")
	}
	return a.recorded(r.Context(), reading{reader, "http", events.ReadEntries}, from, to)
}

// serveIndex serves the index as far as the tree is committed, by ranges: 16 bytes a
// message, its stream sequence and the index of its first leaf, both big-endian.
func (a *Auditor) serveIndex(w http.ResponseWriter, r *http.Request) {
	if _, f := a.reader(r); f != nil {
		f.serve(w)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(a.store.index, 0, a.committed.Load().Index*recordBytes))
}
