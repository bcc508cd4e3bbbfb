package canary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

const (
	testContext = 1024
	testPool    = 512
	testReceipt = "7.0;q3Zcq3Zcq3Zcq3Zcq3Zcq3Zcq3Zcq3Zcq3Zcq3Zcq3Y"
)

// gate is a gateway and a cluster, in one piece: what the canary sees of both. By
// default it answers as the reference engine does, behind the right limits.
type gate struct {
	t      *testing.T
	url    string
	eng    engine.Engine
	name   string // of the engine, as workers register it
	bend   func(g *gate, w http.ResponseWriter, tenant, prompt string) bool
	count  func(prompt string) int
	sealed bool // quarantined

	mu       sync.Mutex
	prompts  []string // as they came
	history  map[string]events.Data
	commands []*events.Command
	limit    int // of prefill
}

func newGate(t *testing.T) *gate {
	t.Helper()
	eng, err := engine.New(engine.Config{Name: "ref", ContextTokens: testContext})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, eng: eng, name: "ref", history: map[string]events.Data{}, limit: testPool, count: func(p string) int { return len(p) }}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	g.url = s.URL
	return g
}

// id notes the request and what happened to it.
func (g *gate) id(w http.ResponseWriter, d events.Data) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", len(g.history))
	g.history[id] = d
	w.Header().Set("X-Request-Id", id)
	w.Header().Set("Pdgate-Receipt", testReceipt)
}

func (g *gate) refuse(w http.ResponseWriter, status int, code events.Code) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "message": "no"}})
}

func (g *gate) answer(w http.ResponseWriter, text string, tokens int) {
	g.id(w, &events.RequestAdmitted{Model: "m", Gateway: "gw1"})
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"text": text}}, "usage": map[string]any{"prompt_tokens": tokens}})
}

func (g *gate) right(prompt string) string {
	out, _, err := engine.Complete(context.WithoutCancel(g.t.Context()), g.eng, []byte(prompt), engine.Sampling{MaxTokens: most})
	if err != nil {
		g.t.Errorf("the reference: %v", err)
	}
	return string(out)
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt string `json:"prompt"`
		Max    int    `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/completions" {
		g.t.Errorf("%s: %v", r.URL.Path, err)
	}
	tenant := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer key-")
	if tenant != "a" && tenant != "b" {
		g.refuse(w, http.StatusUnauthorized, events.CodeInvalidAPIKey)
		return
	}
	g.mu.Lock()
	g.prompts = append(g.prompts, body.Prompt)
	limit := g.limit
	g.mu.Unlock()
	if g.bend != nil && g.bend(g, w, tenant, body.Prompt) {
		return
	}
	n := g.count(body.Prompt)
	if n > limit || n+body.Max > testContext {
		g.id(w, &events.RequestRejected{Error: *events.ContextExceeded("prompt", n, limit), Stage: "admission", Model: "m"})
		g.refuse(w, http.StatusBadRequest, events.CodeContextLength)
		return
	}
	if g.name == "ref" {
		g.answer(w, g.right(body.Prompt), n)
		return
	}
	g.answer(w, "it is "+sentinelForm.FindString(body.Prompt), n)
}

func (g *gate) Info(context.Context) (*events.InfoView, error) {
	return &events.InfoView{Models: []events.ModelView{{Model: "m", PrefillNodes: 1, DecodeNodes: 1, Quarantined: g.sealed}, {Model: "idle"}}}, nil
}

func (g *gate) Workers(context.Context) (*events.WorkersView, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &events.WorkersView{Workers: []events.WorkerView{
		node("p1", events.RolePrefill, g.name, g.limit, testContext), node("d1", events.RoleDecode, g.name, 2*testContext, testContext),
	}}, nil
}

func node(name string, role events.Role, engine string, pool, context int) events.WorkerView {
	return events.WorkerView{Live: true, WorkerJoined: events.WorkerJoined{Worker: name, Role: role, Model: "m", Engine: engine, ContextTokens: context, PoolPages: pool / 64, PageTokens: 64}}
}

func (g *gate) History(_ context.Context, id string) (*events.HistoryView, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.history[id]
	if !ok {
		return nil, events.NewError(events.CodeNotFound, "no such request")
	}
	b, err := events.Append(nil, &events.Event{ID: id + ".1", Source: "/test", Type: d.EventType(), Subject: id, N: 1, Time: time.Unix(1, 0), Data: d})
	if err != nil {
		return nil, err
	}
	return &events.HistoryView{RequestID: id, Events: []json.RawMessage{b}, Positions: []string{"7.0"}}, nil
}

func (g *gate) Do(_ context.Context, c *events.Command) (*events.Answer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commands = append(g.commands, c)
	return &events.Answer{Subject: c.Subject, Position: "9.0"}, nil
}

// sent returns the commands that were sent, by type.
func (g *gate) sent(t events.CommandType) (all []*events.Command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.commands {
		if c.Type == t {
			all = append(all, c)
		}
	}
	return all
}

func (g *gate) run(change func(*Config)) (*Report, error) {
	g.t.Helper()
	cfg := Config{Gateway: g.url, Tenants: []Tenant{{"a", "key-a"}, {"b", "key-b"}}, Cluster: g, Timeout: time.Minute, Fills: 2}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	return c.Run(g.t.Context(), "m")
}

func list(r *Report) string {
	var b strings.Builder
	_ = r.Print(&b)
	return b.String()
}

// TestClean: both tenants ask at and above each limit, and beside pages; the run
// is recorded.
func TestClean(t *testing.T) {
	g := newGate(t)
	r, err := g.run(nil)
	if err != nil || r.Verdict != events.CanaryClean || r.Quarantined || r.Position != "9.0" {
		t.Fatalf("%v\n%s", err, list(r))
	}
	seen := map[string]Outcome{}
	for _, x := range r.Results {
		seen[fmt.Sprintf("%s %d", x.Tenant, x.Tokens)] = x.Outcome
	}
	for _, want := range []string{"a 512 PASS", "b 512 PASS", "a 513 REFUSED", "b 513 REFUSED", "a 511 PASS", "b 127 PASS", "b 128 PASS", "b 129 PASS", "a 977 REFUSED", "a 2001 REFUSED"} {
		i := strings.LastIndexByte(want, ' ')
		if string(seen[want[:i]]) != want[i+1:] {
			t.Errorf("want %s, have %v", want, seen)
		}
	}
	ran := g.sent(events.CmdCanary)
	if len(ran) != 1 || len(g.sent(events.CmdQuarantine)) != 0 {
		t.Fatalf("commands %v", g.commands)
	}
	d := ran[0].Data.(*events.Canary)
	if d.Passed != r.count(Pass) || d.Refused != r.count(Refused) || d.Passed == 0 || d.Refused == 0 || !strings.Contains(d.Lengths, "513+48") || d.Evidence != "" {
		t.Errorf("%+v", d)
	}
	// No sentinel was used twice.
	sentinels := map[string]bool{}
	for _, p := range g.prompts {
		s := sentinelForm.FindString(p)
		if s == "" || sentinels[s] {
			t.Errorf("prompt with sentinel %q", s)
		}
		sentinels[s] = true
	}
}

// TestOutcomes bends the gateway, one thing at a time.
func TestOutcomes(t *testing.T) {
	text := func(f func(g *gate, tenant, prompt string) (string, bool)) func(*gate, http.ResponseWriter, string, string) bool {
		return func(g *gate, w http.ResponseWriter, tenant, prompt string) bool {
			s, ok := f(g, tenant, prompt)
			if ok {
				g.answer(w, s, len(prompt))
			}
			return ok
		}
	}
	once := func() func() bool {
		var mu sync.Mutex
		used := false
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			was := used
			used = true
			return !was
		}
	}
	first := once()
	status := func(code int, c events.Code, d events.Data, above bool) func(*gate, http.ResponseWriter, string, string) bool {
		return func(g *gate, w http.ResponseWriter, _, prompt string) bool {
			if len(prompt) > testPool != above {
				return false
			}
			if d != nil {
				g.id(w, d)
			}
			g.refuse(w, code, c)
			return true
		}
	}
	admitted := &events.RequestAdmitted{Model: "m", Gateway: "gw1"}
	byEngine := &events.RequestRejected{Error: *events.ContextExceeded("prompt", 513, 512), Stage: "engine", Model: "m"}
	for name, c := range map[string]struct {
		bend       func(*gate, http.ResponseWriter, string, string) bool
		verdict    string
		outcome    Outcome
		times      int    // 0: at least one
		quarantine string // what becomes of open requests; "": no quarantine
		detail     string
	}{
		"somebody else's": {text(func(g *gate, tenant, prompt string) (string, bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			return "the code word is " + sentinelForm.FindString(g.prompts[0]), tenant == "b" && len(prompt) <= testPool
		}), events.CanaryForeign, Foreign, 0, events.RunningCancel, "another probe's"},
		"a piece of somebody else's": {text(func(g *gate, tenant, prompt string) (string, bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			return sentinelForm.FindString(g.prompts[0])[7:18], tenant == "b" && len(prompt) <= testPool
		}), events.CanaryForeign, Foreign, 0, events.RunningCancel, "another probe's"},
		"an answer above the limit": {text(func(_ *gate, _, prompt string) (string, bool) { return "sure", len(prompt) > testPool }),
			events.CanaryWrong, Wrong, 2, events.RunningDrain, "was answered"},
		"a leak above the limit": {text(func(g *gate, _, prompt string) (string, bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			return sentinelForm.FindString(g.prompts[0]), len(prompt) > testPool
		}), events.CanaryForeign, Foreign, 1, events.RunningCancel, ""},
		"wrong once": {text(func(_ *gate, _, prompt string) (string, bool) { return "42", len(prompt) == 512 && first() }),
			events.CanaryWrong, Wrong, 1, "", "not the known one"},
		"wrong for ever": {text(func(_ *gate, _, prompt string) (string, bool) { return "42", len(prompt) == 512 }),
			events.CanaryWrong, Wrong, 0, events.RunningDrain, "not the known one"},
		"a misspelt sentinel is no foreign one": {text(func(_ *gate, _, prompt string) (string, bool) {
			s := []byte(sentinelForm.FindString(prompt))
			slices.Reverse(s[2:])
			return string(s), len(prompt) == 512
		}), events.CanaryWrong, Wrong, 0, events.RunningDrain, ""},
		"refused by the engine":          {status(400, events.CodeContextLength, byEngine, true), events.CanaryWrong, Wrong, 2, events.RunningDrain, "and the request was rejected"},
		"failed behind the gate":         {status(502, events.CodePoison, admitted, true), events.CanaryWrong, Wrong, 2, events.RunningDrain, "HTTP 502 kv_poisoned, and the request was admitted"},
		"turned away for another reason": {status(429, events.CodeRateLimit, nil, true), events.CanaryInconclusive, Unreachable, 0, "", "HTTP 429 rate_limit_exceeded"},
		"too busy":                       {status(503, events.CodeOverloaded, nil, false), events.CanaryInconclusive, Unreachable, 0, "", "HTTP 503 overloaded"},
		"refused within the limits":      {status(400, events.CodeContextLength, nil, false), events.CanaryInconclusive, Unreachable, 0, "", "HTTP 400"},
		"somebody else's in an error": {func(g *gate, w http.ResponseWriter, tenant, _ string) bool {
			g.mu.Lock()
			first := sentinelForm.FindString(g.prompts[0])
			g.mu.Unlock()
			if tenant == "b" {
				g.id(w, admitted)
				w.WriteHeader(http.StatusBadGateway)
				_, _ = w.Write([]byte(`{"error":{"message":"cannot decode ` + first + `","code":"decode_failed"}}`))
			}
			return tenant == "b"
		}, events.CanaryForeign, Foreign, 1, events.RunningCancel, ""},
		"no JSON": {func(_ *gate, w http.ResponseWriter, _, prompt string) bool {
			_, _ = w.Write([]byte("<html>" + prompt))
			return true
		}, events.CanaryInconclusive, Unreachable, 0, "", "HTTP 200, and no JSON"},
		"a redirect": {func(g *gate, w http.ResponseWriter, _, _ string) bool {
			w.Header().Set("Location", g.url)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}, events.CanaryInconclusive, Unreachable, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			g.bend = c.bend
			var logs bytes.Buffer
			var mu sync.Mutex
			r, err := g.run(func(cfg *Config) {
				cfg.Fills = 1
				cfg.Logger = slog.New(slog.NewTextHandler(locked{&mu, &logs}, nil))
			})
			if err != nil || r.Verdict != c.verdict || r.Quarantined != (c.quarantine != "") || r.count(c.outcome) == 0 || c.times > 0 && r.count(c.outcome) != c.times {
				t.Fatalf("%v, want %s and %d times %s\n%s", err, c.verdict, c.times, c.outcome, list(r))
			}
			if !slices.ContainsFunc(r.Results, func(x Result) bool { return x.Outcome == c.outcome && strings.Contains(x.Detail, c.detail) }) {
				t.Errorf("want %q\n%s", c.detail, list(r))
			}
			stops := g.sent(events.CmdQuarantine)
			if len(stops) > 0 != (c.quarantine != "") {
				t.Fatalf("quarantined: %v", stops)
			}
			if len(stops) > 0 {
				d := stops[0].Data.(*events.Quarantine)
				if d.Running != c.quarantine || len(strings.Fields(d.Evidence)) != min(r.count(Foreign)+r.count(Wrong), events.MaxEvidence) {
					t.Errorf("%+v\n%s", d, list(r))
				}
			}
			if len(g.sent(events.CmdCanary)) != 1 {
				t.Error("the run is not recorded")
			}
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			all := string(b) + list(r) + logs.String() + fmt.Sprint(g.commands)
			for _, p := range g.prompts {
				if strings.Contains(all, sentinelForm.FindString(p)) {
					t.Fatal("a sentinel is in the report, a log or a command")
				}
			}
			if strings.Contains(all, "key-a") || strings.Contains(all, "code word") {
				t.Error("a key or a prompt is in the report, a log or a command")
			}
		})
	}
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// TestStops: after a reason to quarantine nothing more is sent.
func TestStops(t *testing.T) {
	g := newGate(t)
	g.bend = func(g *gate, w http.ResponseWriter, _, prompt string) bool {
		g.answer(w, "42", len(prompt))
		return true
	}
	r, err := g.run(func(c *Config) { c.Fills = 1 })
	if err != nil || len(r.Results) != 2 || len(g.prompts) != 2 || !r.Quarantined {
		t.Errorf("%v %d prompts\n%s", err, len(g.prompts), list(r))
	}
}

// TestLimitsMove: a prompt that was above the limits when the run was planned, and
// is not any more when it is answered, says nothing.
func TestLimitsMove(t *testing.T) {
	g := newGate(t)
	g.bend = func(g *gate, w http.ResponseWriter, _, prompt string) bool {
		if len(prompt) != 513 {
			return false
		}
		g.mu.Lock()
		g.limit = testContext
		g.mu.Unlock()
		g.answer(w, g.right(prompt), len(prompt))
		return true
	}
	r, err := g.run(nil)
	if err != nil || r.Quarantined || r.count(Wrong) > 0 || !slices.ContainsFunc(r.Results, func(x Result) bool {
		return x.Tokens == 513 && x.Outcome == Unreachable && strings.Contains(x.Detail, "limits changed")
	}) {
		t.Errorf("%v\n%s", err, list(r))
	}
}

// TestOtherEngines: without a known engine the prompts are measured, and the
// answer must quote the sentinel; with an oracle it must be the oracle's.
func TestOtherEngines(t *testing.T) {
	words := func(p string) int { // a tokenizer of another kind: words, and pieces of long ones
		n := 1
		for _, w := range strings.Fields(p) {
			n += 1 + len(w)/6
		}
		return n
	}
	g := newGate(t)
	g.name, g.count = "vllm", words
	r, err := g.run(nil)
	if err != nil || r.Verdict != events.CanaryClean || r.count(Pass) < 4 || r.count(Refused) < 2 {
		t.Fatalf("%v\n%s", err, list(r))
	}
	oracle := newGate(t)
	oracle.name, oracle.count, oracle.limit = "vllm", words, testContext
	wants := func(with string) func(*gate, http.ResponseWriter, string, string) bool {
		return func(g *gate, w http.ResponseWriter, _, prompt string) bool {
			if words(prompt) > testPool {
				return false
			}
			g.answer(w, with+sentinelForm.FindString(prompt), words(prompt))
			return true
		}
	}
	open := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer key-a") // an engine asks for no key
		oracle.ServeHTTP(w, r)
	}))
	t.Cleanup(open.Close)
	oracle.bend = wants("yes ")
	g.bend = wants("yes ")
	if r, err = g.run(func(c *Config) { c.Oracle = open.URL }); err != nil || r.Verdict != events.CanaryClean {
		t.Errorf("as the oracle says: %v\n%s", err, list(r))
	}
	g.bend = wants("no ")
	if r, err = g.run(func(c *Config) { c.Oracle = open.URL }); err != nil || r.Verdict != events.CanaryWrong || !r.Quarantined {
		t.Errorf("not as the oracle says: %v\n%s", err, list(r))
	}
	open.Close()
	if r, err = g.run(func(c *Config) { c.Oracle = open.URL }); err != nil || r.Verdict != events.CanaryInconclusive {
		t.Errorf("without the oracle: %v\n%s", err, list(r))
	}
}

func TestNothingToProbe(t *testing.T) {
	g := newGate(t)
	g.sealed = true
	r, err := g.run(nil)
	if !errors.Is(err, ErrNoVerdict) || r.Verdict != events.CanaryInconclusive || len(g.commands) != 0 {
		t.Errorf("quarantined: %v %+v", err, r)
	}
	g.sealed = false
	if _, err := g.run(func(c *Config) { c.Tenants[1].Key = "other" }); err == nil || !strings.Contains(err.Error(), "tenant b: HTTP 401") {
		t.Errorf("a wrong key: %v", err)
	}
	g.limit = 64
	if _, err := g.run(nil); err == nil || !strings.Contains(err.Error(), "leave no room") {
		t.Errorf("a tiny pool: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, err := New(Config{Gateway: g.url, Tenants: []Tenant{{"a", "key-a"}, {"b", "key-b"}}, Cluster: g})
	if err != nil {
		t.Fatal(err)
	}
	g.limit = testPool
	g.bend = func(*gate, http.ResponseWriter, string, string) bool { cancel(); return false }
	if r, err := c.Run(ctx, "m"); !errors.Is(err, context.Canceled) || r.Quarantined || r.Verdict != events.CanaryInconclusive {
		t.Errorf("stopped: %v\n%s", err, list(r))
	}
	if ran := g.sent(events.CmdCanary); len(ran) == 0 || ran[len(ran)-1].Data.(*events.Canary).Verdict != events.CanaryInconclusive {
		t.Errorf("recorded: %+v", ran)
	}
	for name, bad := range map[string]Config{
		"no gateway": {Tenants: []Tenant{{"a", "1"}, {"b", "2"}}},
		"one tenant": {Gateway: "x", Tenants: []Tenant{{"a", "1"}}},
		"twice":      {Gateway: "x", Tenants: []Tenant{{"a", "1"}, {"a", "2"}}},
		"one key":    {Gateway: "x", Tenants: []Tenant{{"a", "1"}, {"b", "1"}}},
		"no key":     {Gateway: "x", Tenants: []Tenant{{"a", "1"}, {"b", ""}}},
		"no cluster": {Gateway: "x", Tenants: []Tenant{{"a", "1"}, {"b", "2"}}},
	} {
		if _, err := New(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
