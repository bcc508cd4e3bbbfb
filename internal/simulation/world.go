package simulation

import (
	"bytes"
	"container/heap"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// world is one run.
type world struct {
	cfg    Config
	faults Faults // that happen in this run
	odds   odds
	rnd    *rand.Rand
	now    time.Time
	begun  time.Time
	calm   bool
	looked time.Time // whether all is settled; not before this
	due    deliveries
	made   int
	names  int

	partitions int
	queueLimit int
	grantKey   ed25519.PrivateKey
	secret     []byte
	logKey     []byte

	log      *stream
	queues   map[events.Role]*queue
	calls    map[string]*call // by inbox
	replicas []*replica
	workers  []*worker
	gateways []*gate
	clients  []*client
	thief    *thief
	plane    map[string]*host // the data plane: address -> who listens there
	engines  map[string]engine.Engine

	answers    []events.Answer
	served     map[string]int // request and grant epoch -> how often it was opened
	transcript bytes.Buffer
	violations []Violation
	stopped    map[string]int
	seen       map[string]int
}

// The phases of a run.
const (
	arrivals = 6 * time.Second  // clients come
	storm    = 10 * time.Second // things fail
	most     = 150 * time.Second

	lookEvery = 250 * time.Millisecond
)

// Run is one run. It depends on nothing but its configuration.
func Run(cfg Config) (result *Result) {
	w := newWorld(cfg)
	defer func() {
		if p := recover(); p != nil {
			w.breach(RulePanic, "%v", p)
			w.say("%s", debug.Stack())
		}
		result = w.result()
	}()
	w.populate()
	w.run()
	w.judge()
	return nil
}

// run has things happen until nothing is left to, or it takes too long.
func (w *world) run() {
	for len(w.due) > 0 && len(w.violations) < 50 {
		d := heap.Pop(&w.due).(delivery)
		w.now = d.at
		d.f()
		if w.calm && w.settled() || w.now.Sub(w.begun) > most {
			break
		}
	}
}

func newWorld(cfg Config) *world {
	w := &world{
		cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x5eed)),
		begun:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		secret: []byte("the cluster's digest secret, 32 bytes and more"), logKey: []byte("the log's key of the simulation"),
		calls: map[string]*call{}, plane: map[string]*host{}, served: map[string]int{},
		stopped: map[string]int{}, seen: map[string]int{},
	}
	w.now = w.begun
	w.grantKey = keyOf("lifecycle")
	w.draw()
	w.log = newStream(w)
	w.queues = map[events.Role]*queue{}
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		w.queues[role] = &queue{w: w, role: role, ids: map[string]bool{}}
	}
	w.engines = newEngines()
	return w
}

func keyOf(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

// populate starts everybody.
func (w *world) populate() {
	for i := range 1 + w.rnd.IntN(3) {
		r := &replica{w: w, name: fmt.Sprintf("lc%d", i+1), life: &life{dead: true}}
		w.replicas = append(w.replicas, r)
		r.boot()
	}
	for i := range 1 + w.rnd.IntN(3) {
		w.workers = append(w.workers, newWorker(w, events.RolePrefill, fmt.Sprintf("p%d", i+1)))
	}
	for i := range 1 + w.rnd.IntN(3) {
		w.workers = append(w.workers, newWorker(w, events.RoleDecode, fmt.Sprintf("d%d", i+1)))
	}
	for i := range 2 {
		w.gateways = append(w.gateways, newGate(w, fmt.Sprintf("gw%d", i+1)))
	}
	w.thief = &thief{w: w, key: keyOf("thief")}
	for _, x := range w.workers {
		x.boot()
	}
	w.enroll()
	w.chaos()
	w.after(storm, w.becalm)
}

// chance is true with probability p; in the calm nothing fails.
func (w *world) chance(p float64) bool {
	return !w.calm && p > 0 && w.rnd.Float64() < p
}

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rnd.Int64N(int64(most-least)+1))
}

func (w *world) jitter() time.Duration { return w.between(0, 20*time.Millisecond) }

// delay is how long a message takes.
func (w *world) delay() time.Duration {
	switch x := w.rnd.Float64(); {
	case w.calm || x > w.odds.slow+w.odds.late:
		return w.between(50*time.Microsecond, 3*time.Millisecond)
	case x > w.odds.late:
		return w.between(3*time.Millisecond, 200*time.Millisecond)
	default:
		return w.between(200*time.Millisecond, 4*time.Second)
	}
}

// say writes a line of the transcript.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.transcript, "%9.4f ", w.now.Sub(w.begun).Seconds())
	fmt.Fprintf(&w.transcript, format, args...)
	w.transcript.WriteByte('\n')
}

// breach records a violation.
func (w *world) breach(rule, format string, args ...any) {
	v := Violation{rule, fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.say("VIOLATION %s", v)
}

// stop counts what a check stopped.
func (w *world) stop(who string, err error) {
	code := string(codeOf(err))
	w.stopped[who+": "+code]++
	w.say("stopped %s: %v", who, err)
}

func (w *world) result() *Result {
	h := sha256.Sum256(w.transcript.Bytes())
	return &Result{
		Seed: w.cfg.Seed, Violations: w.violations, Transcript: w.transcript.Bytes(), Hash: hex.EncodeToString(h[:8]),
		Stopped: w.stopped, Seen: w.seen,
	}
}
