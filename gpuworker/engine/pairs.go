package engine

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Defaults of [PairsConfig].
const (
	DefaultPairFailures = 3
	DefaultPairWindow   = time.Minute
	DefaultPairCooldown = time.Minute
)

// PairsConfig describes Pairs.
type PairsConfig struct {
	Failures int           // that bar a pair; 0: 3
	Window   time.Duration // within which they count; 0: 1 min
	Cooldown time.Duration // for which the pair is barred; 0: 1 min
	Clock    func() time.Time
	Logger   *slog.Logger
}

// Pairs remembers which prefill and decode workers fail together: a link between
// two engines may be broken while both work with others. A pair that fails too
// often takes no work together for a while; then one request tries it again. Its
// methods may be called concurrently, and on nil, which remembers nothing.
type Pairs struct {
	cfg PairsConfig

	mu    sync.Mutex
	pairs map[pairName]*pairState
}

type pairName struct{ prefill, decode string }

type pairState struct {
	failed []time.Time // within the window
	until  time.Time   // of the bar; zero: none
	bars   int
}

// PairStat is one pair's record.
type PairStat struct {
	Prefill, Decode string
	Failures        int       // within the window
	Bars            int       // how often it was barred
	Until           time.Time // zero: it is not barred
}

// NewPairs makes a memory of pairs.
func NewPairs(cfg PairsConfig) *Pairs {
	cfg.Failures = cmp.Or(cfg.Failures, DefaultPairFailures)
	cfg.Window = cmp.Or(cfg.Window, DefaultPairWindow)
	cfg.Cooldown = cmp.Or(cfg.Cooldown, DefaultPairCooldown)
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pairs{cfg: cfg, pairs: make(map[pairName]*pairState)}
}

// Failed counts a failure of the two together.
func (p *Pairs) Failed(prefill, decode string) {
	if p == nil || prefill == "" {
		return
	}
	now := p.cfg.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.pairs[pairName{prefill, decode}]
	if s == nil {
		s = &pairState{}
		p.pairs[pairName{prefill, decode}] = s
	}
	s.failed = append(slices.DeleteFunc(s.failed, func(t time.Time) bool { return now.Sub(t) > p.cfg.Window }), now)
	// After a bar a single failure renews it: the pair was on trial.
	trial := !s.until.IsZero()
	if len(s.failed) < p.cfg.Failures && !trial || now.Before(s.until) {
		return
	}
	s.until, s.failed = now.Add(p.cfg.Cooldown), nil
	s.bars++
	p.cfg.Logger.Error("pair of workers is quarantined", "prefill", prefill, "decode", decode, "cooldown", p.cfg.Cooldown, "times", s.bars)
}

// Worked says that the two served a request together.
func (p *Pairs) Worked(prefill, decode string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.pairs[pairName{prefill, decode}]; s != nil && !p.cfg.Clock().Before(s.until) {
		s.failed, s.until = nil, time.Time{}
	}
}

// Barred says whether the two take no work together now.
func (p *Pairs) Barred(prefill, decode string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.pairs[pairName{prefill, decode}]
	return s != nil && p.cfg.Clock().Before(s.until)
}

// Any says whether some pair of the decode worker is barred.
func (p *Pairs) Any(decode string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	for n, s := range p.pairs {
		if n.decode == decode && now.Before(s.until) {
			return true
		}
	}
	return false
}

// Stats lists the pairs that failed.
func (p *Pairs) Stats() []PairStat {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	var out []PairStat
	for n, s := range p.pairs {
		x := PairStat{Prefill: n.prefill, Decode: n.decode, Failures: len(s.failed), Bars: s.bars}
		if now.Before(s.until) {
			x.Until = s.until
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b PairStat) int {
		return cmp.Or(cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.Decode, b.Decode))
	})
	return out
}
