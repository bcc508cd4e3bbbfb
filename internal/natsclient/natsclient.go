// Package natsclient connects one of pdgate's NATS users, and turns what NATS
// reports beside the call that caused it into log lines that say what to do.
//
// A publish that the server forbids looks like a timeout to the caller; the
// reason arrives later, as an asynchronous error of the connection. Without its
// line in the log a wrong permission is a hang.
package natsclient

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/internal/keyring"
)

// Config describes a connection.
type Config struct {
	URL       string        // of an external server; ignored when InProcess is set
	InProcess nats.Option   // of an embedded one (broker.Broker.InProcess)
	Ring      *keyring.Ring // holds the user's key
	User      keyring.User
	CA        string       // file that signs the server's certificate, which is then asked for; empty: the system's, where the server wants TLS
	Logger    *slog.Logger // nil: slog.Default()
	// Timeout bounds the first connection; 0: 10 s; below 0: no bound. A server
	// that is not there yet is tried again until then, so that parts may start in
	// any order.
	Timeout time.Duration
}

const defaultTimeout = 10 * time.Second

// retryWait is the pause between tries of the first connection and of
// reconnections.
const retryWait = 100 * time.Millisecond

// A server that is cut off resets nothing: only its silence tells. Two pings
// without an answer make it lost, after 6 to 9 seconds.
const (
	pingEvery = 3 * time.Second
	pingsLost = 2
)

// Connect connects, and keeps reconnecting for ever after.
func Connect(ctx context.Context, cfg Config) (*nats.Conn, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	user, err := cfg.Ring.Option(cfg.User)
	if err != nil {
		return nil, err
	}
	log := cfg.Logger.With("nats_user", string(cfg.User))
	opts := []nats.Option{user, nats.MaxReconnects(-1), nats.ReconnectWait(retryWait), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsLost), nats.ErrorHandler(ErrorHandler(log)),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("nats connection lost, reconnecting", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info("nats connection is back", "url", nc.ConnectedUrlRedacted()) }),
	}
	if cfg.InProcess != nil {
		opts = append(opts, cfg.InProcess)
	}
	if cfg.CA != "" {
		if err := readableCA(cfg.CA); err != nil {
			return nil, err
		}
		opts = append(opts, nats.RootCAs(cfg.CA))
	}
	if cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	for try := 0; ; try++ {
		nc, err := nats.Connect(cfg.URL, opts...)
		switch {
		case err == nil:
			return nc, nil
		case errors.Is(err, nats.ErrAuthorization):
			return nil, fmt.Errorf("nats at %s does not know user %s with the key in %s: is the server started with the same key directory? %w",
				cfg.URL, cfg.User, cfg.Ring.Path(cfg.User), err)
		}
		if try == 0 && cfg.Timeout < 0 { // nobody else will say why nothing happens
			log.Warn("nats does not answer, trying again", "url", cfg.URL, "err", err)
		}
		t := time.NewTimer(retryWait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("connect to nats at %s as %s: is it running there (flag --nats-url)? %w (%w)", cfg.URL, cfg.User, err, ctx.Err())
		case <-t.C:
		}
	}
}

// readableCA finds out before the first try what no later one would mend.
func readableCA(path string) error {
	pem, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("nats: certificate authority: %w (flag --nats-ca)", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return fmt.Errorf("nats: certificate authority %s holds no certificate in PEM (flag --nats-ca)", path)
	}
	return nil
}

// ErrorHandler logs asynchronous errors. A forbidden subject is an error of the
// installation and is logged as one.
func ErrorHandler(log *slog.Logger) nats.ErrHandler {
	return func(_ *nats.Conn, sub *nats.Subscription, err error) {
		switch {
		case errors.Is(err, nats.ErrPermissionViolation):
			log.Error("nats forbids this subject: the user's permissions do not cover it; the call that used it ends in a timeout", "err", err)
		case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
			n, _ := sub.Dropped()
			log.Warn("nats messages dropped: the reader is too slow", "subject", sub.Subject, "dropped", n)
		default:
			log.Warn("nats error", "err", err)
		}
	}
}
