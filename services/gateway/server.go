package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// NewServer is an HTTP server with the bounds that an open port needs. Bodies
// and answers have their own deadlines, which the gateway sets: a stream may
// take minutes. Base context and listener are the caller's; see [Serve].
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(quiet{logger.Handler()}, slog.LevelDebug),
	}
}

// quiet keeps the text of net/http's own log lines out of the log: a header that
// cannot be read is quoted in some of them.
type quiet struct{ slog.Handler }

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	return q.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, "http server complained about a connection", r.PC))
}

// Serve accepts at most conns connections at a time (0: 4096), until ctx ends.
// It then stops accepting, and waits for open requests: [Gateway.Run] ends them
// when the same ctx ends. After limit, which must be above the gateway's drain
// and cancel timeouts, connections are closed.
func Serve(ctx context.Context, srv *http.Server, l net.Listener, conns int, limit time.Duration) error {
	if conns == 0 {
		conns = 4096
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) { // a slow client is no failure of the stop
			err = srv.Close()
		}
		stopped <- err
	})
	err := srv.Serve(&limitListener{Listener: l, slots: make(chan struct{}, conns), closed: make(chan struct{})})
	if stop() { // Serve ended by itself
		return err
	}
	return <-stopped
}

// limitListener accepts no more connections than it has slots. Further ones
// wait in the system's queue.
type limitListener struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitConn struct {
	net.Conn
	release func()
}

func (c *limitConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
