package handoff

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Defaults of [Config] and [PullerConfig].
const (
	DefaultTimeout      = 5 * time.Second
	DefaultChunkBytes   = 512 << 10
	DefaultMaxConns     = 256
	DefaultMaxTransfers = 64
)

// Config describes a Server.
type Config struct {
	Name      string                     // the worker's, as grants name it
	Epoch     uint64                     // its boot epoch, the pool's
	Layout    string                     // page layout of the engine
	Pool      *kvpool.Pool               // where the pages lie
	Identity  ed25519.PrivateKey         // the worker's key
	GrantKeys func() []ed25519.PublicKey // the lifecycle keys that may sign grants

	Timeout      time.Duration // for the opening, and for each frame after it; 0: 5 s
	ChunkBytes   int           // staging of one transfer, rounded to whole pages; 0: 512 KiB
	MaxConns     int           // connections at once, others wait in the backlog; 0: 256
	MaxTransfers int           // copies at once, which bounds staging; 0: 64

	Clock   func() time.Time // for leases; nil: time.Now
	Observe func(Result)     // called at the end of every connection; nil: nobody
	Logger  *slog.Logger     // nil: nothing is logged
	Guards  Guards           // zero value: all checks
}

// Result is what became of one connection.
type Result struct {
	RequestID  string // "" where no grant was verified
	Worker     string // the puller
	GrantEpoch int
	Bytes      int64 // of KV that left, in whole pages
	Duration   time.Duration
	Err        error // nil: transferred; see [CodeOf]
}

// Stats are the server's figures.
type Stats struct {
	Offers    int // requests whose KV is held for a pull
	Open      int // transfers in flight
	Completed uint64
	Refused   uint64 // before or after the copy, by a check here
	Broken    uint64 // ended by the peer, the network or a revocation
	Bytes     int64
}

// Server is the owner's side. Its methods may be called concurrently.
type Server struct {
	cfg   Config
	tls   *tls.Config
	chunk int // pages in one chunk

	slots   chan struct{} // held by a copy
	staging *staging

	mu     sync.Mutex
	offers map[string]*offer // by request id
	stats  Stats
}

// NewServer makes a server; [Server.Serve] gives it a listener.
func NewServer(cfg Config) (*Server, error) {
	switch {
	case cfg.Name == "" || cfg.Epoch == 0 || cfg.Layout == "":
		return nil, errors.New("handoff: Name, Epoch and Layout are needed")
	case cfg.Pool == nil || cfg.Pool.Epoch() != cfg.Epoch:
		return nil, errors.New("handoff: want a Pool of the same Epoch")
	case len(cfg.Identity) != ed25519.PrivateKeySize:
		return nil, errors.New("handoff: Identity is not an Ed25519 private key")
	case cfg.GrantKeys == nil:
		return nil, errors.New("handoff: GrantKeys is needed")
	case cfg.Timeout < 0 || cfg.ChunkBytes < 0 || cfg.ChunkBytes > maxChunk || cfg.MaxConns < 0 || cfg.MaxTransfers < 0:
		return nil, errors.New("handoff: a limit is negative or too large")
	}
	cfg.Timeout = or(cfg.Timeout, DefaultTimeout)
	cfg.ChunkBytes = or(cfg.ChunkBytes, DefaultChunkBytes)
	cfg.MaxConns = or(cfg.MaxConns, DefaultMaxConns)
	cfg.MaxTransfers = or(cfg.MaxTransfers, DefaultMaxTransfers)
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cert, err := certificate(cfg.Identity)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:    cfg,
		chunk:  max(1, cfg.ChunkBytes/max(1, cfg.Pool.PageBytes())),
		slots:  make(chan struct{}, cfg.MaxTransfers),
		offers: make(map[string]*offer),
	}
	// Any key may connect: which one counts is known once the grant is read.
	s.tls = tlsConfig(cert, func(ed25519.PublicKey) error { return nil })
	s.staging = newStaging(cfg.Pool, frameHead+pagesHead+s.chunk*cfg.Pool.PageBytes())
	return s, nil
}

func or[T comparable](v, zero T) T {
	var none T
	if v == none {
		return zero
	}
	return v
}

// Serve accepts pulls until ctx ends, then cuts those in flight and waits for
// their goroutines. It closes l.
func (s *Server) Serve(ctx context.Context, l *Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		if stop() {
			_ = l.Close()
		}
	}()
	defer s.staging.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	conns := make(chan struct{}, s.cfg.MaxConns)
	for {
		select {
		case conns <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := l.Accept()
		if err != nil {
			<-conns
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				continue
			}
			return fmt.Errorf("accept transfer: %w", err)
		}
		wg.Go(func() {
			defer func() { <-conns }()
			s.connection(ctx, c)
		})
	}
}

// connection runs one transfer and puts its end on record.
func (s *Server) connection(ctx context.Context, raw net.Conn) {
	start := time.Now()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	defer func() { _ = raw.Close() }()
	var r Result
	r.Err = s.transfer(ctx, raw, &r)
	r.Duration = time.Since(start)

	s.mu.Lock()
	s.stats.Bytes += r.Bytes
	var refusal *events.Error
	switch {
	case r.Err == nil:
		s.stats.Completed++
	case errors.As(r.Err, &refusal):
		s.stats.Refused++
	default:
		s.stats.Broken++
	}
	s.mu.Unlock()

	log := s.cfg.Logger.With(slog.String("request_id", r.RequestID), slog.String("worker_id", r.Worker),
		slog.Int("grant_epoch", r.GrantEpoch), slog.Int64("bytes", r.Bytes))
	if r.Err != nil {
		log.Warn("transfer ended", slog.String("code", string(CodeOf(r.Err))), slog.Any("error", r.Err))
	} else {
		log.Debug("transfer completed", slog.Duration("duration", r.Duration))
	}
	if s.cfg.Observe != nil {
		s.cfg.Observe(r)
	}
}

// Stats counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Offers = len(s.offers)
	for _, o := range s.offers {
		st.Open += len(o.open)
	}
	return st
}

// CodeOf is the code that goes on record for an error of this package.
func CodeOf(err error) events.Code {
	var e *events.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return events.CodeTransferFailed
}
