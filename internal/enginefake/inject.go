package enginefake

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Fault is a fault that an [Injector] puts into a generation.
type Fault string

// The faults. The last three need an engine whose wire has them.
const (
	FaultStatus     Fault = "status"     // an error's status at once
	FaultDelay      Fault = "delay"      // a wait before anything is done
	FaultDisconnect Fault = "disconnect" // the connection is reset: before the work, or after it
	FaultTruncate   Fault = "truncate"   // the connection is reset in the middle of the answer
	FaultShorten    Fault = "shorten"    // the answer ends early, as if that were its end
	FaultRestart    Fault = "restart"    // the node restarts
	FaultNull       Fault = "null"       // the answer's kv_transfer_params are null
	FaultReuse      Fault = "reuse"      // they are those of an earlier answer
)

// Faults are all of them.
func Faults() []Fault {
	return []Fault{FaultStatus, FaultDelay, FaultDisconnect, FaultTruncate, FaultShorten, FaultRestart, FaultNull, FaultReuse}
}

// Injector bends the generations of one node at random. The k-th generation that
// reaches the node meets the same fault under the same seed. Nil bends nothing.
type Injector struct {
	rate  float64
	kinds []Fault

	mu      sync.Mutex
	off     bool              // under mu
	rand    *rand.Rand        // under mu
	counts  map[Fault]int     // under mu
	earlier []json.RawMessage // references that were returned; under mu
	restart func()            // under mu; set by the node
}

// NewInjector makes an injector that hits a share of the generations, with faults
// out of kinds.
func NewInjector(seed uint64, rate float64, kinds ...Fault) *Injector {
	return &Injector{rate: rate, kinds: kinds, rand: rand.New(rand.NewPCG(seed, 1)), counts: map[Fault]int{}}
}

// Counts is how often each fault came.
func (i *Injector) Counts() map[Fault]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.counts)
}

// Stop ends the faults: from here on the node is well.
func (i *Injector) Stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.off = true
}

// OnRestart names what restarts the node. It must not wait for the request that
// is being served.
func (i *Injector) OnRestart(f func()) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.restart = f
}

// plan is what happens to one request.
type plan struct {
	fault   Fault // empty: nothing
	status  int
	delay   time.Duration
	after   bool // of FaultDisconnect: the work is done
	bytes   int  // of the answer that come through
	restart func()
}

func (i *Injector) plan() plan {
	i.mu.Lock()
	defer i.mu.Unlock()
	// Drawn whether used or not, so that the k-th request does not depend on what
	// became of the others.
	hit, kind := i.rand.Float64() < i.rate, i.rand.IntN(max(1, len(i.kinds)))
	p := plan{
		status:  []int{400, 404, 429, 500, 502, 503, 504}[i.rand.IntN(7)],
		delay:   time.Duration(i.rand.IntN(20)) * time.Millisecond,
		after:   i.rand.IntN(2) == 0,
		bytes:   i.rand.IntN(600),
		restart: i.restart,
	}
	if hit && !i.off && len(i.kinds) > 0 {
		p.fault = i.kinds[kind]
		i.counts[p.fault]++
	}
	return p
}

func (i *Injector) serve(h http.Handler, w http.ResponseWriter, r *http.Request) {
	if i == nil || !generates(r.URL.Path) {
		h.ServeHTTP(w, r)
		return
	}
	p := i.plan()
	switch p.fault {
	case FaultStatus:
		message := "injected status"
		WriteJSON(w, p.status, map[string]any{
			"object": "error", "message": message, "code": p.status, "error": map[string]any{"message": message, "code": p.status},
		})
	case FaultDisconnect:
		if p.after {
			h.ServeHTTP(&cut{ResponseWriter: w, quiet: true}, r)
		}
		panic(http.ErrAbortHandler)
	case FaultTruncate, FaultShorten:
		h.ServeHTTP(&cut{ResponseWriter: w, left: p.bytes, quiet: p.fault == FaultShorten}, r)
	case FaultRestart:
		if p.restart != nil {
			p.restart()
		}
		h.ServeHTTP(w, r)
	case FaultDelay:
		_ = Sleep(r.Context(), System{}, p.delay) // a client that has left is the handler's
		h.ServeHTTP(w, r)
	default:
		i.reference(p, h, w, r)
	}
}

func generates(path string) bool {
	switch path {
	case "/generate", "/v1/completions", "/v1/chat/completions":
		return true
	}
	return false
}

// reference remembers an answer's kv_transfer_params, or changes them.
func (i *Injector) reference(p plan, h http.Handler, w http.ResponseWriter, r *http.Request) {
	prefill := &held{header: http.Header{}}
	if b, ok := w.(*recorder); !ok || !bytes.Contains(b.seen.Body, []byte(`"do_remote_decode":true`)) {
		h.ServeHTTP(w, r)
		return
	}
	h.ServeHTTP(prefill, r)
	var body map[string]json.RawMessage
	if json.Unmarshal(prefill.body.Bytes(), &body) == nil && len(body["kv_transfer_params"]) > len("null") {
		own := body["kv_transfer_params"]
		i.mu.Lock()
		switch {
		case p.fault == FaultNull:
			body["kv_transfer_params"] = json.RawMessage("null")
		case p.fault == FaultReuse && len(i.earlier) > 0:
			body["kv_transfer_params"] = i.earlier[p.bytes%len(i.earlier)]
		}
		i.earlier = append(i.earlier, own)
		i.mu.Unlock()
		if b, err := json.Marshal(body); err == nil {
			prefill.body = *bytes.NewBuffer(b)
		}
	}
	maps.Copy(w.Header(), prefill.header)
	w.WriteHeader(max(prefill.status, http.StatusOK))
	_, _ = w.Write(prefill.body.Bytes()) // a client that has left reads nothing
}

// held is an answer that has not been sent.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (h *held) Header() http.Header { return h.header }

// WriteHeader implements [http.ResponseWriter].
func (h *held) WriteHeader(status int) { h.status = status }

// Write implements [http.ResponseWriter].
func (h *held) Write(b []byte) (int, error) { return h.body.Write(b) }

// cut lets the first bytes of an answer through.
type cut struct {
	http.ResponseWriter
	left  int
	quiet bool // the rest is dropped, and the connection stays
}

// Unwrap is for [http.ResponseController].
func (c *cut) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write implements [http.ResponseWriter].
func (c *cut) Write(b []byte) (int, error) {
	n := min(c.left, len(b))
	c.left -= n
	if n > 0 {
		if _, err := c.ResponseWriter.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	if n < len(b) && !c.quiet {
		_ = http.NewResponseController(c.ResponseWriter).Flush() // what was written arrives
		panic(http.ErrAbortHandler)
	}
	return len(b), nil
}
