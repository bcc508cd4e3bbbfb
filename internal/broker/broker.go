package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// readyTimeout bounds the start. Recovery of a large store happens within it.
const readyTimeout = 30 * time.Second

// minFree is the disk space below which the server does not start: a log that
// stops in the middle of the first request helps nobody. Tests change it.
var minFree uint64 = 64 << 20

// ErrAddressInUse means that somebody listens there already.
var ErrAddressInUse = errors.New("address already in use")

// ErrStoreInUse means that another process holds the store directory.
var ErrStoreInUse = errors.New("store directory is in use by another process")

// Broker is a running server.
type Broker struct {
	srv  *server.Server
	lock *os.File
	log  *logger
	once sync.Once
}

// Start starts the server, and returns when it accepts connections.
func Start(cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	lock, err := prepareStore(cfg.StoreDir)
	if err != nil {
		return nil, err
	}
	b, err := start(cfg, lock)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return b, nil
}

func start(cfg Config, lock *os.File) (*Broker, error) {
	if cfg.Port > 0 {
		// The server reports a taken port to its log only. Asking first costs a
		// race that the log line still covers.
		l, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("nats: listen on %s:%d: %w", cfg.Host, cfg.Port, ErrAddressInUse)
		}
		if err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
		l.Close()
	}
	text, err := cfg.Text()
	if err != nil {
		return nil, err
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(text); err != nil {
		return nil, fmt.Errorf("nats configuration: %w", err)
	}
	opts.DontListen = cfg.Port == 0
	opts.NoSigs = true
	opts.NoLog = true // the logger below is set by hand
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	log := &logger{log: cfg.Logger, failed: make(chan error, 1)}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	ok := false
	for end := time.Now().Add(readyTimeout); !ok && log.fatalLine() == "" && time.Now().Before(end); {
		ok = srv.ReadyForConnections(readyTimeout / 100)
	}
	if msg := log.fatalLine(); msg != "" || !ok {
		srv.Shutdown()
		srv.WaitForShutdown()
		if msg == "" {
			msg = fmt.Sprintf("not ready after %v", readyTimeout)
		}
		return nil, fmt.Errorf("nats: %s (store directory %s)", msg, cfg.StoreDir)
	}
	return &Broker{srv: srv, lock: lock, log: log}, nil
}

// prepareStore creates the directory, takes its lock, and finds out now what
// would otherwise end the first append.
func prepareStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store directory: %w", err)
	}
	// The lock is the kernel's: it ends with the process, however that ends.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store directory is not writable: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrStoreInUse)
		}
		return nil, fmt.Errorf("lock store directory %s: %w", dir, err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err == nil {
		if free := uint64(st.Bavail) * uint64(st.Bsize); free < minFree {
			lock.Close()
			return nil, fmt.Errorf("store directory %s: the disk has %d MB free, the log needs at least %d MB to start", dir, free>>20, minFree>>20)
		}
	}
	return lock, nil
}

// ClientURL is where clients connect; empty when the server does not listen.
func (b *Broker) ClientURL() string {
	if addr, ok := b.srv.Addr().(*net.TCPAddr); ok && addr != nil {
		return "nats://" + addr.String()
	}
	return ""
}

// InProcess connects without a socket.
func (b *Broker) InProcess() nats.Option { return nats.InProcessServer(b.srv) }

// Shutdown stops the server and waits until its files are closed. It may be
// called again.
func (b *Broker) Shutdown() {
	b.once.Do(func() {
		b.srv.Shutdown()
		b.srv.WaitForShutdown()
		b.lock.Close()
	})
}

// Wait blocks until ctx ends, and then returns its error, or until the server
// has stopped by itself, or cannot write what it is to store. It never can again
// then: after a failed write it refuses to guess what the disk holds, and goes on
// only from a start that reads it. Whoever waits must end the process.
func (b *Broker) Wait(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() { // ends with Shutdown at the latest
		b.srv.WaitForShutdown()
		close(stopped)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-stopped:
		return errors.New("nats server stopped")
	case err := <-b.log.failed:
		return err
	}
}

// logger hands the server's lines to slog. The server's notices are details of
// an embedded part, so they are at level debug.
type logger struct {
	log    *slog.Logger
	failed chan error // the first failed write

	mu    sync.Mutex
	fatal string
}

// storeFailed begins the server's line about a failed write. The line is the
// only sign: the publisher gets no answer.
const storeFailed = "JetStream failed to store a msg on stream "

func (l *logger) Noticef(format string, v ...any) {
	l.log.Debug("nats", "line", fmt.Sprintf(format, v...))
}
func (l *logger) Warnf(format string, v ...any) {
	l.log.Warn("nats", "line", fmt.Sprintf(format, v...))
}
func (l *logger) Errorf(format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	l.log.Error("nats", "line", line)
	if what, ok := strings.CutPrefix(line, storeFailed); ok {
		select {
		case l.failed <- fmt.Errorf("nats: cannot store on stream %s; what was acknowledged is safe: free disk space, or mend the disk, and start again", what):
		default:
		}
	}
}
func (l *logger) Debugf(string, ...any) {}
func (l *logger) Tracef(string, ...any) {}

// Fatalf keeps the first line for Start's error; the default would end the
// process.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == "" {
		l.fatal = fmt.Sprintf(format, v...)
	}
}

func (l *logger) fatalLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
