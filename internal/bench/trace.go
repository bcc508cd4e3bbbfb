package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/traffic"
)

// TraceOptions say how a published trace is replayed.
type TraceOptions struct {
	Name   string    // of the trace, for the report
	Trace  io.Reader // in a form that package traffic reads
	Limit  int       // requests; 0: all of them
	Speed  float64   // how much faster time goes, for arrivals and for the fake engine; 0: 1
	Fsync  bool
	Engine string // "fake" or "ref"; "": fake
	Speeds Speeds // of the fake engine, before Speed

	Context         int // tokens; 0: 131,072
	Prefill, Decode int // workers; 0: 1
	PrefillTokens   int // pool of each, in tokens; 0: four contexts
	DecodeTokens    int
	Concurrency     int // of each worker; 0: 64
	QueueLimit      int // most requests that wait for prefill; 0: no limit
}

func (t TraceOptions) withDefaults() (TraceOptions, error) {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if t.Speed == 0 {
		t.Speed = 1
	}
	if t.Engine == "" {
		t.Engine = "fake"
	}
	set(&t.Context, engine.DefaultContextTokens)
	set(&t.Prefill, 1)
	set(&t.Decode, 1)
	set(&t.PrefillTokens, 4*t.Context)
	set(&t.DecodeTokens, 4*t.Context)
	set(&t.Concurrency, 64)
	switch {
	case t.Engine != "fake" && t.Engine != "ref":
		return t, fmt.Errorf("bench trace: engine %q is neither fake nor ref", t.Engine)
	case t.Speed < 0 || t.Limit < 0 || t.Speeds.Prefill < 0 || t.Speeds.Decode < 0:
		return t, errors.New("bench trace: speeds and limits are 0 or more")
	case t.Context < 1 || t.Prefill < 1 || t.Decode < 1 || t.PrefillTokens < 1 || t.DecodeTokens < 1 || t.Concurrency < 1 || t.QueueLimit < 0:
		return t, errors.New("bench trace: sizes are at least 1")
	}
	return t, nil
}

// Trace is what a replayed trace came to. Times are as measured: with a Speed of
// ten, ten times shorter than the trace's.
type Trace struct {
	Name          string  `json:"name"`
	Speed         float64 `json:"speed"`
	Fsync         bool    `json:"fsync"`
	Engine        string  `json:"engine"`
	PrefillSpeed  float64 `json:"prefill_tokens_per_second,omitempty"` // as run; 0: not limited
	DecodeSpeed   float64 `json:"decode_tokens_per_second,omitempty"`
	Prefill       int     `json:"prefill_workers"`
	Decode        int     `json:"decode_workers"`
	PrefillTokens int     `json:"prefill_pool_tokens"`
	DecodeTokens  int     `json:"decode_pool_tokens"`

	Requests     int            `json:"requests"`
	Completed    int            `json:"completed"`
	Rejected     map[string]int `json:"rejected,omitempty"` // by HTTP status and code
	Seconds      float64        `json:"seconds"`            // first arrival to last answer
	PromptTokens int            `json:"prompt_tokens"`      // of completed requests
	OutputTokens int            `json:"output_tokens"`
	RequestRate  float64        `json:"requests_per_second"`
	TokenRate    float64        `json:"output_tokens_per_second"`

	TTFT         *Latency `json:"time_to_first_token,omitempty"` // from the arrival that was meant
	Whole        *Latency `json:"request,omitempty"`
	Token        *Latency `json:"further_token,omitempty"` // a request's mean
	PrefillQueue *Latency `json:"prefill_queue_age,omitempty"`
	DecodeQueue  *Latency `json:"decode_queue_age,omitempty"` // hand-off included
	Late         *Latency `json:"sent_late,omitempty"`        // by this process itself

	Samples  []TraceSample `json:"samples"`
	Arrivals []TracePoint  `json:"arrivals"`
}

// TraceSample is the system at one instant.
type TraceSample struct {
	At       float64 `json:"at_seconds"`
	InFlight int     `json:"in_flight"`
	Waiting  int     `json:"waiting"`            // sent, and no prefill has begun
	Prefill  float64 `json:"prefill_pool_share"` // used, 0 to 1
	Decode   float64 `json:"decode_pool_share"`
}

// TracePoint is one completed request.
type TracePoint struct {
	At   float64 `json:"at_seconds"`
	TTFT float64 `json:"time_to_first_token_us"`
}

// RunTrace replays a trace against an in-process stack.
func RunTrace(ctx context.Context, o Options, t TraceOptions) (*Report, error) {
	t, err := t.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Stack == nil {
		return nil, errors.New("bench trace: nobody runs the stack")
	}
	return measure(ctx, o, func(ctx context.Context, b *bench) error {
		if err := b.trace(ctx, t); err != nil {
			return fmt.Errorf("bench trace: %w", err)
		}
		return nil
	})
}

// readTrace reads the arrivals before anything runs.
func readTrace(t TraceOptions) ([]traffic.Arrival, error) {
	var all []traffic.Arrival
	for a, err := range traffic.Read(t.Trace) {
		if err != nil {
			return nil, err
		}
		if a.OutputTokens == 0 {
			a.OutputTokens = 1 // an answer has at least one
		}
		if all = append(all, a); len(all) == t.Limit {
			break
		}
	}
	if len(all) == 0 {
		return nil, errors.New("trace: no line of it is a request")
	}
	return all, nil
}

func (b *bench) trace(ctx context.Context, t TraceOptions) error {
	arrivals, err := readTrace(t)
	if err != nil {
		return err
	}
	run := &traceRun{b: b, o: t, marks: newMarks(), rejected: map[string]int{}}
	cfg := engine.Config{Name: "ref", Model: loadModel, ContextTokens: t.Context, Threads: 1}
	speeds := Speeds{t.Speeds.Prefill * t.Speed, t.Speeds.Decode * t.Speed}
	stack := StackConfig{
		Dir: filepath.Join(b.dir, "stack"), Fsync: t.Fsync, Replicas: 1, Engine: cfg, Prefill: t.Prefill, Decode: t.Decode,
		PrefillTokens: t.PrefillTokens, DecodeTokens: t.DecodeTokens, Concurrency: t.Concurrency, QueueLimit: t.QueueLimit, Logger: b.Logger,
		Wrap: func(_ string, e engine.Engine) engine.Engine {
			if t.Engine == "ref" {
				return marked{e, run.marks}
			}
			return newFakeEngine(cfg, speeds, run.marks)
		},
	}
	return b.Stack(ctx, stack, func(ctx context.Context, s Stack) error {
		out, err := run.drive(ctx, s, arrivals)
		if err != nil {
			return err
		}
		out.Name, out.Speed, out.Fsync, out.Engine = t.Name, t.Speed, t.Fsync, t.Engine
		if t.Engine == "fake" {
			out.PrefillSpeed, out.DecodeSpeed = speeds.Prefill, speeds.Decode
		}
		out.Prefill, out.Decode, out.PrefillTokens, out.DecodeTokens = t.Prefill, t.Decode, t.PrefillTokens, t.DecodeTokens
		b.report.Trace = out
		return nil
	})
}

// traceRun is one replay.
type traceRun struct {
	b     *bench
	o     TraceOptions
	marks *marks

	mu                       sync.Mutex // guards all below
	sent, ended, refused     int
	rejected                 map[string]int
	input, output            int
	first, whole, each, late Recorder
	points                   []TracePoint
}

// drive sends every request when it is due, and samples meanwhile.
func (r *traceRun) drive(ctx context.Context, s Stack, arrivals []traffic.Arrival) (*Trace, error) {
	client, idle := newClient()
	defer idle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &Trace{Requests: len(arrivals), Rejected: r.rejected}
	start := time.Now()
	span := time.Duration(float64(arrivals[len(arrivals)-1].At) / r.o.Speed)
	r.b.Progress("trace: %d requests in %v", len(arrivals), span.Round(time.Millisecond))
	sampling, stop := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() { out.Samples = r.sample(sampling, s, start, max(span/400, 20*time.Millisecond)) })
	var wg sync.WaitGroup
	for i := range arrivals {
		a := &arrivals[i]
		due := start.Add(time.Duration(float64(a.At) / r.o.Speed))
		if pause(ctx, time.Until(due)) != nil {
			break
		}
		r.mu.Lock()
		r.sent++
		r.late.Add(time.Since(due))
		r.mu.Unlock()
		wg.Go(func() {
			if err := r.one(ctx, client, s, a, start, due); err != nil {
				cancel(fmt.Errorf("trace line %d: %w", a.Line, err))
			}
		})
		if (i+1)%1000 == 0 {
			r.b.Progress("trace: %d requests sent", i+1)
		}
	}
	wg.Wait()
	out.Seconds = time.Since(start).Seconds()
	stop()
	sampler.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	out.Completed, out.PromptTokens, out.OutputTokens = len(r.points), r.input, r.output
	out.RequestRate, out.TokenRate = float64(len(r.points))/out.Seconds, float64(r.output)/out.Seconds
	out.TTFT, out.Whole, out.Token, out.Late = r.first.Latency(), r.whole.Latency(), r.each.Latency(), r.late.Latency()
	r.marks.mu.Lock()
	defer r.marks.mu.Unlock()
	out.PrefillQueue, out.DecodeQueue = r.marks.prefill.Latency(), r.marks.decode.Latency()
	out.Arrivals = r.points
	return out, nil
}

// one sends a request. What pdgate refuses is a result; what breaks is an error.
func (r *traceRun) one(ctx context.Context, client *http.Client, s Stack, a *traffic.Arrival, start, due time.Time) error {
	body, err := json.Marshal(completion{Model: loadModel, Prompt: string(a.Prompt()), MaxTokens: a.OutputTokens, Stream: true})
	if err != nil {
		return err
	}
	got, err := stream(ctx, client, s.URL, s.Key, body, due, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	switch {
	case err != nil:
		return err
	case got.status != http.StatusOK || got.code != "":
		r.rejected[strconv.Itoa(got.status)+" "+got.code]++
		r.refused++
		return nil
	case got.bytes == 0:
		return errors.New("an answer without text")
	}
	r.input, r.output = r.input+a.PromptTokens, r.output+a.OutputTokens
	r.first.Add(got.first)
	r.whole.Add(got.last)
	if a.OutputTokens > 1 {
		r.each.Add((got.last - got.first) / time.Duration(a.OutputTokens-1))
	}
	r.points = append(r.points, TracePoint{At: due.Sub(start).Seconds(), TTFT: micros(got.first)})
	return nil
}

// sample looks at the system until ctx ends.
func (r *traceRun) sample(ctx context.Context, s Stack, start time.Time, every time.Duration) []TraceSample {
	var all []TraceSample
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		pages, used := map[events.Role]int{}, map[events.Role]int{}
		for _, p := range s.Pools() {
			pages[p.Role] += p.Pages
			used[p.Role] += p.Used
		}
		share := func(role events.Role) float64 { return float64(used[role]) / float64(max(1, pages[role])) }
		begun := r.marks.count()
		r.mu.Lock()
		x := TraceSample{At: time.Since(start).Seconds(), InFlight: r.sent - r.ended, Waiting: max(0, r.sent-r.refused-begun),
			Prefill: share(events.RolePrefill), Decode: share(events.RoleDecode)}
		r.mu.Unlock()
		all = append(all, x)
		select {
		case <-t.C:
		case <-ctx.Done():
			return all
		}
	}
}
