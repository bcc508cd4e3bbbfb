package enginefake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Seen is one request that a server got.
type Seen struct {
	Method  string
	Path    string
	Header  http.Header
	Body    []byte
	Status  int  // 0: nothing was answered yet
	Aborted bool // the client left, or the node went down, before the answer was complete
}

// Server is an HTTP server on a loopback port that can crash, and come back on
// the same port.
type Server struct {
	handler http.Handler
	addr    string
	inject  *Injector

	mu    sync.Mutex
	http  *http.Server          // under mu; nil while it is down
	conns map[net.Conn]struct{} // under mu
	seen  []*Seen               // under mu
	down  context.CancelFunc    // under mu; cuts the requests of this life
	work  sync.WaitGroup        // the requests being served
}

// Serve starts a server. A nil injector injects nothing.
func Serve(h http.Handler, inject *Injector) (*Server, error) {
	s := &Server{handler: h, inject: inject}
	return s, s.Start()
}

// listen takes the port that the server had, or a free one. It is one that the
// system does not give to clients, so that it is still there after a crash.
func (s *Server) listen() (net.Listener, error) {
	var l net.Listener
	var err error
	for range 100 {
		addr := s.addr
		if addr == "" {
			addr = fmt.Sprintf("127.0.0.1:%d", 10_240+rand.IntN(20_000))
		}
		if l, err = net.Listen("tcp", addr); err == nil {
			return l, nil
		}
		if s.addr != "" {
			<-time.After(10 * time.Millisecond) // somebody else's for a moment
		}
	}
	return nil, fmt.Errorf("engine fake: %w", err)
}

// Start listens, on the same port as before.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.listen()
	if err != nil {
		return err
	}
	life, down := context.WithCancel(context.Background())
	s.addr, s.down, s.conns = l.Addr().String(), down, map[net.Conn]struct{}{}
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute, ConnState: s.track,
		BaseContext: func(net.Listener) context.Context { return life },
	}
	go func(h *http.Server) { _ = h.Serve(l) }(s.http) // ends with Crash or Close
	return nil
}

// URL is the server's address.
func (s *Server) URL() string { return "http://" + s.Addr() }

// Addr is host and port.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Port is the port alone.
func (s *Server) Port() int {
	a, err := net.ResolveTCPAddr("tcp", s.Addr())
	if err != nil {
		return 0
	}
	return a.Port
}

// Crash cuts all connections with a reset and stops to listen.
func (s *Server) Crash() {
	s.mu.Lock()
	h := s.http
	s.http = nil
	s.reset()
	if s.down != nil {
		s.down()
	}
	s.mu.Unlock()
	if h != nil {
		_ = h.Close()
	}
	s.work.Wait()
}

// Cut resets all connections and goes on listening.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
}

// reset closes the connections. The caller has s.mu.
func (s *Server) reset() {
	for c := range s.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
}

// Close ends the server and what it serves.
func (s *Server) Close() { s.Crash() }

func (s *Server) track(c net.Conn, st http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch st {
	case http.StateNew:
		s.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, c)
	}
}

// Requests are the requests so far, in the order of their arrival.
func (s *Server) Requests() []Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Seen, len(s.seen))
	for i, r := range s.seen {
		out[i] = *r
	}
	return out
}

// Forget drops what [Server.Requests] has.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	up := s.http != nil
	if up {
		s.work.Add(1)
	}
	s.mu.Unlock()
	if !up {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	seen := &Seen{Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body}
	s.mu.Lock()
	s.seen = append(s.seen, seen)
	s.mu.Unlock()

	rec := &recorder{ResponseWriter: w, server: s, seen: seen}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		seen.Aborted = errors.Is(r.Context().Err(), context.Canceled)
	}()
	s.inject.serve(s.handler, rec, r)
}

// recorder notes the status.
type recorder struct {
	http.ResponseWriter
	server *Server
	seen   *Seen
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) note(status int) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if r.seen.Status == 0 {
		r.seen.Status = status
	}
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	r.note(status)
	r.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(b []byte) (int, error) {
	r.note(http.StatusOK)
	return r.ResponseWriter.Write(b)
}
