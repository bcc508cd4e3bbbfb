package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// boastful is an engine that is registered with a longer input than it takes, as
// where a configuration and a pool differ: admission cannot know.
type boastful struct {
	engine.Engine
	claim int
}

// Info claims.
func (b boastful) Info() engine.Info {
	i := b.Engine.Info()
	i.MaxInputTokens = b.claim
	return i
}

// TestFaultyThousand sends a thousand prompts that the faulty engine refuses
// inside and replaces by a placeholder, among legal ones. Every one gets the
// original error, with limit and count, streamed or not; decode is never
// granted anything. The engine's limit is known at admission; then it is not;
// then the worker does not ask either.
func TestFaultyThousand(t *testing.T) {
	const (
		limit  = 512
		window = 2048
	)
	oversized := 1000
	if testing.Short() {
		oversized = 150
	}
	if underRace {
		oversized = 60
	}
	for _, c := range []struct {
		name    string
		change  func(*system)
		context bool // prompts may also exceed the context with their max_tokens
		stage   string
		denied  bool // prefilled was denied for its count
	}{
		{"admission", func(*system) {}, true, statemachine.StageAdmission, false},
		{"worker asks", func(s *system) { s.hooks.engine = claims(window) }, false, statemachine.StageEngine, false},
		{"tokens are counted", func(s *system) {
			s.hooks.engine = claims(window)
			s.guards.worker.NoRefusedCheck = true
		}, false, statemachine.StageEngine, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 2))
			s := newSystem(8)
			s.engine = engine.Config{Name: "faulty", Model: "m", ContextTokens: window, MaxInputTokens: limit, Threads: 1}
			s.prefill, s.decode, s.concurrency = 2, 2, 16
			s.prefillPool, s.decodePool = 16*window, 8*window
			c.change(s)
			eng, err := engine.New(s.engine)
			if err != nil {
				t.Fatal(err)
			}
			var orders []order
			for i := range oversized + oversized/4 {
				o := order{tenant: s.names[i%len(s.names)], most: 1 + r.IntN(24), stream: r.IntN(2) == 0}
				switch n := i - i/5; {
				case i%5 == 4:
					o.prompt = records(i, 1+r.IntN(limit))
				case n < 20: // just above
					o.prompt = records(i, limit+1+n/10)
				case n < 40: // up to the context
					o.prompt = records(i, window-o.most)
				case n < 60 && c.context: // over the edge of it, only with max_tokens
					o.prompt = records(i, window-o.most+1)
				default:
					o.prompt = records(i, limit+1+r.IntN(window-limit-o.most))
				}
				orders = append(orders, o)
			}
			r.Shuffle(len(orders), func(i, j int) { orders[i], orders[j] = orders[j], orders[i] })
			log := s.run(t, func(ctx context.Context) error {
				return s.together(ctx, 64, orders, func(ctx context.Context, o *order, r *reply) error {
					switch n := len(o.prompt); {
					case n <= limit:
						return o.right(ctx, eng, r)
					case n+o.most > window:
						return refusedAs(r, n+o.most, window)
					default:
						return refusedAs(r, n, limit)
					}
				})
			})
			s.clean(t, log, len(orders))
			refused := 0
			for i := range s.replies {
				id := s.replies[i].id
				if s.replies[i].status == http.StatusOK {
					continue
				}
				refused++
				ends := log.has(id, events.TypeRejected)
				if len(ends) != 1 || ends[0].Data.(*events.RequestRejected).Stage != c.stage {
					t.Errorf("want one rejection at %s: %s", c.stage, log.story(id))
				}
				for _, typ := range []events.Type{events.TypePrefilled, events.TypeTransferGranted, events.TypeTransferred, events.TypeDecoded} {
					if len(log.has(id, typ)) > 0 {
						t.Errorf("%s stands in the history of a refused request: %s", typ, log.story(id))
					}
				}
				if log.denied(id, events.CmdPrefilled, events.CodeTokenCountMismatch) != c.denied {
					t.Errorf("denied for its count: want %v: %s", c.denied, log.story(id))
				}
			}
			if refused != oversized {
				t.Errorf("%d requests were refused, want %d", refused, oversized)
			}
		})
	}
}

func claims(most int) func(string, engine.Engine) engine.Engine {
	return func(_ string, e engine.Engine) engine.Engine { return boastful{e, most} }
}

// refusedAs says what is wrong with a refusal that should name two numbers.
func refusedAs(r *reply, count, limit int) error {
	if r.status != http.StatusBadRequest || r.code != string(events.CodeContextLength) ||
		!strings.Contains(r.message, strconv.Itoa(count)+" tokens") || !strings.HasSuffix(r.message, "limit is "+strconv.Itoa(limit)) {
		return fmt.Errorf("%s, want 400 %s with %d and %d", r.problem(), events.CodeContextLength, count, limit)
	}
	for _, text := range r.texts {
		if text != "" {
			return fmt.Errorf("a refusal comes with %d bytes of text (request %s)", len(text), r.id)
		}
	}
	return nil
}
