package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine"
)

// A request of this bench: short, so that what is added shows.
const (
	gatewayPrompt = 512 // tokens
	gatewayMost   = 64
	gatewayPace   = 200 // tokens a second of the engine that takes its time
)

// gatewayInFlight are the loads: one request alone, and some at once.
var gatewayInFlight = []int{1, 16}

// flavour is one of the engines of this bench. Both compute nothing, so that
// what is left is what is added. One says everything at once: what counts is the
// time to its first token, and how many requests go through. The other takes its
// time, as a model does: what counts is how late each token arrives.
type flavour struct {
	paced  bool
	speeds Speeds
}

var flavours = []flavour{{false, Speeds{}}, {true, Speeds{Decode: gatewayPace}}}

// gatewaySide is one thing that is asked: pdgate, or what it is compared with.
type gatewaySide struct {
	Stack
	said *saidTimes
}

// gateway sends streamed completions through every part of pdgate, beside a
// reverse proxy in front of the same engine.
func (b *bench) gateway(ctx context.Context) error {
	if b.Stack == nil {
		return errors.New("nobody runs the stack")
	}
	loads := gatewayInFlight
	if b.Concurrency > 0 {
		loads = []int{b.Concurrency}
	}
	cfg := engine.Config{Name: "ref", Model: loadModel, ContextTokens: 8192, Threads: 1}
	bare := map[bool]gatewaySide{}
	for _, f := range flavours {
		side := gatewaySide{said: newSaidTimes()}
		var stop func()
		var err error
		if side.URL, stop, err = serveBare(side.said.engine(cfg, f.speeds)); err != nil {
			return err
		}
		defer stop()
		bare[f.paced] = side
	}
	type setup struct {
		fsync                  bool
		inFlight               int
		first, requests, token *Case
	}
	var all []*setup
	const other = "reverse proxy before the engine"
	for _, fsync := range b.Fsync {
		for _, n := range loads {
			p := map[string]string{"fsync": onOff(fsync), "in flight": strconv.Itoa(n)}
			note := fmt.Sprintf("%d tokens in, %d out, an engine that computes nothing; both sides, client and engine are in this process", gatewayPrompt, gatewayMost)
			all = append(all, &setup{fsync, n,
				b.add(newCase("gateway", "time to first token", p, "pdgate", other, unitMillis, note, "the value is p50")),
				b.add(newCase("gateway", "requests", p, "pdgate", other, "requests/s", note)),
				b.add(newCase("gateway", "each token", p, "pdgate", other, unitMicros, note,
					fmt.Sprintf("from the engine's emission to the client, of each token after the first, at %d tokens a second; the value is p50; CPU is of the whole process, for each token", gatewayPace)))})
		}
	}
	// All stacks stand at once, and idle while another one is measured, so that
	// rounds can change between them.
	sides := map[bool]map[bool]gatewaySide{true: {}, false: {}}
	return b.stacks(ctx, cfg, sides, 0, func(ctx context.Context) error {
		for round := range b.Rounds {
			for _, x := range all {
				b.Progress("gateway: round %d of %d, fsync %s, %d in flight", round+1, b.Rounds, onOff(x.fsync), x.inFlight)
				p, c, err := b.bothStreams(ctx, round, sides[x.fsync][false], bare[false], x.inFlight)
				if err != nil {
					return err
				}
				x.requests.add(p.requests, c.requests)
				x.first.add(p.first, c.first)
				if p, c, err = b.bothStreams(ctx, round, sides[x.fsync][true], bare[true], x.inFlight); err != nil {
					return err
				}
				x.token.add(p.token, c.token)
			}
		}
		return nil
	})
}

// stacks runs one stack for each durability and flavour, one inside the other.
func (b *bench) stacks(ctx context.Context, eng engine.Config, sides map[bool]map[bool]gatewaySide, at int, use func(context.Context) error) error {
	if at == len(b.Fsync)*len(flavours) {
		return use(ctx)
	}
	fsync, f := b.Fsync[at/len(flavours)], flavours[at%len(flavours)]
	said := newSaidTimes()
	cfg := StackConfig{
		Dir: filepath.Join(b.dir, "gateway-"+strconv.Itoa(at)), Fsync: fsync, Replicas: 1, Engine: eng, Prefill: 1, Decode: 1,
		PrefillTokens: 1 << 17, DecodeTokens: 1 << 17, Concurrency: 64, Logger: b.Logger,
		Wrap: func(string, engine.Engine) engine.Engine { return said.engine(eng, f.speeds) },
	}
	return b.Stack(ctx, cfg, func(ctx context.Context, s Stack) error {
		sides[fsync][f.paced] = gatewaySide{s, said}
		return b.stacks(ctx, eng, sides, at+1, use)
	})
}

// streamSamples are one load's figures.
type streamSamples struct{ requests, first, token Sample }

func (b *bench) bothStreams(ctx context.Context, round int, product, ceiling gatewaySide, inFlight int) (p, c streamSamples, err error) {
	_, _, err = alternate(round,
		func() (_ Sample, err error) { p, err = b.streams(ctx, product, inFlight); return Sample{}, err },
		func() (_ Sample, err error) { c, err = b.streams(ctx, ceiling, inFlight); return Sample{}, err })
	return p, c, err
}

// streams keeps so many requests in flight for the time of a measurement.
func (b *bench) streams(ctx context.Context, side gatewaySide, inFlight int) (out streamSamples, err error) {
	client, idle := newClient()
	defer idle()
	var mu sync.Mutex
	var first, token Recorder
	one := func() error {
		prompt := side.said.prompt()
		body, err := json.Marshal(completion{Model: loadModel, Prompt: prompt, MaxTokens: gatewayMost, Stream: true})
		if err != nil {
			return err
		}
		var arrived [gatewayMost + 1]time.Time
		have := 0
		s, err := stream(ctx, client, side.URL, side.Key, body, time.Now(), func(n int, at time.Time) {
			for ; have < min(n, gatewayMost); have++ {
				arrived[have+1] = at
			}
		})
		switch {
		case err != nil:
			return err
		case s.status != http.StatusOK || s.code != "" || s.bytes != gatewayMost:
			return fmt.Errorf("HTTP %d %s, %d bytes: want %d tokens", s.status, s.code, s.bytes, gatewayMost)
		}
		said := side.said.take(prompt)
		mu.Lock()
		defer mu.Unlock()
		first.Add(s.first)
		for i := 2; i <= gatewayMost; i++ { // the first one waits for more than its way
			token.Add(arrived[i].Sub(said[i]))
		}
		return nil
	}
	for range min(4, 2*inFlight) { // connections, caches
		if err := one(); err != nil {
			return out, err
		}
	}
	first, token = Recorder{}, Recorder{}
	out.requests, err = inProcess(func() (int, float64, error) {
		start := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, inFlight)
		for i := range inFlight {
			wg.Go(func() {
				for n := 0; errs[i] == nil && (n == 0 || time.Since(start) < b.Duration); n++ {
					errs[i] = one()
				}
			})
		}
		wg.Wait()
		return len(first.d), time.Since(start).Seconds(), errors.Join(errs...)
	})
	if err != nil {
		return out, err
	}
	of := func(r *Recorder, scale float64) Sample {
		l := r.Latency()
		s := Sample{Value: l.P50 * scale, Count: l.N, Seconds: out.requests.Seconds, Latency: l, CPU: map[string]float64{}}
		for name, us := range out.requests.CPU {
			s.CPU[name] = us * float64(out.requests.Count) / float64(l.N)
		}
		return s
	}
	out.first, out.token = of(&first, 1e-3), of(&token, 1)
	return out, nil
}

// saidTimes notes when a fake engine emitted each token, by the tag that its
// prompt, and so its output, begins with.
type saidTimes struct {
	mu   sync.Mutex
	next int
	at   map[string]*[gatewayMost + 1]time.Time // index i: when i tokens were out
}

const tagBytes = 12

func newSaidTimes() *saidTimes { return &saidTimes{at: map[string]*[gatewayMost + 1]time.Time{}} }

func (s *saidTimes) engine(cfg engine.Config, speeds Speeds) engine.Engine {
	e := newFakeEngine(cfg, speeds, nil)
	e.said = func(out []byte, until int, when time.Time) {
		if len(out) != gatewayMost {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		t := s.at[string(out[:tagBytes])]
		for i := min(until, gatewayMost); t != nil && i > 0 && t[i].IsZero(); i-- {
			t[i] = when
		}
	}
	return e
}

// prompt is one that nobody has sent.
func (s *saidTimes) prompt() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	b := fmt.Appendf(nil, "%0*d", tagBytes, s.next)
	s.at[string(b)] = &[gatewayMost + 1]time.Time{}
	for len(b) < gatewayPrompt {
		b = append(b, byte('a'+len(b)%26))
	}
	return string(b)
}

// take ends a prompt, and returns its times.
func (s *saidTimes) take(prompt string) *[gatewayMost + 1]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.at[prompt[:tagBytes]]
	delete(s.at, prompt[:tagBytes])
	return t
}
