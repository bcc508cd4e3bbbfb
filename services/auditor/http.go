package auditor

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// stopTime is how long open answers may take when the replica stops.
const stopTime = 2 * time.Second

// serveHTTP serves the read API until ctx ends.
func (a *Auditor) serveHTTP(ctx context.Context) error {
	srv := &http.Server{
		Handler:           a.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// net/http quotes headers that it cannot read; they may hold a token.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(a.cfg.Listener) }() // ends with Shutdown or Close
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil { // a slow client is no failure of the stop
		_ = srv.Close()
	}
	<-ended
	return ctx.Err()
}

// handler is the read API: the C2SP tlog-tiles paths, receipts and marks.
func (a *Auditor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /checkpoint", func(w http.ResponseWriter, r *http.Request) { a.serveCheckpoint(w, a.signed.Load()) })
	mux.HandleFunc("GET /checkpoint.cosigned", func(w http.ResponseWriter, r *http.Request) { a.serveCheckpoint(w, a.cosigned.Load()) })
	mux.HandleFunc("GET /log.vkey", func(w http.ResponseWriter, r *http.Request) { text(w, []byte(a.vkey+"\n")) })
	mux.HandleFunc("GET /complete-until", a.serveComplete)
	mux.HandleFunc("GET /tile/{path...}", a.serveTile)
	mux.HandleFunc("GET /receipt/{receipt}", a.serveReceipt)
	mux.HandleFunc("POST /export", a.serveExport)
	mux.HandleFunc("GET /index/messages", a.serveIndex)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { text(w, []byte("ok\n")) })
	mux.HandleFunc("GET /ready", a.serveReady)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache")
		mux.ServeHTTP(w, r)
	})
}

func text(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(b) // a client that has gone has gone
}

func (f *refusal) serve(w http.ResponseWriter) {
	if f.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(f.retry.Seconds()+.999)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_, _ = w.Write(f.body())
}

func (f *refusal) body() []byte {
	b, err := json.Marshal(map[string]any{"code": f.code, "message": f.say})
	if err != nil {
		panic(err) // strings always marshal
	}
	return append(b, '\n')
}

func unsigned() *refusal {
	f := refuse(http.StatusServiceUnavailable, events.CodeUnavailable, "nothing is signed yet")
	f.retry = time.Second
	return f
}

func (a *Auditor) serveCheckpoint(w http.ResponseWriter, c *checkpoint) {
	if c == nil {
		refuse(http.StatusNotFound, events.CodeNotFound, "there is no such checkpoint yet").serve(w)
		return
	}
	text(w, c.note)
}

func (a *Auditor) serveReady(w http.ResponseWriter, _ *http.Request) {
	if a.signed.Load() == nil {
		unsigned().serve(w)
		return
	}
	text(w, []byte("ready\n"))
}

// serveComplete says how far the signed tree holds the stream.
func (a *Auditor) serveComplete(w http.ResponseWriter, _ *http.Request) {
	c := a.signed.Load()
	if c == nil {
		unsigned().serve(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // a client that has gone has gone
		"origin": c.Origin, "complete_until": c.CompleteUntil, "size": c.Tree.N, "root": c.Tree.Hash.String(),
	})
}

// serveTile serves hashes to all, and entries to readers. A partial tile is cut
// from the one that is there, which may be wider.
func (a *Auditor) serveTile(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	t, err := audit.ParseTilePath(path)
	if err != nil {
		refuse(http.StatusNotFound, events.CodeNotFound, "want tile/<level or \"entries\">/<index>[.p/<width>]").serve(w)
		return
	}
	reader := ""
	if t.L == audit.EntriesLevel {
		var f *refusal
		if reader, f = a.reader(r); f != nil {
			f.serve(w)
			return
		}
	}
	b, f := a.tile(t)
	if f == nil && t.L == audit.EntriesLevel { // what is not there is no read
		f = a.entries(r, reader, t)
	}
	if f != nil {
		f.serve(w)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if t.L == audit.EntriesLevel {
		w.Header().Set("Cache-Control", "private, max-age=604800, immutable")
	} else {
		w.Header().Set("Cache-Control", "public, max-age=604800, immutable")
	}
	_, _ = w.Write(b) // a client that has gone has gone
}

// tile reads a tile of the signed tree.
func (a *Auditor) tile(t tlog.Tile) ([]byte, *refusal) {
	absent := refuse(http.StatusNotFound, events.CodeNotFound, "the signed tree has no such tile")
	c := a.signed.Load()
	if c == nil {
		return nil, absent
	}
	width := func(size int64) int {
		hashes := size >> (audit.TileHeight * max(t.L, 0))
		return int(min(max(hashes-t.N<<audit.TileHeight, 0), audit.TileWidth))
	}
	if t.N >= 1<<40 || t.L > 7 || t.W > width(c.Tree.N) {
		return nil, absent
	}
	have := t
	have.W = width(a.committed.Load().Size)
	b, err := a.store.tiles.Tile(have)
	if err == nil && have.W > t.W {
		b, err = cut(t, b)
	}
	if err != nil {
		a.cfg.Logger.Error("tile cannot be read", "tile", audit.TilePath(have), "err", err)
		return nil, refuse(http.StatusInternalServerError, events.CodeInternal, "the auditor cannot read its tiles")
	}
	return b, nil
}

// cut is the part of a wider tile that t is.
func cut(t tlog.Tile, b []byte) ([]byte, error) {
	n := t.W * tlog.HashSize
	if t.L == audit.EntriesLevel {
		n = 0
		for range t.W {
			if len(b) < n+2 {
				return nil, errors.New("tile of entries ends early")
			}
			n += 2 + int(binary.BigEndian.Uint16(b[n:]))
		}
	}
	if n > len(b) {
		return nil, errors.New("tile ends early")
	}
	return b[:n], nil
}

func (a *Auditor) serveReceipt(w http.ResponseWriter, r *http.Request) {
	reader, f := a.reader(r)
	if f != nil {
		f.serve(w)
		return
	}
	b, f := a.answerReceipt(r.Context(), r.PathValue("receipt"), reader, "http")
	if f != nil {
		f.serve(w)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	text(w, b)
}

// answerReceipt is what HTTP and NATS share.
func (a *Auditor) answerReceipt(ctx context.Context, s, reader, via string) ([]byte, *refusal) {
	rc, f := parseReceipt(s)
	if f != nil {
		return nil, f
	}
	if f := a.recorded(ctx, reading{reader, via, events.ReadReceipt}, rc.pos.Seq, rc.pos.Seq); f != nil {
		return nil, f
	}
	p, f := a.proof(ctx, rc)
	if f != nil {
		return nil, f
	}
	return p.Text(), nil
}

// reader finds whose token a request carries.
func (a *Auditor) reader(r *http.Request) (string, *refusal) {
	name := ""
	if h := r.Header.Values("Authorization"); len(h) == 1 && len(h[0]) <= 512 {
		if scheme, token, ok := strings.Cut(h[0], " "); ok && strings.EqualFold(scheme, "Bearer") {
			sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
			for _, one := range a.cfg.Readers { // all of them, whoever it is
				if subtle.ConstantTimeCompare(one.Token[:], sum[:]) == 1 {
					name = one.Name
				}
			}
		}
	}
	if name == "" {
		return "", refuse(http.StatusUnauthorized, events.CodeInvalidAPIKey, "want Authorization: Bearer with an auditor's token (key file audit-readers)")
	}
	return name, nil
}
