package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/statemachine"
)

// system is a stack under test. Every answer that a part was given by the
// lifecycle and everything that a client was given is kept, and compared with
// the log in the end.
type system struct {
	stack
	names []string // of tenants
	web   *http.Client

	// Set while it runs.
	endpoints
	keys   map[string]string           // API keys by tenant
	secret []byte                      // of digests
	own    map[string]events.DigestKey // tenants' own keys, by fingerprint

	mu      sync.Mutex
	workers map[string]probe
	answers []events.Answer
	replies []reply
}

// probe is one worker, from inside.
type probe struct {
	worker *gpuworker.Worker
	pool   *kvpool.Pool
}

// newSystem describes a small stack with tenants t1, t2 and so on.
func newSystem(tenants int) *system {
	s := &system{keys: map[string]string{}, workers: map[string]probe{}}
	for i := range tenants {
		s.names = append(s.names, fmt.Sprintf("t%d", i+1))
	}
	s.stack = stack{
		listen: "127.0.0.1:0", durability: broker.FsyncAlways, log: slog.New(slog.DiscardHandler),
		engine:  engine.Config{Name: "ref", Model: "m", ContextTokens: 4096, Threads: 1},
		prefill: 1, decode: 1, prefillPool: 8192, decodePool: 8192, drain: time.Second, allowRed: true,
		tenants: s.tenantsFile,
	}
	s.hooks.worker = func(name string, w *gpuworker.Worker, p *kvpool.Pool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.workers[name] = probe{w, p}
	}
	s.hooks.command = s.note
	return s
}

func (s *system) tenantsFile(dir string) (*gateway.Tenants, error) {
	var b strings.Builder
	b.WriteString("tenants:\n")
	for _, name := range s.names {
		key, digest := gateway.GenerateKey()
		s.keys[name] = key
		fmt.Fprintf(&b, "  - name: %s\n    api_keys: [%s]\n", name, digest)
	}
	path := filepath.Join(dir, "tenants.yaml")
	if err := writeFile(path, b.String()); err != nil {
		return nil, err
	}
	return gateway.LoadTenants(path)
}

// note keeps an answer of the lifecycle's.
func (s *system) note(ctx context.Context, _ string, c *events.Command, next send) (*events.Answer, error) {
	a, err := next(ctx, c)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answers = append(s.answers, *a)
	}
	return a, err
}

// bend puts f between the parts and the lifecycle; what f sends is kept.
func (s *system) bend(f func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error)) {
	s.hooks.command = func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) {
		return f(ctx, from, c, func(ctx context.Context, c *events.Command) (*events.Answer, error) {
			return s.note(ctx, from, c, next)
		})
	}
}

// run starts the stack, calls use, waits until nothing is held, stops the stack,
// and returns the log. Afterwards nothing may be left of it: no page, no stale byte on a
// free one, no goroutine, no open file.
func (s *system) run(t *testing.T, use func(ctx context.Context) error) *record {
	t.Helper()
	s.dir = t.TempDir()
	files := openFiles(t)
	goroutines := goleak.IgnoreCurrent()
	// Connections that wait are given up before the server does so: a request that
	// goes out on one at that moment would fail.
	s.web = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second}}
	err := s.stack.run(t.Context(), func(ctx context.Context, e endpoints) (err error) {
		s.endpoints = e
		if s.secret, err = e.ring.DigestSecret(); err != nil {
			return err
		}
		if err = use(ctx); err != nil {
			return err
		}
		return s.settled(ctx)
	})
	s.web.CloseIdleConnections()
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	log, err := s.readLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.workers) != s.prefill+s.decode {
		t.Errorf("%d workers were made, want %d", len(s.workers), s.prefill+s.decode)
	}
	for name, w := range s.workers {
		st := w.pool.Stats()
		if st.Free != st.Pages || st.Pinned != 0 || st.DoubleFrees != 0 || st.Waiting != 0 {
			t.Errorf("%s: pool %+v, want all %d pages free", name, st, st.Pages)
		}
		if dirty := audit(t, w.pool); dirty != 0 && s.guards.scrub == kvpool.ScrubPoison {
			t.Errorf("%s: %d words of free pages are not scrubbed", name, dirty)
		}
	}
	if err := goleak.Find(goroutines); err != nil {
		t.Errorf("goroutines: %v", err)
	}
	if left := openFiles(t); left > files {
		t.Errorf("%d files are open, %d were before", left, files)
	}
	return log
}

func audit(t *testing.T, p *kvpool.Pool) int {
	t.Helper()
	dirty, err := p.Audit()
	if err != nil {
		t.Fatal(err)
	}
	return dirty
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return 0 // no such thing on this system: nothing is counted
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// poll waits until f is content.
func poll(ctx context.Context, what string, f func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v", what, patience)
		}
	}
	return nil
}

// settled waits until no worker has anything in hand.
func (s *system) settled(ctx context.Context) error {
	return poll(ctx, "nothing is held", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, w := range s.workers {
			if st := w.worker.Stats(); st.Running+st.Kept+st.Leaving > 0 || st.Pool.Free != st.Pool.Pages || st.Handoff.Offers+st.Handoff.Open > 0 {
				return false
			}
		}
		return true
	})
}

// record is the log as the admin reads it.
type record struct {
	envelopes  []*events.Envelope
	partitions int
	key        []byte
	byRequest  map[string][]*events.Event
	group      map[string]map[int]string // request ids by choice, by the first one's id
	hashes     map[string]bool           // "position;hash" of every event
}

var errRead = errors.New("the end of the log")

// readLog reads what the stopped stack left on disk.
func (s *system) readLog(ctx context.Context) (*record, error) {
	key, err := s.ring.LogKey()
	if err != nil {
		return nil, err
	}
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(s.dir, "jetstream"), Ring: s.ring, Logger: s.log})
	if err != nil {
		return nil, err
	}
	defer b.Shutdown()
	nc, err := natsclient.Connect(ctx, natsclient.Config{InProcess: b.InProcess(), Ring: s.ring, User: keyring.Admin, Logger: s.log})
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	last, err := j.Last(ctx)
	if err != nil {
		return nil, err
	}
	r := &record{partitions: j.Partitions(), key: key, byRequest: map[string][]*events.Event{}, group: map[string]map[int]string{}, hashes: map[string]bool{}}
	err = j.Follow(ctx, 1, func(env *events.Envelope) error {
		if journal.Foreign(env) {
			return fmt.Errorf("message %d is foreign", env.Seq)
		}
		r.envelopes = append(r.envelopes, env)
		if err := r.add(env); err != nil {
			return err
		}
		if env.Seq >= last {
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return r, nil
}

func (r *record) add(env *events.Envelope) error {
	return events.Split(env.Lines, func(line int, b []byte) error {
		e, err := events.Decode(b)
		if err != nil {
			return err
		}
		pos := events.Position{Seq: env.Seq, Line: line}
		r.hashes[pos.String()+";"+events.Hash(b)] = true
		if env.Partition == events.OpsPartition {
			return nil
		}
		r.byRequest[e.Subject] = append(r.byRequest[e.Subject], e)
		group, choice := "", 0
		switch d := e.Data.(type) {
		case *events.RequestAdmitted:
			group, choice = d.Group, d.Choice
		case *events.RequestRejected:
			return nil
		}
		if e.N == 1 && group != "" {
			if r.group[group] == nil {
				r.group[group] = map[int]string{}
			}
			r.group[group][choice] = e.Subject
		}
		return nil
	})
}

// has returns the request's events of a type.
func (r *record) has(id string, t events.Type) (found []*events.Event) {
	for _, e := range r.byRequest[id] {
		if e.Type == t {
			found = append(found, e)
		}
	}
	return found
}

// denied says whether a command of the request was denied with the code.
func (r *record) denied(id string, c events.CommandType, code events.Code) bool {
	return slices.ContainsFunc(r.byRequest[id], func(e *events.Event) bool {
		d, ok := e.Data.(*events.CommandDenied)
		return ok && d.Command == c && d.Code == code
	})
}

// story is a request's history in one line, for failures.
func (r *record) story(id string) string {
	var b strings.Builder
	for _, e := range r.byRequest[id] {
		fmt.Fprintf(&b, "%s by %s: %s; ", shortType(e.Type), e.Principal, summary(e.Data))
	}
	return b.String()
}

// check runs the checker over the whole log, with everything that anybody was
// told.
func (s *system) check(log *record) statemachine.Report {
	k := statemachine.NewChecker(statemachine.CheckerConfig{Partitions: log.partitions, Key: log.key})
	for _, env := range log.envelopes {
		if k.Add(env) != nil {
			break // it is in the report
		}
	}
	k.CheckAnswers(s.answers)
	var outcomes []statemachine.ClientOutcome
	for i := range s.replies {
		outcomes = append(outcomes, s.outcomes(log, &s.replies[i])...)
	}
	k.CheckClients(outcomes)
	k.Close(time.Now())
	return k.Report()
}

// clean asserts that a run with all guards broke no rule, and left no request
// open.
func (s *system) clean(t *testing.T, log *record, requests int) {
	t.Helper()
	r := s.check(log)
	for i, v := range r.Violations {
		if i == 10 {
			t.Errorf("and %d more", len(r.Violations)-i+r.More)
			break
		}
		t.Errorf("violation: %v", v)
	}
	if r.Open != 0 || r.Requests != requests {
		t.Errorf("%d requests in the log, %d open; want %d, all closed", r.Requests, r.Open, requests)
	}
	for i := range s.replies {
		for _, receipt := range s.replies[i].receipts {
			if !log.hashes[receipt] {
				t.Errorf("request %s: the receipt %q names no event of the log", s.replies[i].id, receipt)
			}
		}
	}
	if len(s.answers) == 0 || len(s.replies) == 0 {
		t.Error("nothing was compared")
	}
	t.Logf("log: %d events of %d requests in %d messages; %d answers and %d clients compared", r.Events, r.Requests, len(log.envelopes), len(s.answers), len(s.replies))
}
