package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
)

// Headers of every answer, errors too.
const (
	headerRequest = "X-Request-Id"        // ours; a client's own is a label
	headerClient  = "X-Client-Request-Id" // the client's own, sent back
	// headerReceipt is "seq.line;hash" of the last event that changed the state
	// when the answer's head was written, for each choice. An answer that lifecycle
	// has not recorded has none.
	headerReceipt = "Pdgate-Receipt"
	// trailerReceipt is the same at the end of a stream.
	trailerReceipt = "Pdgate-Final-Receipt"
)

// writePart is how much one write to a client may carry.
const writePart = 64 << 10

// maxLabel is the longest client request id that is sent back.
const maxLabel = 128

func (g *Gateway) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(g.edge)
	r.Get("/health", g.serveHealth)
	r.Get("/ready", g.serveReady)
	r.Group(func(r chi.Router) {
		r.Use(g.authenticate)
		r.Get("/v1/models", g.serveModels)
		r.Get("/v1/models/*", g.serveModel)
		r.Post("/v1/completions", func(w http.ResponseWriter, r *http.Request) { g.complete(w, r, false) })
		r.Post("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { g.complete(w, r, true) })
	})
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeFailure(w, edgeFailure(http.StatusNotFound, codeRoute, "there is nothing under this path"))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, _ *http.Request) {
		writeFailure(w, edgeFailure(http.StatusMethodNotAllowed, codeMethod, "this path does not take this method"))
	})
	return r
}

type exchangeKey struct{}

// exchange is what the edge knows of one HTTP request.
type exchange struct {
	id     string // minted here: the id of the first lifecycle
	tenant *Tenant
	model  string
	code   events.Code // of the failure that was answered
}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// answerWriter bounds each write to a client. A reader that has stopped costs
// its own goroutine, for that long.
type answerWriter struct {
	http.ResponseWriter
	x       *exchange
	control *http.ResponseController
	timeout time.Duration
	status  int
	broken  bool // a write failed
}

func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *answerWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	done := 0
	for {
		// Each part has the whole time: a long answer may take longer than one write.
		part := b[done:min(done+writePart, len(b))]
		w.arm()
		n, err := w.ResponseWriter.Write(part)
		done += n
		if err != nil {
			w.broken = true
			return done, err
		}
		if done == len(b) {
			return done, nil
		}
	}
}

// push sends what was written so far.
func (w *answerWriter) push() error {
	w.arm()
	err := w.control.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	w.broken = w.broken || err != nil
	return err
}

func (w *answerWriter) arm() {
	// Not every writer of a test has deadlines; every server's has.
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout))
}

// edge is around every route: ids, bounded writes, panics, one log line.
func (g *Gateway) edge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		x := &exchange{}
		w := &answerWriter{ResponseWriter: rw, x: x, control: http.NewResponseController(rw), timeout: g.cfg.Timeouts.Write}
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				// The value may hold a client's text: its type is all that is logged.
				g.cfg.Logger.Error("handler panicked", "request_id", x.id, "kind", fmt.Sprintf("%T", p))
				if w.status != 0 {
					panic(http.ErrAbortHandler) // half an answer must not look whole
				}
				writeFailure(w, newFailure(events.CodeInternal, "the gateway failed"))
			}
			g.logRequest(r, x, w.status, time.Since(start))
		}()
		id, err := uuid.NewV7()
		if err != nil {
			writeFailure(w, newFailure(events.CodeInternal, "no request id can be made"))
			return
		}
		x.id = id.String()
		h := w.Header()
		h.Set(headerRequest, x.id)
		if label := r.Header.Get(headerRequest); printable(label) {
			h.Set(headerClient, label)
		}
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if len(r.TransferEncoding) > 0 {
			// net/http has dropped a Content-Length that came beside it. Where a proxy in
			// front believed that one, what follows on this connection is not what it
			// thinks: nothing more is read from it.
			h.Set("Connection", "close")
		}
		if r.ContentLength != 0 {
			// Also for bodies that nobody reads: the server waits for their rest before
			// it goes on, after a 401 as well. It lifts the deadline itself when it has the
			// whole body, and begins to watch for the client to leave.
			_ = w.control.SetReadDeadline(start.Add(g.cfg.Timeouts.Body))
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
		if w.status == 0 { // net/http would say 200
			writeFailure(w, newFailure(events.CodeInternal, "the gateway has no answer"))
		}
	})
}

func (g *Gateway) logRequest(r *http.Request, x *exchange, status int, took time.Duration) {
	route := "none" // a path is a client's text, a route is not
	if c := chi.RouteContext(r.Context()); c != nil && c.RoutePattern() != "" {
		route = c.RoutePattern()
	}
	level := slog.LevelInfo
	if route == "/health" || route == "/ready" { // asked all the time
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("request_id", x.id), slog.String("route", route),
		slog.Int("status", status), slog.Duration("took", took),
	}
	if x.tenant != nil {
		attrs = append(attrs, slog.String("tenant", x.tenant.Name))
	}
	if x.model != "" {
		attrs = append(attrs, slog.String("model", x.model))
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", string(x.code)))
	}
	g.cfg.Logger.LogAttrs(r.Context(), level, "request answered", attrs...)
}

// authenticate finds the tenant, before anything of the body is read.
func (g *Gateway) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var t *Tenant
		if a := r.Header.Values("Authorization"); len(a) == 1 && len(a[0]) <= 512 {
			if scheme, key, ok := strings.Cut(a[0], " "); ok && strings.EqualFold(scheme, "Bearer") {
				t = g.cfg.Tenants.find(strings.TrimSpace(key))
			}
		}
		if t == nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeFailure(w, newFailure(events.CodeInvalidAPIKey, "the API key is missing or not valid"))
			return
		}
		exchangeOf(r).tenant = t
		next.ServeHTTP(w, r)
	})
}

// readBody reads a request body within its limits of size and time. The lease
// holds what was read; it is the caller's, an error or not.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, l *lease) ([]byte, *failure) {
	if t := r.Header.Get("Content-Type"); t != "" {
		if m, _, err := mime.ParseMediaType(t); err != nil || m != "application/json" {
			return nil, edgeFailure(http.StatusUnsupportedMediaType, codeMediaType, "want Content-Type application/json")
		}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, edgeFailure(http.StatusUnsupportedMediaType, codeMediaType, "want no Content-Encoding")
	}
	limit := g.cfg.Limits.Body
	tooLarge := edgeFailure(http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the body is above the limit of %d bytes", limit))
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	// Room is made as bytes arrive, not as a header promises them.
	var body []byte
	from := http.MaxBytesReader(w, r.Body, limit)
	for {
		if len(body) == cap(body) {
			size := max(2*int64(cap(body)), 4<<10)
			if r.ContentLength >= int64(len(body)) {
				size = min(size, r.ContentLength+1) // and one, to see the end
			}
			if !l.set(size) {
				return nil, newFailure(events.CodeOverloaded, "the gateway has no room for more requests")
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var large *http.MaxBytesError
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.As(err, &large):
			return nil, tooLarge
		default:
			w.Header().Set("Connection", "close") // where the body ends is not known
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, edgeFailure(http.StatusRequestTimeout, codeSlowClient, "the body did not arrive in time")
			}
			return nil, newFailure(events.CodeInvalidRequest, "the body cannot be read")
		}
	}
}

// printable says whether a client's own request id can be sent back.
func printable(s string) bool {
	if len(s) == 0 || len(s) > maxLabel {
		return false
	}
	for i := range len(s) {
		if s[i] < '!' || s[i] > '~' {
			return false
		}
	}
	return true
}

// traceparent is the client's W3C trace context, "" if there is no valid one.
func traceparent(r *http.Request) string {
	v := r.Header.Values("Traceparent")
	if len(v) != 1 || len(v[0]) != 55 || v[0][:3] != "00-" || v[0][35] != '-' || v[0][52] != '-' || v[0] != strings.ToLower(v[0]) {
		return ""
	}
	for _, part := range []string{v[0][3:35], v[0][36:52], v[0][53:]} {
		if _, err := hex.DecodeString(part); err != nil {
			return ""
		}
	}
	if strings.Trim(v[0][3:35], "0") == "" || strings.Trim(v[0][36:52], "0") == "" {
		return ""
	}
	return v[0]
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b := append(marshal(v), '\n')
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has gone has gone
}

// writeFailure answers with f. The head must not have been sent.
func writeFailure(w http.ResponseWriter, f *failure) {
	if a, ok := w.(*answerWriter); ok {
		a.x.code = f.code
	}
	if s := f.retryAfter(); s != "" {
		w.Header().Set("Retry-After", s)
	}
	writeJSON(w, f.status, f.body())
}
