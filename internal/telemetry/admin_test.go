package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

func status(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestAdmin(t *testing.T) {
	metrics, shutdown, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	defer shutdown(context.Background())
	n, err := otel.Meter("test").Int64Counter("pdgate.test.answers", metric.WithUnit("{answer}"))
	if err != nil {
		t.Fatal(err)
	}
	n.Add(t.Context(), 3, metric.WithAttributes(attribute.String("code", "rejected")))
	// A label that grows without end adds up in one series.
	grows, err := otel.Meter("test").Int64Counter("pdgate.test.grows")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * cardinality {
		grows.Add(t.Context(), 1, metric.WithAttributes(attribute.Int("i", i)))
	}
	ready := &Readiness{}
	one := make(chan struct{})
	ready.Watch("one", one)
	h := Admin(metrics, ready, false)

	code, page := status(t, h, "/metrics")
	if code != http.StatusOK || !strings.Contains(page, `pdgate_test_answers_total{code="rejected"} 3`) || !strings.Contains(page, "go_goroutines") {
		t.Errorf("%d:\n%.2000s", code, page)
	}
	if series := strings.Count(page, "\npdgate_test_grows_total{"); series > cardinality || !strings.Contains(page, "otel_metric_overflow") {
		t.Errorf("%d series of one counter, want at most %d", series, cardinality)
	}
	for _, c := range []struct {
		path string
		want int
	}{{"/health", 200}, {"/ready", 503}, {"/debug/pprof/", 404}} {
		if code, _ := status(t, h, c.path); code != c.want {
			t.Errorf("%s: %d, want %d", c.path, code, c.want)
		}
	}
	close(one)
	if code, _ := status(t, h, "/ready"); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	ready.Watch("one", make(chan struct{})) // a later life, which has to be ready itself
	if code, _ := status(t, h, "/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("a later life that is not ready: %d", code)
	}
	if code, _ := status(t, Admin(metrics, nil, true), "/debug/pprof/"); code != http.StatusOK {
		t.Errorf("profiles: %d", code)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, l, Admin(http.NotFoundHandler(), nil, false), slog.New(slog.DiscardHandler))
	}()
	resp, err := http.Get("http://" + l.Addr().String() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
