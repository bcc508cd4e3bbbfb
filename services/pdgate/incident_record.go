package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// openRecord is the log that pdgate would have kept of the open path: what the
// engines did, with the pages that they did it in, and nobody who says no. Its
// methods do nothing on a nil record.
type openRecord struct {
	log     *corpus.Log
	info    engine.Info
	scene   *scene
	envs    []*events.Envelope
	holders map[*kvpool.Allocation]*openRequest
}

// openRequest is one request's part of it.
type openRequest struct {
	*openRecord
	id, tenant string
	deadline   time.Time
}

// Names of the open path's two nodes.
const (
	openPrefill = "prefill"
	openDecode  = "decode"
)

func newOpenRecord(in *incident, o *openServer) *openRecord {
	if in.record == "" {
		return nil
	}
	r := &openRecord{info: o.engine.Info(), scene: &in.scene, holders: map[*kvpool.Allocation]*openRequest{}}
	r.log = corpus.NewLog(func(env *events.Envelope) error {
		c := *env
		c.Lines = append([]byte(nil), env.Lines...)
		r.envs = append(r.envs, &c)
		return nil
	})
	for _, w := range []struct {
		name   string
		role   events.Role
		tokens int
		limit  int
		pool   *kvpool.Pool
	}{{openPrefill, events.RolePrefill, in.scene.prefillTokens, r.info.MaxInputTokens, o.prefill}, {openDecode, events.RoleDecode, in.scene.decodeTokens, in.scene.context, o.decode}} {
		r.log.PutOps(time.Now(), w.name, &events.WorkerJoined{
			Worker: w.name, Role: w.role, Model: r.info.Name, Epoch: w.pool.Epoch(), Engine: r.info.Name, Version: r.info.Version, ContextTokens: r.info.ContextTokens, MaxInputTokens: w.limit,
			PoolPages: r.info.PagesFor(w.tokens), PageTokens: r.info.PageTokens, TokenBytes: r.info.TokenBytes, Layout: r.info.Layout,
		})
	}
	return r
}

// request admits the nth request, whatever its length.
func (r *openRecord) request(n, prompt, most int) *openRequest {
	if r == nil {
		return nil
	}
	q := &openRequest{openRecord: r, id: uuid.Must(uuid.NewV7()).String(), tenant: r.scene.intruder.tenant}
	if n < len(r.scene.victims) {
		q.tenant = r.scene.victims[n].tenant
	}
	now := time.Now()
	q.deadline = events.Micros(now.Add(10 * time.Minute))
	r.log.Put(now, q.id, q.tenant, &events.RequestAdmitted{
		Model: r.info.Name, Gateway: "open", PromptTokens: prompt, MaxTokens: most, PrefillBy: q.deadline, Deadline: q.deadline,
		Facts: events.AdmissionFacts{ContextTokens: r.info.ContextTokens, MaxInputTokens: r.info.MaxInputTokens, MaxDecodeTokens: r.scene.decodeTokens, PrefillNodes: 1, DecodeNodes: 1, Policy: "none"},
	})
	return q
}

// refused is what the engine said, and nobody asked for.
func (q *openRequest) refused(e *events.Error) {
	if q == nil || e == nil {
		return
	}
	q.log.Put(time.Now(), q.id, q.tenant, &events.RequestRejected{Error: *e, Stage: "engine", Model: q.info.Name, Worker: openPrefill})
}

func (q *openRequest) prefilled(p *kvpool.Pool, a *kvpool.Allocation, tokens int) {
	if q == nil {
		return
	}
	runs := a.Runs()
	q.log.Put(time.Now(), q.id, q.tenant, &events.RequestPrefilled{
		Worker: openPrefill, WorkerEpoch: p.Epoch(), PromptTokens: tokens, Pages: runs, PageTokens: q.info.PageTokens, Layout: q.info.Layout, KVBytes: int64(events.Pages(runs) * q.info.PageBytes()), Lease: q.deadline,
	})
}

func (q *openRequest) granted(p, d *kvpool.Pool, a *kvpool.Allocation) {
	if q == nil {
		return
	}
	q.holders[a] = q
	runs := a.Runs()
	q.log.Put(time.Now(), q.id, q.tenant, &events.TransferGranted{
		GrantEpoch: 1, Owner: openPrefill, OwnerEpoch: p.Epoch(), Worker: openDecode, WorkerEpoch: d.Epoch(), Pages: runs, ReservedTokens: events.Pages(runs) * q.info.PageTokens, Lease: q.deadline,
	})
}

func (q *openRequest) transferred(d *kvpool.Pool, bytes int) {
	if q == nil {
		return
	}
	q.log.Put(time.Now(), q.id, q.tenant, &events.RequestTransferred{GrantEpoch: 1, Worker: openDecode, WorkerEpoch: d.Epoch(), KVBytes: int64(bytes), DecodeBy: q.deadline})
}

func (q *openRequest) decoded(d *kvpool.Pool, prompt, tokens int) {
	if q == nil {
		return
	}
	q.log.Put(time.Now(), q.id, q.tenant, &events.RequestDecoded{Worker: openDecode, WorkerEpoch: d.Epoch(), PromptTokens: prompt, CompletionTokens: tokens, FinishReason: events.FinishLength})
}

// released says that pages went back as they are.
func (q *openRequest) released(p *kvpool.Pool, role events.Role, a *kvpool.Allocation) {
	if q == nil {
		return
	}
	name := openPrefill
	if role == events.RoleDecode {
		name = openDecode
	}
	runs := a.Runs()
	q.log.Put(time.Now(), q.id, q.tenant, &events.RequestReleased{
		Worker: name, WorkerEpoch: p.Epoch(), Role: role, Generation: runs[0].Generation, Pages: events.Pages(runs), Drained: true, Scrubbed: false, Reason: "done",
	})
}

// releasedOf is released for decode's pages, which the batch held.
func (r *openRecord) releasedOf(p *kvpool.Pool, a *kvpool.Allocation) {
	if r == nil {
		return
	}
	r.holders[a].released(p, events.RoleDecode, a)
	delete(r.holders, a)
}

// write keeps the log.
func (r *openRecord) write(dir string) error {
	if r == nil {
		return nil
	}
	if err := r.log.Err(); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return createFile(filepath.Join(dir, "unguarded.trace"), func(f *os.File) error {
		w := replay.NewTraceWriter(f, events.DefaultPartitions)
		for _, env := range r.envs {
			if err := w.Add(env); err != nil {
				return err
			}
		}
		return w.Close()
	})
}

// recordGuarded copies the running stack's log.
func recordGuarded(ctx context.Context, e endpoints, path string, log *slog.Logger) error {
	key, err := e.ring.LogKey()
	if err != nil {
		return err
	}
	nc, err := e.dial(ctx, keyring.LifecycleLog)
	if err != nil {
		return err
	}
	s, err := newStreamSource(ctx, nc, key, log)
	if err != nil {
		return err
	}
	defer s.close()
	return createFile(path, func(f *os.File) error { return replay.Copy(f, s, s.partitions, false) })
}

// rebuildIncident writes the public incident's two weeks.
func (a *app) rebuildIncident(path string, seed uint64) error {
	var truth *corpus.Truth
	err := createFile(path, func(f *os.File) (err error) {
		w := replay.NewTraceWriter(f, events.DefaultPartitions)
		if truth, err = corpus.Incident(corpus.IncidentConfig{Seed: seed}, w.Add); err != nil {
			return err
		}
		return w.Close()
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %d requests, %d answers from other requests' pages\n", path, truth.Requests, len(truth.Affected))
	return err
}
