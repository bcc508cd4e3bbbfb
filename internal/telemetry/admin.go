// Package telemetry is how a process is watched: its metrics in Prometheus's
// form, whether it is alive and ready, and, where asked for, its profiles. They
// share one listener, which is for operators: it is apart from what clients and
// peers reach, and none of it knows a prompt, a tenant's key or a request.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

// Readiness is what a process waits for before it is ready. Its zero value is
// ready; so is a nil one.
type Readiness struct {
	mu    sync.Mutex
	parts map[string]<-chan struct{}
}

// Watch makes the process wait for ready to close, in the place of what was given
// under the name before.
func (r *Readiness) Watch(name string, ready <-chan struct{}) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parts == nil {
		r.parts = map[string]<-chan struct{}{}
	}
	r.parts[name] = ready
}

// Waits names the parts that are not ready, in no order.
func (r *Readiness) Waits() (names []string) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, ready := range r.parts {
		select {
		case <-ready:
		default:
			names = append(names, name)
		}
	}
	return names
}

// Metrics makes OpenTelemetry's global meters end in a Prometheus page. It is
// called once, before the parts make their instruments. The function shuts the
// meters down.
func Metrics() (http.Handler, func(context.Context) error, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, nil, err
	}
	provider := metric.NewMeterProvider(metric.WithReader(reader), metric.WithCardinalityLimit(cardinality))
	otel.SetMeterProvider(provider)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), provider.Shutdown, nil
}

// cardinality bounds the series of one instrument: labels are names that an
// operator gave, and codes; whatever grows past this is a mistake, and adds up in
// one series.
const cardinality = 2000

// Admin is the listener's handler.
func Admin(metrics http.Handler, ready *Readiness, profiles bool) http.Handler {
	r := chi.NewRouter()
	r.Handle("/metrics", metrics)
	r.Get("/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	r.Get("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if len(ready.Waits()) > 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	if profiles {
		r.HandleFunc("/debug/pprof/*", pprof.Index)
		r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		r.HandleFunc("/debug/pprof/profile", pprof.Profile)
		r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return r
}

// Serve serves until ctx ends, and returns nil then.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
