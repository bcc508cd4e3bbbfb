package main

import (
	"context"
	"errors"
	"iter"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/disclosure"
)

// discloser opens the salted digests of the lines that an export shows.
type discloser struct {
	ring  *keyring.Ring
	nc    *nats.Conn
	store *disclosure.Store
	gone  map[string]bool // tenants of whom it was said that a key is gone
	shut  int             // digests that nothing was found for
	say   func(format string, args ...any)
}

// openDiscloser needs the key directory and the user eraser.
func (a *app) openDiscloser(ctx context.Context, r *remote, say func(string, ...any)) (*discloser, error) {
	ring, err := a.load(r)
	if err != nil {
		return nil, err
	}
	nc, err := a.connect(ctx, r, ring, keyring.Eraser, connectTimeout)
	if err != nil {
		return nil, err
	}
	store, err := disclosure.Open(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &discloser{ring: ring, nc: nc, store: store, gone: map[string]bool{}, say: say}, nil
}

func (d *discloser) close() { d.nc.Close() }

// of are the disclosures of the lines, in their order. What is gone is left out,
// and said once a tenant.
func (d *discloser) of(ctx context.Context, lines iter.Seq2[[]byte, error]) iter.Seq2[events.Disclosure, error] {
	return func(yield func(events.Disclosure, error) bool) {
		for line, err := range lines {
			var open []events.Disclosure
			if err == nil {
				open, err = d.line(ctx, line)
			}
			if err != nil {
				yield(events.Disclosure{}, err)
				return
			}
			for _, o := range open {
				if !yield(o, nil) {
					return
				}
			}
		}
		if d.shut > 0 {
			d.say("%d salted digests are not disclosed: what opens them is gone, or was never stored", d.shut)
		}
	}
}

// line opens what it can of one line.
func (d *discloser) line(ctx context.Context, line []byte) ([]events.Disclosure, error) {
	e, err := events.Decode(line)
	if err != nil {
		return nil, nil // a leaf that is no event, or one of a later build: it has nothing to open
	}
	want := events.SaltedFields(e.Data)
	if len(want) == 0 {
		return nil, nil
	}
	adm := e.Data.(*events.RequestAdmitted) // nothing else has salted fields
	key, err := keyUnder(d.ring, e.Tenant, adm.TenantKey)
	if errors.Is(err, errKeyGone) {
		if name := e.Tenant + " " + adm.TenantKey; !d.gone[name] {
			d.gone[name] = true
			d.say("%v: exports without what it opens", err)
		}
		d.shut += len(want)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	have, err := d.store.Get(ctx, key, e.Tenant, e.Subject)
	if err != nil && !errors.Is(err, disclosure.ErrSealed) {
		return nil, err
	}
	var open []events.Disclosure
	for _, w := range want {
		found := false
		for _, h := range have {
			if !found && h.Event == e.ID && h.Field == w.Field && h.Digest() == w.Digest {
				open, found = append(open, h), true
			}
		}
		if !found {
			d.shut++
		}
	}
	return open, nil
}
