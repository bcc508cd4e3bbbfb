package disclosure

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

// users is a server, and a way to be one of its users.
func users(t *testing.T) func(keyring.User) *nats.Conn {
	t.Helper()
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Gateways: []string{"gw1"}})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(t.TempDir(), "nats"), Ring: ring, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return func(u keyring.User) *nats.Conn {
		nc, err := natsclient.Connect(t.Context(), natsclient.Config{InProcess: b.InProcess(), Ring: ring, User: u, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

func TestStore(t *testing.T) {
	as := users(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := Open(as(keyring.Eraser))
	if err != nil {
		t.Fatal(err)
	}
	// Where nobody ever stored anything, nothing is there, and nothing is wrong.
	if got, err := store.Get(ctx, acme, "acme", request); got != nil || err != nil {
		t.Fatalf("no stream: %v %v", got, err)
	}
	if err := store.Purge(ctx, "acme"); err != nil {
		t.Fatalf("no stream: %v", err)
	}

	kept := make(chan error, 1)
	keep, stop := context.WithCancel(ctx)
	go func() { kept <- Keep(keep, as(keyring.LifecycleBus), 1, slog.New(slog.DiscardHandler)) }()
	gw := as(keyring.Gateway("gw1"))
	w, err := NewWriter(gw)
	if err != nil {
		t.Fatal(err)
	}
	globex := events.NewTenantKey(make([]byte, 32))
	put := func(key events.DigestKey, tenant, id string) {
		t.Helper()
		for { // until the stream is there
			err := w.Put(ctx, key, tenant, id, fieldsOf(key, id))
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	// Before the request's own: what a neighbour had an answer sent to.
	put(globex, "globex", other)
	if err := gw.Publish(events.DisclosureSubject("acme", request), []byte(`{"type":"io.nats.jetstream.api.v1"}`)); err != nil {
		t.Fatal(err)
	}
	put(acme, "acme", request)
	put(acme, "acme", other)
	stop()
	if err := <-kept; err != nil {
		t.Errorf("keep: %v", err)
	}

	get := func(key events.DigestKey, tenant, id string, want []events.Disclosure, wantErr error) {
		t.Helper()
		got, err := store.Get(ctx, key, tenant, id)
		if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, wantErr) {
			t.Errorf("%s of %s: %v\n%s", id, tenant, err, diff)
		}
	}
	get(acme, "acme", request, fieldsOf(acme, request), nil)
	get(globex, "globex", other, fieldsOf(globex, other), nil)
	get(globex, "acme", request, nil, ErrSealed)
	get(globex, "globex", request, nil, nil)

	if err := store.PurgeRequest(ctx, "acme", request); err != nil {
		t.Fatal(err)
	}
	get(acme, "acme", request, nil, nil)
	get(acme, "acme", other, fieldsOf(acme, other), nil)
	for range 2 {
		if err := store.Purge(ctx, "acme"); err != nil {
			t.Fatal(err)
		}
	}
	get(acme, "acme", other, nil, nil)
	get(globex, "globex", other, fieldsOf(globex, other), nil)
}
