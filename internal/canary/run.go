package canary

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// run is one run over one model.
type run struct {
	*Canary
	model  string
	writer writer
	oracle oracle
	plan   []probe

	mu     sync.Mutex
	report *Report // guarded by mu
	over   bool    // a reason to quarantine was found: nothing more is sent; guarded by mu
	err    error   // why the run ended early; guarded by mu
}

// What is written at the end is bounded; where the run was cut short, somebody
// waits for it.
const (
	recordTime = 30 * time.Second
	stopTime   = 2 * time.Second
)

// Run probes one model, quarantines it if it must, and records the run. The
// report is there with an error too, as far as it got.
func (c *Canary) Run(ctx context.Context, model string) (*Report, error) {
	start := time.Now()
	r := &run{Canary: c, model: model, report: &Report{Model: model}}
	if err := r.prepare(ctx); err != nil {
		r.report.judge()
		return r.report, err
	}
	for i, t := range c.cfg.Tenants {
		other := c.cfg.Tenants[1-i]
		r.fill(ctx, t)
		r.above(ctx, other)
	}
	r.report.Took = time.Since(start)
	r.stopped(ctx)
	r.report.judge()
	if r.err != nil && r.report.Verdict == events.CanaryClean {
		r.report.Verdict = events.CanaryInconclusive // the rest was not asked
	}
	// A verdict that was reached counts, whoever stopped the run.
	limit := recordTime
	if ctx.Err() != nil {
		limit = stopTime
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err := r.err
	if r.over {
		err = errors.Join(err, c.quarantine(ctx, r.report))
	}
	return r.report, errors.Join(err, c.record(ctx, r.report))
}

// prepare finds out what there is to probe.
func (r *run) prepare(ctx context.Context) error {
	models, err := r.Models(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(models, r.model) {
		return fmt.Errorf("%w: model %s is quarantined, or has no live prefill or decode worker", ErrNoVerdict, r.model)
	}
	v, err := r.cfg.Cluster.Workers(ctx)
	if err != nil {
		return err
	}
	workers := serving(v.Workers, r.model)
	if workers == nil {
		return fmt.Errorf("%w: model %s has no live prefill or decode worker", ErrNoVerdict, r.model)
	}
	slack := func(int) int { return 0 }
	if r.writer = (byteWriter{}); !isBytes(workers) {
		if r.writer, err = r.measure(ctx); err != nil {
			return err
		}
		slack = func(n int) int { return 8 + n/64 }
	}
	switch {
	case r.cfg.Oracle != "":
		r.oracle = urlOracle{r.cfg.Oracle, r.model, r.http}
	case isBytes(workers):
		if r.oracle, err = newRefOracle(limitsOf(workers).context); err != nil {
			return err
		}
	default:
		r.oracle = echoOracle{}
	}
	r.plan, err = plan(workers, r.writer.least(), slack)
	return err
}

func (r *run) measure(ctx context.Context) (writer, error) {
	t := r.cfg.Tenants[0]
	return measure(ctx, r.mint.sentinel(), func(ctx context.Context, prompt string) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		defer cancel()
		a, err := complete(ctx, r.http, r.cfg.Gateway, t.Key, r.model, prompt)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: %w", ErrNoVerdict, err)
		case a.status != http.StatusOK:
			if e := refusal(t, a); e != nil {
				return 0, e
			}
			return 0, fmt.Errorf("%w: HTTP %d %s", ErrNoVerdict, a.status, a.code)
		}
		return a.tokens, nil
	})
}

// fill sends what must be answered, several at once, so that much of the pools has
// held the tenant's sentinels when the other tenant asks.
func (r *run) fill(ctx context.Context, t Tenant) {
	var probes []probe
	for _, p := range r.plan {
		if !p.refuse {
			probes = append(probes, p)
		}
	}
	for i := len(probes); i < r.cfg.Fills; i++ { // the longest again
		probes = append(probes, probes[0])
	}
	turns := make(chan struct{}, r.cfg.Fills)
	var wg sync.WaitGroup
	for _, p := range probes {
		turns <- struct{}{}
		if r.stopped(ctx) {
			break
		}
		wg.Go(func() {
			defer func() { <-turns }()
			r.probe(ctx, t, p)
		})
	}
	wg.Wait()
}

// above sends what must be refused, first what is nearest to what is not.
func (r *run) above(ctx context.Context, t Tenant) {
	for _, p := range slices.Backward(r.plan) {
		if p.refuse && !r.stopped(ctx) {
			r.probe(ctx, t, p)
		}
	}
}

func (r *run) stopped(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil && r.err == nil {
		r.err = context.Cause(ctx)
	}
	return r.over || r.err != nil
}

// probe sends one prompt, and once more with another sentinel if the answer is
// wrong.
func (r *run) probe(ctx context.Context, t Tenant, p probe) {
	for again := false; ; again = true {
		x, err := r.send(ctx, t, p)
		if err == nil && x.Outcome == Wrong && r.moved(ctx, p) {
			// What was planned is not so any more; the next run plans again.
			x.Outcome, x.Detail = Unreachable, "the workers' limits changed meanwhile"
		}
		r.mu.Lock()
		if err != nil && r.err == nil {
			r.err = err
		}
		if err == nil && ctx.Err() == nil {
			r.report.Results = append(r.report.Results, x)
			r.over = r.over || x.Outcome == Foreign || x.Outcome == Wrong && again
		}
		r.mu.Unlock()
		if x.Outcome == Foreign || x.Outcome == Wrong {
			r.cfg.Logger.Error("canary's probe", "outcome", string(x.Outcome), "model", r.model, "tenant", t.Name, "request_id", x.RequestID,
				"prompt_tokens", p.tokens, "detail", x.Detail)
		}
		if err != nil || x.Outcome != Wrong || again || ctx.Err() != nil {
			return
		}
	}
}

// moved says whether the limits are others since the plan was made, so that what
// had to be refused may be answered.
func (r *run) moved(ctx context.Context, p probe) bool {
	v, err := r.cfg.Cluster.Workers(ctx)
	if err != nil {
		return true
	}
	workers := serving(v.Workers, r.model)
	return workers == nil || limitsOf(workers).refuses(p.tokens) != p.refuse
}

// send sends one prompt and judges the answer. An error ends the run.
func (r *run) send(ctx context.Context, t Tenant, p probe) (Result, error) {
	own := r.mint.sentinel()
	prompt, exact := r.writer.write(p.tokens, own)
	x := Result{Tenant: t.Name, Tokens: p.tokens, MaxTokens: most, Why: p.why}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	a, err := complete(ctx, r.http, r.cfg.Gateway, t.Key, r.model, prompt)
	x.Took = time.Since(start)
	if err != nil {
		x.Outcome, x.Detail = Unreachable, plain(err)
		return x, nil
	}
	x.Status, x.RequestID, x.Receipt = a.status, a.requestID, a.receipt
	if e := refusal(t, a); e != nil {
		return x, e
	}
	if a.status == http.StatusOK && !exact {
		x.Tokens = a.tokens
	}
	switch {
	case r.mint.foreign(a.body, own): // an error's too
		x.Outcome, x.Detail = Foreign, "the answer holds another probe's sentinel"
	case !a.parsed:
		x.Outcome, x.Detail = Unreachable, fmt.Sprintf("HTTP %d, and no JSON", a.status)
	case p.refuse:
		x.Outcome, x.Detail = r.judgeRefusal(ctx, a)
	default:
		x.Outcome, x.Detail = r.judgeAnswer(ctx, a, prompt, own)
	}
	return x, nil
}

// judgeAnswer judges the answer to a prompt within the limits.
func (r *run) judgeAnswer(ctx context.Context, a *answer, prompt, own string) (Outcome, string) {
	if a.status != http.StatusOK {
		return Unreachable, fmt.Sprintf("HTTP %d %s", a.status, a.code)
	}
	ok, err := r.oracle.right(ctx, prompt, own, a.text)
	switch {
	case err != nil:
		return Unreachable, plain(fmt.Errorf("%w: %w", errOracle, err))
	case !ok:
		return Wrong, "the answer is not the known one"
	}
	return Pass, ""
}

// judgeRefusal judges the answer to a prompt above a limit: by what the client
// got, and by what the log says happened to it.
func (r *run) judgeRefusal(ctx context.Context, a *answer) (Outcome, string) {
	if a.status == http.StatusOK {
		return Wrong, "a prompt above the limit was answered"
	}
	seen, err := r.seenByEngine(ctx, a.requestID)
	switch {
	case err != nil:
		return Unreachable, plain(fmt.Errorf("HTTP %d %s, and its history cannot be read: %w", a.status, a.code, err))
	case seen != "":
		return Wrong, fmt.Sprintf("HTTP %d %s, and the request was %s", a.status, a.code, seen)
	case a.status != http.StatusBadRequest || a.code != string(events.CodeContextLength):
		return Unreachable, fmt.Sprintf("HTTP %d %s", a.status, a.code)
	}
	return Refused, ""
}

// seenByEngine says what in the request's history could only happen behind the
// gate; empty: it was rejected at admission, or never came there.
func (r *run) seenByEngine(ctx context.Context, id string) (string, error) {
	h, err := r.cfg.Cluster.History(ctx, id)
	var refused *events.Error
	if errors.As(err, &refused) && refused.Code == events.CodeNotFound {
		return "", nil // turned away at the edge
	}
	if err != nil {
		return "", err
	}
	for _, raw := range h.Events {
		e, err := events.Decode(raw)
		if err != nil {
			return "", err
		}
		if d, ok := e.Data.(*events.RequestRejected); ok && d.Stage == "admission" {
			continue
		}
		name := strings.TrimPrefix(strings.TrimSuffix(string(e.Type), ".v1"), "request.")
		return name, nil
	}
	return "", nil
}

// refusal is the error of an answer that refuses the canary and not the prompt.
func refusal(t Tenant, a *answer) error {
	switch {
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden, a.status == http.StatusNotFound:
		return &RefusedError{t.Name, a.status, a.code}
	case a.code == string(events.CodeModelQuarantined):
		return fmt.Errorf("%w: the model was quarantined meanwhile", ErrNoVerdict)
	}
	return nil
}

// plain is an error in one line that is fit to be shown.
func plain(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	return s[:min(len(s), 300)]
}
