package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test's own binary a child process.
const childVariable = "PDGATE_BENCH_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if err := RunChild(context.Background(), os.Stdin, os.Stdout, log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// small are options of a run that measures nothing well, and quickly.
func small(t *testing.T) Options {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Version: "test", Dir: t.TempDir(), Rounds: 2, Duration: 80 * time.Millisecond, Partitions: 2, Replicas: []int{1}, Fsync: []bool{false}, Concurrency: 8, Seed: 1,
		Child: []string{exe}, ChildEnv: []string{childVariable + "=1"},
		Logger:   slog.New(slog.NewTextHandler(writer{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Progress: func(f string, args ...any) { t.Logf(f, args...) },
	}
}

// run runs one bench, for longer where the machine is too busy to end anything
// in the time that o gives it.
func run(t *testing.T, o Options, name string) *Report {
	t.Helper()
	for {
		r, err := Run(t.Context(), o, name)
		if errors.Is(err, errTooShort) && o.Duration < 20*time.Second {
			o.Duration *= 4
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// writer shows what was logged beside the test's own output.
type writer struct{ t *testing.T }

func (w writer) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

var _ io.Writer = writer{}

// sane checks what every case must have, and that nothing is left on disk.
func sane(t *testing.T, o Options, r *Report, cases int) {
	t.Helper()
	if len(r.Cases) != cases {
		t.Errorf("%d cases, want %d", len(r.Cases), cases)
	}
	for _, c := range r.Cases {
		for _, f := range []*Figure{c.Product, c.Ceiling} {
			if len(f.Rounds) != o.Rounds {
				t.Errorf("%s: %d rounds of %s, want %d", c.title(), len(f.Rounds), f.Name, o.Rounds)
			}
			for i, s := range f.Rounds {
				if s.Count < 1 || s.Seconds <= 0 || s.Value <= 0 {
					t.Errorf("%s: %s, round %d: %+v", c.title(), f.Name, i+1, s)
				}
			}
			if v := f.Value; v.Low > v.Median || v.Median > v.High || v.Low <= 0 {
				t.Errorf("%s: %s: %+v", c.title(), f.Name, v)
			}
			if l := f.Latency; l != nil && (l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max) {
				t.Errorf("%s: %s: %+v", c.title(), f.Name, l)
			}
			for name, us := range f.CPU {
				if us <= 0 {
					t.Errorf("%s: %s: no processor time of %s", c.title(), f.Name, name)
				}
			}
		}
		if c.Ratio.Median <= 0 {
			t.Errorf("%s: ratio %+v", c.title(), c.Ratio)
		}
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v %v", left, err)
	}
}
