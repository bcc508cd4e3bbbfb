package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// withEcho runs use against the echo service.
func withEcho(t *testing.T, use func(ctx context.Context, l *load, echo *child)) {
	t.Helper()
	o, err := small(t).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Options: o, dir: o.Dir}
	s, err := b.open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	echo, err := s.part(t.Context(), "echo", childConfig{Kind: kindEcho, Answers: []int{10, 20, 30, 40, 50, 60, 70}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.newLoad(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	use(t.Context(), l, echo)
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// TestLoad: a load counts what it says it counts, and does not take just any
// answer, or none, for a good one.
func TestLoad(t *testing.T) {
	quick := shape{inFlight: 3, duration: 50 * time.Millisecond, border: func() {}}
	withEcho(t, func(ctx context.Context, l *load, echo *child) {
		got, err := l.run(ctx, quick)
		for ; err == nil && got.lifecycles < 1 && quick.duration < 10*time.Second; got, err = l.run(ctx, quick) {
			quick.duration *= 2 // the machine is busy
		}
		if err != nil {
			t.Fatal(err)
		}
		if got.lifecycles < 1 || got.answers < got.lifecycles*len(steps)-3*len(steps) || got.latency.N != got.answers || got.whole.N != got.lifecycles {
			t.Errorf("%+v", got)
		}
		for i, n := range l.answerSizes()[:transitions] {
			if n != 10*(i+1) {
				t.Errorf("answers to step %d have %d bytes, want %d", i, n, 10*(i+1))
			}
		}
		if len(l.free) != maxInFlight || l.open != 0 {
			t.Errorf("%d slots are free, %d lives open", len(l.free), l.open)
		}
		open := quick
		open.inFlight, open.rate = 0, 200
		most := int(10 * open.rate * open.duration.Seconds())
		if got, err := l.run(ctx, open); err != nil || got.lifecycles < 1 || got.lifecycles > most {
			t.Errorf("open loop: %+v, %v", got, err)
		}

		l.want[2] = []byte(`"event":"request.transfer_granted.v1"`)
		if _, err := l.run(ctx, quick); err == nil || !strings.Contains(err.Error(), "not what they must be, the first one: grant") {
			t.Errorf("an answer that is none: %v", err)
		}
		l.want[2] = nil

		if err := echo.pause(); err != nil {
			t.Fatal(err)
		}
		l.patience = 20 * time.Millisecond
		if _, err := l.run(ctx, quick); err == nil || !strings.Contains(err.Error(), "no answer in") {
			t.Errorf("a service that hangs: %v", err)
		}
		l.site.gone(echo)
		echo.kill()
		// The server takes a moment to notice, and what is sent meanwhile is answered
		// by nobody, not even by the server.
		l.patience = 200 * time.Millisecond
		for deadline := time.Now().Add(time.Minute); ; {
			l.mu.Lock()
			for i := range l.lives {
				if l.lives[i].calls[0].token != 0 || l.lives[i].calls[1].token != 0 {
					l.end(&l.lives[i], time.Now())
				}
			}
			l.mu.Unlock()
			_, err := l.run(ctx, quick)
			if err != nil && strings.Contains(err.Error(), "503") {
				break
			}
			if err == nil || time.Now().After(deadline) {
				t.Fatalf("nobody there: %v", err)
			}
		}
	})
}

// TestCheckingNotices: a log that was changed is no result.
func TestCheckingNotices(t *testing.T) {
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), siteNames)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ring.LogKey()
	if err != nil {
		t.Fatal(err)
	}
	lines := []byte("{}\n")
	for name, mac := range map[string]string{"event": events.MAC(key, 0, 0, lines), "MAC": "forged"} {
		r, err := checking(ring, 8, func(f func(*events.Envelope) error) error {
			return f(&events.Envelope{Partition: 0, Seq: 1, ID: "a", MAC: mac, Lines: lines})
		})
		if err == nil || r.Violations == 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestChild: a child that cannot start says why, and one that dies does not hang
// the one that measures.
func TestChild(t *testing.T) {
	o, err := small(t).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Options: o, dir: o.Dir}
	if _, err := b.start(t.Context(), "lc1", childConfig{Kind: kindLifecycle, Keys: filepath.Join(o.Dir, "nothing")}, nil); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("no keys: %v", err)
	}
	if _, err := b.start(t.Context(), "x", childConfig{Kind: "x"}, nil); err == nil || !strings.Contains(err.Error(), `kind "x"`) {
		t.Errorf("unknown kind: %v", err)
	}
	var url string
	c, err := b.start(t.Context(), "nats", childConfig{Kind: kindNATS, Dir: o.Dir, Keys: filepath.Join(o.Dir, "keys"), Names: siteNames}, &url)
	if err != nil || !strings.HasPrefix(url, "nats://127.0.0.1:") {
		t.Fatalf("%q, %v", url, err)
	}
	u, err := c.usage()
	if err != nil || u.CPU <= 0 || u.PeakRSS <= 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if err := c.cmd.Process.Signal(os.Kill); err != nil {
		t.Fatal(err)
	}
	if err := c.stop(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a killed child: %v", err)
	}
	if _, err := c.usage(); err == nil {
		t.Error("usage of a dead child")
	}
}
