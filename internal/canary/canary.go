package canary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
)

// Tenant is one of the two that the canary speaks as.
type Tenant struct {
	Name string
	Key  string // API key; never shown
}

// Cluster is what the canary asks of the lifecycle service, as its own user.
type Cluster interface {
	Info(ctx context.Context) (*events.InfoView, error)
	Workers(ctx context.Context) (*events.WorkersView, error)
	History(ctx context.Context, requestID string) (*events.HistoryView, error)
	Do(ctx context.Context, c *events.Command) (*events.Answer, error)
}

// Config describes a Canary.
type Config struct {
	Gateway string        // base URL
	Tenants []Tenant      // two
	Cluster Cluster       // answers as the canary's user
	Oracle  string        // base URL of an engine that computes whole requests; "": see Canary
	Timeout time.Duration // of one probe; 0: two minutes
	Fills   int           // most prompts at once; 0: 4
	Logger  *slog.Logger  // nil: nothing is logged
}

// Canary sends probes. What it compares answers with: the oracle's, where one is
// named; for the reference engine, a run in this process's own memory; otherwise
// the sentinel, which the prompt asks to be repeated.
type Canary struct {
	cfg  Config
	mint *mint
	http *http.Client
}

// ErrNoVerdict means that nothing can be probed: the model is quarantined already,
// or not served.
var ErrNoVerdict = errors.New("there is nothing to probe")

// RefusedError means that the gateway refuses the canary itself: a key that it
// does not know, or a model that it does not serve.
type RefusedError struct {
	Tenant string
	Status int
	Code   string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the gateway refuses tenant %s: HTTP %d %s", e.Tenant, e.Status, e.Code)
}

// New checks the configuration.
func New(cfg Config) (*Canary, error) {
	switch {
	case cfg.Gateway == "":
		return nil, errors.New("canary: the gateway's URL is missing")
	case len(cfg.Tenants) != 2 || cfg.Tenants[0].Key == "" || cfg.Tenants[1].Key == "":
		return nil, fmt.Errorf("canary: %d tenants: want two, each with an API key", len(cfg.Tenants))
	case cfg.Tenants[0].Name == cfg.Tenants[1].Name || cfg.Tenants[0].Key == cfg.Tenants[1].Key:
		return nil, errors.New("canary: want two different tenants")
	case cfg.Cluster == nil:
		return nil, errors.New("canary: Cluster is missing")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Minute
	}
	if cfg.Fills <= 0 {
		cfg.Fills = 4
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Canary{cfg: cfg, mint: newMint(cfg.Tenants), http: newHTTP()}, nil
}

// Models lists what can be probed: models with live workers of both roles that are
// not quarantined.
func (c *Canary) Models(ctx context.Context) ([]string, error) {
	v, err := c.cfg.Cluster.Info(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range v.Models {
		if !m.Quarantined && m.PrefillNodes > 0 && m.DecodeNodes > 0 {
			out = append(out, m.Model)
		}
	}
	return out, nil
}

// record writes the run into the log.
func (c *Canary) record(ctx context.Context, r *Report) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("id of the canary's run: %w", err)
	}
	a, err := c.cfg.Cluster.Do(ctx, &events.Command{Type: events.CmdCanary, Subject: id.String(), Data: r.event()})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return fmt.Errorf("record the canary's run: %w", err)
	}
	r.Position = a.Position
	return nil
}

// quarantine stops the model. What is open may hold the same data when answers are
// foreign, and is cancelled; after wrong ones it may end.
func (c *Canary) quarantine(ctx context.Context, r *Report) error {
	d := &events.Quarantine{Reason: "canary: a wrong answer, twice in a row", Running: events.RunningDrain, Evidence: r.evidence()}
	if r.count(Foreign) > 0 {
		d.Reason, d.Running = "canary: an answer held another request's text", events.RunningCancel
	}
	a, err := c.cfg.Cluster.Do(ctx, &events.Command{Type: events.CmdQuarantine, Subject: r.Model, Data: d})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return fmt.Errorf("QUARANTINE FAILED, stop model %s by hand: %w", r.Model, err)
	}
	r.Quarantined = true
	return nil
}
