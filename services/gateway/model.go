package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/pdgate/pdgate/events"
)

// infoAge is how long an answer about the cluster is good for, an error too: the
// endpoints that ask are open to everybody.
const infoAge = 250 * time.Millisecond

// info is what lifecycle says of the cluster.
func (g *Gateway) info(ctx context.Context) (*events.InfoView, error) {
	g.infoMu.Lock()
	defer g.infoMu.Unlock()
	if v, fresh, err := g.known(); fresh {
		return v, err
	}
	// One client's impatience must not become everybody's error.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	v, err := g.cfg.Client.Info(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.infoErr, g.infoTime = err, g.cfg.Now()
	if err == nil {
		g.infoView = v
	}
	return v, err
}

// known is the last answer.
func (g *Gateway) known() (v *events.InfoView, fresh bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.infoView, !g.infoTime.IsZero() && g.cfg.Now().Sub(g.infoTime) < infoAge, g.infoErr
}

// fit is the length of an answer whose client named none: the default, or what
// the context leaves if that is less. What it leaves is lifecycle's to judge.
func (g *Gateway) fit(ctx context.Context, model string, most, prompt int) int {
	v, _, _ := g.known()
	if v == nil {
		v, _ = g.info(ctx)
	}
	if v == nil {
		return most
	}
	for _, m := range v.Models {
		if m.Model == model && m.ContextTokens > prompt {
			return min(most, m.ContextTokens-prompt)
		}
	}
	return most
}

// serveHealth says that the process is alive.
func (g *Gateway) serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// serveReady says whether a request could be admitted: lifecycle answers, and
// some model has a live prefill and a live decode worker.
func (g *Gateway) serveReady(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	serving := g.serving
	g.mu.Unlock()
	if !serving {
		writeFailure(w, newFailure(events.CodeUnavailable, "the gateway is starting or stopping"))
		return
	}
	v, err := g.info(r.Context())
	if err != nil {
		writeFailure(w, newFailure(events.CodeUnavailable, "the lifecycle service does not answer"))
		return
	}
	models, quarantined := []string{}, false
	for _, m := range v.Models {
		if g.serves(m.Model) && m.PrefillNodes > 0 && m.DecodeNodes > 0 {
			if m.Quarantined {
				quarantined = true
			} else {
				models = append(models, m.Model)
			}
		}
	}
	switch {
	case len(models) == 0 && quarantined:
		// Not ready, and complete all the same: nothing but an operator is missing.
		writeFailure(w, recorded(events.NewError(events.CodeModelQuarantined, "each model that has live workers is quarantined")))
		return
	case len(models) == 0:
		writeFailure(w, newFailure(events.CodeNoWorker, "each model lacks a live prefill or decode worker"))
		return
	}
	slices.Sort(models)
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok", "models": models})
}

type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len,omitempty"` // longest prompt plus answer; left out while unknown
	State       string `json:"state"`
	Reason      string `json:"reason,omitempty"` // of a quarantine
}

// What is to be expected of a model.
const (
	modelReady       = "ready"
	modelQuarantined = "quarantined" // requests get 503
	modelUnavailable = "unavailable" // no prefill or no decode worker is alive
	modelUnknown     = "unknown"     // the lifecycle service does not answer
)

func (g *Gateway) model(v *events.InfoView, name string) modelObject {
	m := modelObject{ID: name, Object: "model", Created: g.started.Unix(), OwnedBy: "pdgate", State: modelUnknown}
	if v == nil {
		return m
	}
	m.State = modelUnavailable
	for _, i := range v.Models {
		if i.Model != name {
			continue
		}
		m.MaxModelLen = i.ContextTokens
		switch {
		case i.Quarantined:
			m.State = modelQuarantined
			if i.Quarantine != nil {
				m.Reason = i.Quarantine.Reason
			}
		case i.PrefillNodes > 0 && i.DecodeNodes > 0:
			m.State = modelReady
		}
	}
	return m
}

func (g *Gateway) serveModels(w http.ResponseWriter, r *http.Request) {
	v, _ := g.info(r.Context()) // the list stands without it
	list := []modelObject{}
	for name := range g.cfg.Models {
		list = append(list, g.model(v, name))
	}
	for name := range g.cfg.Relays {
		list = append(list, g.model(v, name))
	}
	slices.SortFunc(list, func(a, b modelObject) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (g *Gateway) serveModel(w http.ResponseWriter, r *http.Request) {
	name := chi.URLParam(r, "*")
	if _, ok := g.cfg.Models[name]; !ok {
		writeFailure(w, unknownModel())
		return
	}
	v, _ := g.info(r.Context())
	writeJSON(w, http.StatusOK, g.model(v, name))
}

func unknownModel() *failure {
	f := newFailure(events.CodeModelNotFound, "this model is not served here")
	f.param = "model"
	return f
}

// marshal encodes an answer. The types are the package's own, so it cannot fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("gateway: encode an answer: " + err.Error())
	}
	return b
}
