package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Options say how to measure.
type Options struct {
	Version     string        // of this build, for the report
	Dir         string        // data goes to a directory in it, which is removed at the end; "": the system's
	Rounds      int           // interleaved rounds; 0: 5
	Duration    time.Duration // of one measurement; 0: 2 s
	Fsync       []bool        // durability: with fsync on every acknowledgement, or not; nil: both
	Concurrency int           // calls in flight of a closed loop; 0: each case's own
	Rate        float64       // lifecycles a second of an open loop; 0: half of what the closed loop did
	Replicas    []int         // of the lifecycle service, one case each; nil: 1 and 2
	Partitions  int           // of the log; 0: events.DefaultPartitions
	Seed        uint64        // of what is drawn; 0: one is drawn, and reported
	CPUProfile  string        // file for this process's profile; those of the others are beside it; "": none

	// Child is the command line that runs [RunChild] in a process of its own, and
	// ChildEnv is added to its environment.
	Child    []string
	ChildEnv []string

	// Stack runs every part of pdgate in this process. Only cases that go through
	// HTTP need it.
	Stack RunStack

	Logger   *slog.Logger                     // of the parts that are measured; nil: nothing is logged
	Progress func(format string, args ...any) // told what is being done; nil: nobody
}

func (o Options) withDefaults() (Options, error) {
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Duration == 0 {
		o.Duration = 2 * time.Second
	}
	if o.Fsync == nil {
		o.Fsync = []bool{true, false}
	}
	if o.Replicas == nil {
		o.Replicas = []int{1, 2}
	}
	if o.Partitions == 0 {
		o.Partitions = events.DefaultPartitions
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	switch {
	case o.Rounds < 0, o.Duration < 0, o.Concurrency < 0, o.Rate < 0:
		return o, errors.New("bench: rounds, duration, concurrency and rate are 0 or more")
	case o.Concurrency > maxInFlight:
		return o, fmt.Errorf("bench: %d calls in flight, want at most %d", o.Concurrency, maxInFlight)
	case o.Partitions < 1 || o.Partitions > events.MaxPartitions:
		return o, fmt.Errorf("bench: %d partitions, want 1 to %d", o.Partitions, events.MaxPartitions)
	case slices.ContainsFunc(o.Replicas, func(n int) bool { return n < 1 || n > 8 }):
		return o, fmt.Errorf("bench: replicas %v, want 1 to 8 each", o.Replicas)
	}
	return o, nil
}

// warmup is how long a load runs before it counts.
func (o *Options) warmup() time.Duration { return min(o.Duration/4, 500*time.Millisecond) }

// benches are the measurements that make cases.
var benches = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"journal", (*bench).journal},
	{"service", (*bench).service},
	{"takeover", (*bench).takeover},
	{"handoff", (*bench).handoff},
	{"gateway", (*bench).gateway},
	{"replay", (*bench).replay},
	{"audit", (*bench).audit},
}

// Names lists what [Run] takes, in the order in which all of it is run.
func Names() []string {
	var names []string
	for _, b := range benches {
		names = append(names, b.name)
	}
	return names
}

// bench is one run.
type bench struct {
	Options
	dir    string // of this run; goes away with it
	report *Report

	started int // processes, where they are profiled
}

// each runs the named benches in their order.
func (b *bench) each(ctx context.Context, names []string) error {
	for _, x := range benches {
		if !slices.Contains(names, x.name) {
			continue
		}
		if err := x.run(b, ctx); err != nil {
			return fmt.Errorf("bench %s: %w", x.name, err)
		}
	}
	return nil
}

// Run measures and reports. An interrupted run is an error: half of the rounds
// are not a result.
func Run(ctx context.Context, o Options, names ...string) (*Report, error) {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("bench: %q is none of %s", n, strings.Join(Names(), ", "))
		}
	}
	return measure(ctx, o, func(ctx context.Context, b *bench) error { return b.each(ctx, names) })
}

// measure makes the surroundings of a run.
func measure(ctx context.Context, o Options, f func(context.Context, *bench) error) (_ *Report, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "pdgate-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{Options: o, dir: dir, report: &Report{
		Tool: "pdgate bench", Build: build(o.Version), Started: time.Now().UTC().Truncate(time.Second),
		Settings: Settings{
			Rounds: o.Rounds, Seconds: o.Duration.Seconds(), Fsync: o.Fsync, Concurrency: o.Concurrency, Rate: o.Rate,
			Replicas: o.Replicas, Partitions: o.Partitions, Seed: o.Seed,
		},
	}}
	if b.report.Machine, err = machine(dir); err != nil {
		return nil, err
	}
	stop, err := profile(o.CPUProfile)
	if err != nil {
		return nil, err
	}
	err = f(ctx, b)
	if err = errors.Join(err, stop()); err != nil {
		return nil, err
	}
	for _, c := range b.report.Cases {
		if err := c.finish(); err != nil {
			return nil, err
		}
	}
	b.report.Machine.LoadAfter = loadAverage()
	return b.report, nil
}

// profile writes this process's CPU profile until stop is called.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("cpu profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("cpu profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// add makes the next case of the report.
func (b *bench) add(c *Case) *Case {
	b.report.Cases = append(b.report.Cases, c)
	return c
}

// sub makes a directory for one measurement, and returns what removes it.
func (b *bench) sub(name string) (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(b.dir, name+"-")
	if err != nil {
		return "", nil, fmt.Errorf("data directory: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// alternate runs f for product and ceiling, the other way round in every second
// round: what the first one leaves behind, in caches and on disk, is then not
// always to the same one's cost.
func alternate(round int, product, ceiling func() (Sample, error)) (p, c Sample, err error) {
	if round%2 == 1 {
		if c, err = ceiling(); err == nil {
			p, err = product()
		}
		return p, c, err
	}
	if p, err = product(); err == nil {
		c, err = ceiling()
	}
	return p, c, err
}

func onOff(fsync bool) string {
	if fsync {
		return "always"
	}
	return "interval"
}

// quiesce puts what the last measurement left to rest, so that the next one does
// not collect its garbage.
func quiesce() { runtime.GC() }

// profileOf names the profile of another process, beside this one's: several
// processes have a name one after the other, and are numbered.
func (b *bench) profileOf(name string) string {
	if b.CPUProfile == "" {
		return ""
	}
	b.started++
	ext := filepath.Ext(b.CPUProfile)
	return strings.TrimSuffix(b.CPUProfile, ext) + "." + strconv.Itoa(b.started) + "-" + name + ext
}

// errTooShort means that a duration is too short for the machine: nothing ended
// while it was measured.
var errTooShort = errors.New("nothing ended in the time that was measured: measure for longer")
