package canary

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// oracle knows the right answer to a prompt.
type oracle interface {
	right(ctx context.Context, prompt, sentinel, text string) (bool, error)
}

// refOracle runs the reference engine in one plain memory, one prompt at a time:
// long ones are large.
type refOracle struct {
	engine engine.Engine
	turn   *sync.Mutex
}

func newRefOracle(context int) (oracle, error) {
	eng, err := engine.New(engine.Config{Name: "ref", ContextTokens: context})
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	return refOracle{eng, new(sync.Mutex)}, nil
}

func (o refOracle) right(ctx context.Context, prompt, _, text string) (bool, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	want, _, err := engine.Complete(ctx, o.engine, []byte(prompt), engine.Sampling{MaxTokens: most, Seed: 1})
	if err != nil {
		return false, fmt.Errorf("oracle: %w", err)
	}
	return text == string(want), nil
}

// urlOracle asks an engine that computes whole requests.
type urlOracle struct {
	url, model string
	client     *http.Client
}

func (o urlOracle) right(ctx context.Context, prompt, _, text string) (bool, error) {
	a, err := complete(ctx, o.client, o.url, "", o.model, prompt)
	if err != nil {
		return false, fmt.Errorf("oracle: %w", err)
	}
	if a.status != http.StatusOK || !a.parsed {
		return false, fmt.Errorf("oracle: HTTP %d", a.status)
	}
	return text == a.text, nil
}

// echoOracle knows one thing: the answer must quote the prompt's own sentinel.
type echoOracle struct{}

func (echoOracle) right(_ context.Context, _, sentinel, text string) (bool, error) {
	return strings.Contains(text, sentinel), nil
}

// isBytes says whether the engine's tokens are bytes, and its answers those of the
// reference: faulty's are below its limits.
func isBytes(workers []events.WorkerView) bool {
	for _, w := range workers {
		if w.Engine != "ref" && w.Engine != "faulty" {
			return false
		}
	}
	return true
}

// errOracle is wrapped around what keeps a comparison from being made.
var errOracle = errors.New("the right answer is not known")
