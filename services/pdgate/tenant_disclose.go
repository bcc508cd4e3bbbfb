package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/disclosure"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// disclosed is what tenant disclose prints.
type disclosed struct {
	RequestID string              `json:"request_id"`
	Tenant    string              `json:"tenant"`
	TenantKey string              `json:"tenant_key,omitempty"`
	Fields    []events.Disclosure `json:"fields,omitempty"`
	Kind      string              `json:"kind,omitempty"`     // of the digest that kind_key checks
	KindKey   string              `json:"kind_key,omitempty"` // hex
}

func (a *app) tenantDisclose(f *tenantFlags) *cobra.Command {
	rf := requestFlags{output: "table"}
	var request, kind string
	c := &cobra.Command{
		Use:   "disclose",
		Short: "Show what one request's personal digests stand for",
		Long: `disclose opens the disclosures of one request: the client's own request id, and the
client's name for its user. Each is shown with its salt, with which anybody can hold
it against the digest in the log.

With --digest prompt or output it prints the key of that one digest instead: whoever
has the text can check it with HMAC-SHA256 under this key, and no other digest.

It needs operator.nk, eraser.nk, and the tenant's key (digest-secret.key where the
tenant has none).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := events.RequestTime(request)
			if err == nil && kind != "" && kind != events.KindPrompt && kind != events.KindOutput {
				err = fmt.Errorf("digest %q: want prompt or output", kind)
			}
			if err != nil {
				return &usageError{fmt.Errorf("request: %w", err), cmd}
			}
			rf.remote = f.remote
			return a.operator(cmd, &rf, queryTimeout, func(ctx context.Context, c *client.Client) error {
				return a.disclose(ctx, c, &rf, request, kind)
			})
		},
	}
	p := c.Flags()
	p.StringVar(&request, "request", "", "the request, by its X-Request-Id")
	p.StringVar(&kind, "digest", "", "print the key of this digest: prompt or output")
	p.BoolVar(&rf.json, "json", false, "print JSON")
	return c
}

func (a *app) disclose(ctx context.Context, c *client.Client, rf *requestFlags, id, kind string) error {
	ring, err := a.load(&rf.remote)
	if err != nil {
		return err
	}
	adm, tenant, err := admissionOf(ctx, c, id)
	if err != nil {
		return err
	}
	key, err := keyUnder(ring, tenant, adm.TenantKey)
	if err != nil {
		return err
	}
	out := disclosed{RequestID: id, Tenant: tenant, TenantKey: adm.TenantKey}
	if kind != "" {
		out.Kind, out.KindKey = kind, hex.EncodeToString(events.KindKey(key.Request(id), kind))
	} else if out.Fields, err = a.fields(ctx, rf, ring, key, tenant, id, adm); err != nil {
		return err
	}
	if rf.output == "json" {
		return printJSON(a.stdout, out)
	}
	w := newTable(a.stdout)
	fmt.Fprintf(w, "request\t%s\ntenant\t%s\n", id, tenant)
	for _, d := range out.Fields {
		fmt.Fprintf(w, "%s\t%q\n  salt\t%s\n", d.Field, d.Value, hex.EncodeToString(d.Salt))
	}
	if kind != "" {
		fmt.Fprintf(w, "key of %s_digest\t%s\n", kind, out.KindKey)
	}
	return w.Flush()
}

// admissionOf is the event that admitted the request.
func admissionOf(ctx context.Context, c *client.Client, id string) (*events.RequestAdmitted, string, error) {
	h, err := c.History(ctx, id)
	if err != nil {
		return nil, "", err
	}
	for _, raw := range h.Events {
		e, err := events.Decode(raw)
		if err != nil {
			return nil, "", fmt.Errorf("history of %s: %w", id, err)
		}
		if adm, ok := e.Data.(*events.RequestAdmitted); ok {
			return adm, e.Tenant, nil
		}
	}
	return nil, "", fmt.Errorf("request %s was not admitted: nothing is digested of it", id)
}

// errKeyGone means that a request's key is not the tenant's any more.
var errKeyGone = errors.New("it was erased, or lies elsewhere")

// keyUnder is the key that a request was admitted under, from the key directory.
func keyUnder(ring *keyring.Ring, tenant, fingerprint string) (events.DigestKey, error) {
	if fingerprint == "" {
		secret, err := ring.DigestSecret()
		return events.DigestKey{Secret: secret}, err
	}
	key, err := ring.TenantKey(tenant)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return key, fmt.Errorf("key %s of tenant %s is not in %s: %w", fingerprint, tenant, ring.Dir(), errKeyGone)
	case err == nil && key.Fingerprint != fingerprint:
		return key, fmt.Errorf("key %s of tenant %s is not in %s, which has key %s: %w", fingerprint, tenant, ring.Dir(), key.Fingerprint, errKeyGone)
	}
	return key, err
}

// fields opens the request's disclosures, and holds them against the log.
func (a *app) fields(ctx context.Context, rf *requestFlags, ring *keyring.Ring, key events.DigestKey, tenant, id string, adm *events.RequestAdmitted) ([]events.Disclosure, error) {
	nc, err := a.connect(ctx, &rf.remote, ring, keyring.Eraser, connectTimeout)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	store, err := disclosure.Open(nc)
	if err != nil {
		return nil, err
	}
	have, err := store.Get(ctx, key, tenant, id)
	if err != nil {
		return nil, err
	}
	want := events.SaltedFields(adm)
	have = slices.DeleteFunc(have, func(d events.Disclosure) bool {
		return !slices.Contains(want, events.SaltedField{Field: d.Field, Digest: d.Digest()})
	})
	if len(have) == 0 && len(want) > 0 {
		return nil, fmt.Errorf("request %s has %d salted digests, and nothing that opens them: it was purged, or never stored", id, len(want))
	}
	return have, nil
}
