package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

// remote are the flags of a command that connects to a NATS server.
type remote struct {
	url  string
	keys string
	ca   string
}

func (r *remote) add(f *pflag.FlagSet) {
	f.StringVar(&r.url, "nats-url", "", "NATS server (default: the one that runs on the data directory, or "+nats.DefaultURL+")")
	f.StringVar(&r.ca, "nats-ca", "", "certificate authority of the NATS server's TLS (default: "+keyring.CAFile+" in the key directory, if it is there)")
	f.StringVar(&r.keys, "keys", "", "key directory (default: keys in the data directory)")
}

func (a *app) keyDir(keys string) string {
	if keys != "" {
		return keys
	}
	return filepath.Join(a.data, "keys")
}

// load opens the key directory as it is.
func (a *app) load(r *remote) (*keyring.Ring, error) {
	ring, err := keyring.Load(a.keyDir(r.keys))
	if err != nil {
		return nil, fmt.Errorf("%w (flag --keys)", err)
	}
	return ring, nil
}

// connect opens a connection within timeout, as natsclient.Config has it.
func (a *app) connect(ctx context.Context, r *remote, ring *keyring.Ring, u keyring.User, timeout time.Duration) (*nats.Conn, error) {
	url := r.url
	if url == "" {
		var err error
		if url, err = publishedURL(a.data, natsURLFile); err != nil {
			return nil, err
		}
	}
	if url == "" {
		url = nats.DefaultURL
	}
	ca := r.ca
	if ca == "" {
		ca = ring.CA()
	}
	return natsclient.Connect(ctx, natsclient.Config{URL: url, Ring: ring, User: u, CA: ca, Timeout: timeout, Logger: a.log})
}
