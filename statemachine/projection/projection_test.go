package projection

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// book is a log in memory: envelopes in order, and who follows it gets them all
// and is told when it has.
type book struct {
	all []*events.Envelope
}

func (b *book) follow(ctx context.Context, next uint64, handle func(*events.Envelope) error) error {
	for _, env := range b.all {
		if env.Seq < next {
			continue
		}
		if err := handle(env); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (b *book) mac(_ context.Context, seq uint64) (string, error) {
	for _, env := range b.all {
		if env.Seq == seq {
			return env.MAC, nil
		}
	}
	return "", errors.New("no such message")
}

func id(n int) string {
	ms := fmt.Sprintf("%012x", start.UnixMilli()+int64(n))
	return ms[:8] + "-" + ms[8:] + "-7000-8000-" + fmt.Sprintf("%012x", n)
}

func (b *book) add(t testing.TB, es ...*events.Event) {
	t.Helper()
	var lines []byte
	for _, e := range es {
		var err error
		if lines, err = events.Append(lines, e); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, '\n')
	}
	seq := uint64(len(b.all) + 1)
	b.all = append(b.all, &events.Envelope{Seq: seq, MAC: fmt.Sprintf("mac%d", seq), Lines: lines})
}

// write appends n lifecycles, several to an envelope, in every state there is.
func (b *book) write(t testing.TB, first, n int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(first), 7))
	for k := first; k < first+n; k++ {
		steps := []events.Data{
			&events.RequestAdmitted{Model: []string{"ref-1.0", "other"}[k%2], Gateway: "gw1", PromptTokens: 100 + k, MaxTokens: 10, PromptDigest: "hmac-sha256:" + strings.Repeat("a", 64), PrefillBy: start, Deadline: start.Add(time.Minute)},
			&events.RequestPrefilled{Worker: "p1", WorkerEpoch: 1, PromptTokens: 100, Pages: []events.PageRun{{Start: 1, Count: 2, Generation: uint64(k + 1)}}, PageTokens: 64, Layout: "l", KVDigest: "kvsum64:" + strings.Repeat("a", 16), Lease: start},
			&events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 1, Worker: "d1", WorkerEpoch: 2, Pages: []events.PageRun{{Start: 1, Count: 3, Generation: uint64(k + 1)}}, Lease: start},
			&events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 2, KVDigest: "kvsum64:" + strings.Repeat("a", 16), DecodeBy: start},
			&events.RequestReleased{Worker: "p1", WorkerEpoch: 1, Role: events.RolePrefill, Generation: uint64(k + 1), Pages: 2, Reason: "done"},
			&events.RequestDecoded{Worker: "d1", WorkerEpoch: 2, PromptTokens: 100, CompletionTokens: 7, FinishReason: events.FinishStop, OutputDigest: "hmac-sha256:" + strings.Repeat("b", 64)},
			&events.RequestReleased{Worker: "d1", WorkerEpoch: 2, Role: events.RoleDecode, Generation: uint64(k + 1), Pages: 3, Reason: "done"},
		}
		switch k % 4 {
		case 1:
			steps = append(steps[:2:2], &events.RequestFailed{Error: *events.NewError(events.CodeDeadline, "late"), From: events.Prefilled, Stage: "prefilled"})
		case 2:
			steps = []events.Data{&events.RequestRejected{Error: *events.NewError(events.CodeContextLength, "long"), Stage: "admission", Model: "ref-1.0", PromptTokens: 9, MaxTokens: 1}}
		case 3:
			steps = append(steps[:1:1], &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Admitted},
				&events.CommandDenied{Command: events.CmdPrefilled, State: events.Cancelled, Code: events.CodeIllegalState, Message: "m"})
		}
		var es []*events.Event
		for n, d := range steps {
			es = append(es, &events.Event{ID: fmt.Sprintf("%s.%d", id(k), n+1), Source: "/x", Type: d.EventType(), Subject: id(k), Time: start.Add(time.Duration(k) * time.Second), N: n + 1,
				Command: "c", Principal: "gateway.gw1", Tenant: []string{"acme", "globex", "initech"}[k%3], TenantSeq: 1, Data: d})
		}
		for len(es) > 0 {
			n := 1 + rng.IntN(len(es))
			b.add(t, es[:n]...)
			es = es[n:]
		}
	}
}

func open(t testing.TB, cfg Config) *Projection {
	t.Helper()
	p, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// feed runs the projection until it has applied the whole book.
func feed(t testing.TB, p *Projection, b *book) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, b.follow) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for p.Applied() < uint64(len(b.all)) {
		select {
		case err := <-done:
			t.Fatalf("ended: %v", err)
		case <-deadline:
			t.Fatalf("applied %d of %d", p.Applied(), len(b.all))
		case <-tick.C:
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func list(t testing.TB, p *Projection, q events.ListQuery) []events.RequestView {
	t.Helper()
	v, err := p.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return v.Requests
}

// However the log is cut into batches, runs and restarts, the rows are the same.
func TestRowsDoNotDependOnBatches(t *testing.T) {
	b := &book{}
	b.write(t, 0, 200)
	whole := open(t, Config{})
	feed(t, whole, b)
	want := list(t, whole, events.ListQuery{Limit: 1000})
	if len(want) != 200 {
		t.Fatalf("%d rows", len(want))
	}
	if v := want[len(want)-1]; v.State != events.Decoded || v.CompletionTokens != 7 || len(v.Held) != 0 || v.Events != 7 || v.DecodeWorker != "d1" || v.FinishReason != events.FinishStop {
		t.Errorf("decoded row: %+v", v)
	}
	if v := want[len(want)-2]; v.State != events.Failed || v.Error == nil || v.Error.Code != events.CodeDeadline || len(v.Held) != 1 || v.Held[0].Pages != 2 {
		t.Errorf("failed row: %+v", v)
	}
	for _, size := range []int{1, 7, 100} {
		path := filepath.Join(t.TempDir(), "requests.db")
		part := &book{}
		for len(part.all) < len(b.all) {
			part.all = b.all[:min(len(b.all), len(part.all)+150)]
			p := open(t, Config{Path: path, Batch: size, Interval: time.Millisecond})
			feed(t, p, part)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		p := open(t, Config{Path: path})
		if p.Applied() != uint64(len(b.all)) {
			t.Errorf("batches of %d: applied %d", size, p.Applied())
		}
		if diff := cmp.Diff(want, list(t, p, events.ListQuery{Limit: 1000}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("batches of %d (-whole +parts):\n%s", size, diff)
		}
	}
}

// A list is the same set as a scan with the same conditions, in pages of any
// size.
func TestListAgainstScan(t *testing.T) {
	b := &book{}
	b.write(t, 0, 120)
	p := open(t, Config{})
	feed(t, p, b)
	all := list(t, p, events.ListQuery{Limit: 1000})
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 300 {
		q := events.ListQuery{Limit: 1 + rng.IntN(40)}
		if rng.IntN(2) == 0 {
			q.Tenant = []string{"acme", "globex", "nobody"}[rng.IntN(3)]
		}
		if rng.IntN(2) == 0 {
			q.State = []events.State{events.Decoded, events.Failed, events.Rejected}[rng.IntN(3)]
		}
		if rng.IntN(3) == 0 {
			q.Model = "ref-1.0"
		}
		if rng.IntN(3) == 0 {
			q.Since = start.Add(time.Duration(rng.IntN(120)) * time.Millisecond / 2)
		}
		if rng.IntN(3) == 0 {
			q.Until = start.Add(time.Duration(rng.IntN(240)) * time.Millisecond / 2)
		}
		var want []string
		for _, v := range all {
			at, _ := events.RequestTime(v.RequestID)
			if (q.Tenant == "" || v.Tenant == q.Tenant) && (q.State == "" || v.State == q.State) && (q.Model == "" || v.Model == q.Model) &&
				(q.Since.IsZero() || !at.Before(q.Since)) && (q.Until.IsZero() || at.Before(q.Until)) {
				want = append(want, v.RequestID)
			}
		}
		var got []string
		for page := q; ; {
			v, err := p.List(t.Context(), page)
			if err != nil {
				t.Fatal(err)
			}
			if len(v.Requests) > q.Limit {
				t.Fatalf("query %d: a page of %d", n, len(v.Requests))
			}
			for _, r := range v.Requests {
				got = append(got, r.RequestID)
			}
			if page.Cursor = v.Next; page.Cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("query %d %+v:\n got %v\nwant %v", n, q, got, want)
		}
	}
}

// The restrictions use an index: none of them reads the whole table.
func TestListUsesIndexes(t *testing.T) {
	p := open(t, Config{})
	for _, where := range []string{"tenant = 'a'", "state = 'a'", "model = 'a'", "id < 'a'"} {
		rows, err := p.db.Load().Query("EXPLAIN QUERY PLAN SELECT " + columns + " FROM request WHERE " + where + " ORDER BY id DESC LIMIT 10")
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var a, b, c int
			var s string
			if err := rows.Scan(&a, &b, &c, &s); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, s)
		}
		rows.Close()
		if s := strings.Join(plan, "; "); !strings.Contains(s, "SEARCH request USING") || strings.Contains(s, "TEMP B-TREE") {
			t.Errorf("%s: %s", where, s)
		}
	}
}

// A file of another schema, a damaged one and one of another log are made anew.
func TestMadeAnew(t *testing.T) {
	b := &book{}
	b.write(t, 0, 20)
	other := &book{}
	other.write(t, 100, 20)
	for _, env := range other.all {
		env.MAC += " of another log"
	}
	for name, change := range map[string]func(path string){
		"schema": func(path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("PRAGMA user_version = 99"); err != nil {
				t.Fatal(err)
			}
		},
		"damaged": func(path string) {
			for _, s := range []string{"-wal", "-shm"} {
				os.Remove(path + s)
			}
			if err := os.WriteFile(path, []byte(strings.Repeat("not a database", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"another log": func(string) {},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "requests.db")
			p := open(t, Config{Path: path})
			feed(t, p, b)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			change(path)
			p = open(t, Config{Path: path})
			if err := p.Check(t.Context(), other.mac); err != nil {
				t.Fatal(err)
			}
			if p.Applied() != 0 {
				t.Fatalf("applied %d", p.Applied())
			}
			feed(t, p, other)
			if got := list(t, p, events.ListQuery{}); len(got) != 20 || got[0].RequestID < id(100) {
				t.Errorf("%d rows", len(got))
			}
		})
	}
	// The right log leaves the rows alone.
	p := open(t, Config{})
	feed(t, p, b)
	if err := p.Check(t.Context(), b.mac); err != nil || p.Applied() != uint64(len(b.all)) {
		t.Errorf("applied %d of %d, %v", p.Applied(), len(b.all), err)
	}
}

// A page that is damaged is met late: by a write, or by a read. Either way the
// file is made anew while readers go on, and ends with the same rows.
func TestDamagedPage(t *testing.T) {
	b := &book{}
	b.write(t, 0, 200)
	for name, grow := range map[string]bool{"met by a write": true, "met by a read": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "requests.db")
			p := open(t, Config{Path: path})
			feed(t, p, b)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			const page = 4096
			for at := page * 2; at < len(file); at++ { // meta and the schema stay
				file[at] ^= 0x5a
			}
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if grow {
				b.write(t, 1000, 1)
			}
			p = open(t, Config{Path: path})
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- p.Run(ctx, b.follow) }()
			defer func() {
				cancel()
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}()
			for end := time.Now().Add(10 * time.Second); ; {
				v, err := p.List(ctx, events.ListQuery{Limit: events.MaxListLimit})
				if err == nil && p.Applied() == uint64(len(b.all)) && len(v.Requests) >= 200 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("applied %d of %d, %d rows: %v", p.Applied(), len(b.all), len(v.Requests), err)
				}
				runtime.Gosched()
			}
		})
	}
}

// Lines that cannot be read, foreign messages and operations move the position
// and nothing else.
func TestPassedOver(t *testing.T) {
	b := &book{}
	b.write(t, 0, 4)
	rows := len(list(t, func() *Projection { p := open(t, Config{}); feed(t, p, b); return p }(), events.ListQuery{}))
	for _, env := range []*events.Envelope{
		{Partition: 0, Lines: []byte("not json\n")},
		{Partition: 0, Lines: []byte("{}\n{}\n")},
		{Partition: -2},
		{Partition: events.OpsPartition, Lines: []byte("whatever\n")},
	} {
		env.Seq = uint64(len(b.all) + 1)
		b.all = append(b.all, env)
	}
	b.write(t, 50, 4)
	p := open(t, Config{})
	feed(t, p, b)
	if got := len(list(t, p, events.ListQuery{})); got != rows+4 {
		t.Errorf("%d rows, want %d", got, rows+4)
	}
}

// What a failed follower had handed over is written before its error is told.
func TestFollowerFails(t *testing.T) {
	b := &book{}
	b.write(t, 0, 10)
	p := open(t, Config{Interval: time.Hour})
	broken := errors.New("broken")
	err := p.Run(t.Context(), func(ctx context.Context, next uint64, handle func(*events.Envelope) error) error {
		for _, env := range b.all {
			if err := handle(env); err != nil {
				return err
			}
		}
		return broken
	})
	if !errors.Is(err, broken) || p.Applied() != uint64(len(b.all)) {
		t.Errorf("%v, applied %d of %d", err, p.Applied(), len(b.all))
	}
}

func BenchmarkApply(b *testing.B) {
	log := &book{}
	log.write(b, 0, 2000)
	events := 0
	for b.Loop() {
		p, err := Open(b.Context(), Config{Path: filepath.Join(b.TempDir(), "requests.db")})
		if err != nil {
			b.Fatal(err)
		}
		feed(b, p, log)
		events += 2000
		p.Close()
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "requests/s")
}
