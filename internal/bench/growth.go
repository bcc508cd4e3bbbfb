package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// GrowthOptions say how far a log grows.
type GrowthOptions struct {
	Requests []int // sizes to measure at, in whole lifecycles; nil: 1,000,000
	Retain   int   // about how many requests the live log keeps, the oldest leave; 0: all of them
	Baseline int   // the size that the largest is compared with, if it is not among the sizes and less than all of them; 0: 100,000
}

// retained is how long the service remembers a request that has ended.
const retained = 5 * time.Minute

// Growth is what one log came to as it grew.
type Growth struct {
	Fsync  bool          `json:"fsync"`            // while measured; filling leaves fsync to the system
	Retain int           `json:"retain,omitempty"` // requests that the live log keeps, about; 0: all
	Points []GrowthPoint `json:"points"`
	// Ratio is the throughput at the largest size to that at the smallest.
	Ratio float64 `json:"throughput_ratio"`
}

// GrowthPoint is the log, and the installation on it, at one size.
type GrowthPoint struct {
	Requests int `json:"requests"` // asked for
	Events   int `json:"events"`   // in the log at the end, as counted by the checker

	FillRate float64 `json:"fill_events_per_second"`

	LogBytes      int64   `json:"log_bytes"`
	BytesPerEvent float64 `json:"log_bytes_per_event"`
	StateBytes    int64   `json:"state_bytes"` // snapshot and read side of the replica

	ServerRSS   int64   `json:"server_rss_bytes"` // after a garbage collection, at rest
	ServiceRSS  int64   `json:"service_rss_bytes"`
	ServiceHeap int64   `json:"service_heap_bytes"` // above that of the empty log
	Retained    int     `json:"retained_requests"`  // ended within the time that the service remembers
	PerRetained float64 `json:"heap_bytes_per_retained_request"`

	Throughput *Figure `json:"throughput"`

	CatchUp       float64 `json:"catch_up_seconds"` // from the snapshot of the size before: start to ready
	CatchUpEvents int     `json:"catch_up_events"`
	ReadSide      float64 `json:"read_side_seconds"` // after it, until the read side has caught up too
	CleanServer   float64 `json:"clean_start_server_seconds"`
	CleanService  float64 `json:"clean_start_service_seconds"`
	KilledServer  float64 `json:"recovery_server_seconds"`
	KilledService float64 `json:"recovery_service_seconds"`

	ReplayRate   float64 `json:"replay_events_per_second"`
	ReplayPeakMB float64 `json:"replay_peak_rss_mb"`
}

// RunGrowth fills one log step by step, and measures at each size.
func RunGrowth(ctx context.Context, o Options, g GrowthOptions) (*Report, error) {
	sizes, err := g.sizes()
	if err != nil {
		return nil, err
	}
	return measure(ctx, o, func(ctx context.Context, b *bench) error {
		if err := b.growth(ctx, sizes, g.Retain); err != nil {
			return fmt.Errorf("bench growth: %w", err)
		}
		return nil
	})
}

// sizes are in order, and begin with the one that the others are compared with.
func (g GrowthOptions) sizes() ([]int, error) {
	sizes := slices.Clone(g.Requests)
	if len(sizes) == 0 {
		sizes = []int{1_000_000}
	}
	if g.Baseline == 0 {
		g.Baseline = 100_000
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	if sizes[0] < 1 {
		return nil, fmt.Errorf("bench growth: %d requests, want 1 or more", sizes[0])
	}
	if sizes[0] > g.Baseline {
		sizes = slices.Insert(sizes, 0, g.Baseline)
	}
	return sizes, nil
}

// Room on the disk: what a request takes before any was measured, and what stays
// free for what else the disk is for.
const (
	requestRoom = 6000
	spareRoom   = 1 << 30
)

// room refuses to begin what the disk cannot hold.
func room(dir string, requests int, each float64) error {
	free, err := freeDisk(dir)
	if err != nil {
		return err
	}
	const gb = 1e9
	if need := float64(requests)*each + spareRoom; need > float64(free) {
		return fmt.Errorf("%s more requests need about %.1f GB in %s, and %.1f GB are free: choose another disk with --dir, or fewer requests",
			num(float64(requests)), need/gb, dir, float64(free)/gb)
	}
	return nil
}

// grown is a run of [bench.growth].
type grown struct {
	*site
	out   *Growth
	log   chains
	empty int64 // heap of the service on an empty log
	in    int   // lifecycles that were in the log

	retain      int   // of those, about how many stay; 0: all
	retainBytes int64 // how many bytes of the log that is; 0: not known yet
}

func (b *bench) growth(ctx context.Context, sizes []int, retain int) (err error) {
	if err := room(b.dir, stays(sizes[len(sizes)-1], retain), requestRoom); err != nil {
		return err
	}
	s, err := b.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	g := &grown{site: s, retain: retain, out: &Growth{Fsync: b.Fsync[0], Retain: retain}, log: chains{tenant: make([]smallChain, b.Partitions)}}
	b.report.Growth = g.out
	for i, n := range sizes {
		if i > 0 {
			last := &g.out.Points[i-1]
			each := float64(last.LogBytes+last.StateBytes) / float64(stays(g.in, retain))
			if err := room(b.dir, stays(sizes[len(sizes)-1]-g.in, retain), each); err != nil {
				return err
			}
		}
		p := GrowthPoint{Requests: n}
		if err := g.grow(ctx, &p); err != nil {
			return fmt.Errorf("%s requests: %w", num(float64(n)), err)
		}
		if err := g.look(ctx, &p); err != nil {
			return fmt.Errorf("%s requests: %w", num(float64(n)), err)
		}
		g.out.Points = append(g.out.Points, p)
	}
	first, last := g.out.Points[0].Throughput, g.out.Points[len(sizes)-1].Throughput
	g.out.Ratio = last.Value.Median / first.Value.Median
	return nil
}

// grow fills the log up to the size. The service runs first, for the workers to
// register, and not meanwhile: its replica would follow, and be what is measured.
func (g *grown) grow(ctx context.Context, p *GrowthPoint) error {
	if err := g.replicas(ctx, 1); err != nil {
		return err
	}
	workers, err := g.registered(ctx)
	if err != nil {
		return err
	}
	if g.empty == 0 {
		if err := g.site.rest(ctx); err != nil {
			return err
		}
		u, err := g.parts[0].rested()
		if err != nil {
			return err
		}
		g.empty = u.Heap
	}
	if err := g.down(); err != nil {
		return err
	}
	if err := g.up(ctx, false); err != nil {
		return err
	}
	n := max(0, p.Requests-g.in)
	begun := time.Now()
	told := begun
	tell := func(ended int) {
		if now := time.Now(); now.Sub(told) > progressEvery {
			told = now
			rate := float64(ended) / now.Sub(begun).Seconds()
			g.b.Progress("growth: %s of %s requests in the log, %s a second, %v left", num(float64(g.in+ended)), num(float64(p.Requests)), num(rate),
				time.Duration(float64(n-ended)/rate*float64(time.Second)).Round(time.Second))
		}
	}
	for done := 0; done < n; {
		part := n - done
		if g.retain > 0 {
			part = min(part, max(1, g.retain/2))
		}
		if err := g.fill(ctx, part, &g.log, workers, func(ended int) { tell(done + ended) }); err != nil {
			return err
		}
		done += part
		if err := g.trim(ctx, g.in+done); err != nil {
			return err
		}
	}
	g.in += n
	if n > 0 {
		p.FillRate = float64(n*len(steps)) / time.Since(begun).Seconds()
	}
	p.CatchUpEvents = n * len(steps)
	err = g.down()
	flush()
	return err
}

// registered lets both workers register, and says as what.
func (g *grown) registered(ctx context.Context) ([]events.WorkerView, error) {
	l, err := g.newLoad(ctx, true)
	if err != nil {
		return nil, err
	}
	nc, err := g.connect(ctx, keyring.Operator)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	var all *events.WorkersView
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleOperator, Principal: keyring.Operator.Principal(), Partitions: g.b.Partitions, Logger: g.b.Logger})
	if err == nil {
		all, err = c.Workers(ctx)
	}
	if err = errors.Join(err, l.close()); err != nil {
		return nil, err
	}
	return all.Workers, nil
}

// look measures everything at the present size.
func (g *grown) look(ctx context.Context, p *GrowthPoint) error {
	about := func(what string) { g.b.Progress("growth: %s requests: %s", num(float64(p.Requests)), what) }
	var err error
	about("the service reads what it has not seen")
	if _, p.CatchUp, err = g.start(ctx); err != nil {
		return err
	}
	begun := time.Now()
	if err := g.rest(ctx); err != nil {
		return err
	}
	p.ReadSide = time.Since(begun).Seconds()

	flush() // of the read side's file
	about("throughput and memory")
	p.Throughput = &Figure{Name: "lifecycle service", Unit: "lifecycles/s"}
	if err := g.load(ctx, p.Throughput, g.b.Rounds, func() error { return g.memory(ctx, p) }); err != nil {
		return err
	}
	p.Throughput.finish()

	about("a clean start")
	if err := g.down(); err != nil {
		return err
	}
	if p.CleanServer, p.CleanService, err = g.start(ctx); err != nil {
		return err
	}

	about("a start after both were killed")
	var before uint64
	if err := g.load(ctx, &Figure{}, 1, func() error { before, err = g.last(ctx); return err }); err != nil {
		return err
	}
	g.crash()
	if p.KilledServer, p.KilledService, err = g.start(ctx); err != nil {
		return err
	}
	after, err := g.last(ctx)
	if err != nil {
		return err
	}
	if after < before {
		return fmt.Errorf("after a kill the log ends at %d, and %d was acknowledged", after, before)
	}
	if err := g.stopParts(); err != nil {
		return err
	}

	about("replay of the whole log")
	return g.replayed(ctx, p)
}

// start starts server and service on what is there, each until it is ready.
func (g *grown) start(ctx context.Context) (server, service float64, err error) {
	begun := time.Now()
	if err := g.up(ctx, g.out.Fsync); err != nil {
		return 0, 0, err
	}
	server = time.Since(begun).Seconds()
	begun = time.Now()
	_, err = g.part(ctx, replicaPrefix+"1", childConfig{Kind: kindLifecycle, Partitions: g.b.Partitions, Retain: g.retainBytes})
	return server, time.Since(begun).Seconds(), err
}

// load measures a closed loop, and calls then when it has ended and the workers
// are still there.
func (g *grown) load(ctx context.Context, f *Figure, rounds int, then func() error) (err error) {
	if _, err := g.settled(ctx); err != nil {
		return err
	}
	l, err := g.newLoad(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	inFlight := g.b.Concurrency
	if inFlight == 0 {
		inFlight = serviceInFlight
	}
	for range rounds {
		got, sample, err := g.measure(ctx, l, shape{inFlight: inFlight, warm: g.warm})
		if err != nil {
			return err
		}
		sample.Value = float64(got.lifecycles) / got.seconds
		f.Rounds = append(f.Rounds, sample)
	}
	g.in += l.lifecycles()
	g.log.ended = append(g.log.ended, endedAt{time.Now(), l.lifecycles()})
	return then()
}

// memory measures what both processes hold when nothing moves.
func (g *grown) memory(ctx context.Context, p *GrowthPoint) error {
	if err := g.rest(ctx); err != nil {
		return err
	}
	server, err := g.nats.rested()
	if err != nil {
		return err
	}
	service, err := g.parts[0].rested()
	if err != nil {
		return err
	}
	p.ServerRSS, p.ServiceRSS, p.ServiceHeap = server.RSS, service.RSS, service.Heap-g.empty
	p.Retained = g.log.within(retained, time.Now())
	p.PerRetained = float64(p.ServiceHeap) / float64(max(1, p.Retained))
	return nil
}

// last is the log's last sequence.
func (g *grown) last(ctx context.Context) (uint64, error) {
	nc, err := g.connect(ctx, keyring.Admin)
	if err != nil {
		return 0, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("end of the log: %w", err)
	}
	st, err := js.Stream(ctx, events.LogStream)
	if err != nil {
		return 0, fmt.Errorf("end of the log: %w", err)
	}
	return st.CachedInfo().State.LastSeq, nil
}

// replayed has a checker read the whole log, which must be without a fault and
// hold every request.
func (g *grown) replayed(ctx context.Context, p *GrowthPoint) error {
	var r replayed
	c, err := g.b.start(ctx, kindFollow, childConfig{Kind: kindFollow, URL: g.url, Keys: g.ring.Dir(), Partitions: g.b.Partitions}, &r, "GOMAXPROCS=1")
	if err != nil {
		return err
	}
	if err := c.stop(); err != nil {
		return err
	}
	if r.Violations > 0 || r.Open > 0 || r.Requests < g.least() {
		return fmt.Errorf("the log has %d requests, want at least %d; %d violations (%s), %d open requests", r.Requests, g.least(), r.Violations, r.First, r.Open)
	}
	p.Events, p.ReplayRate, p.ReplayPeakMB = r.Events, float64(r.Events)/r.Seconds, float64(r.Used.PeakRSS>>20)
	if p.LogBytes, err = sizeOf(filepath.Join(g.dir, "jetstream"), filepath.Join("streams", events.LogStream)); err != nil {
		return err
	}
	p.BytesPerEvent = float64(p.LogBytes) / float64(p.Events)
	p.StateBytes, err = sizeOf(filepath.Join(g.dir, replicaPrefix+"1"), "")
	return err
}
