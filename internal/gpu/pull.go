package gpu

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// The pull across two processes: an owner, which a parent starts as a process of
// its own, and the puller in the parent. Each opens the device for itself.

const (
	pullID     = "00000000-0000-7000-8000-000000000001"
	pullLayout = "gpu.v1"
	pullKey    = 0x1234_5678_9abc_def1
	pullModel  = "gpu"
	pullTenant = "gpu"
	pullPrompt = 1
)

// OwnerConfig is what an owner is told, as one line of JSON on its standard input.
type OwnerConfig struct {
	Device    string            `json:"device"`
	PageBytes int               `json:"page_bytes"`
	Pages     int               `json:"pages"`
	Listen    string            `json:"listen"`
	GrantKey  ed25519.PublicKey `json:"grant_key"`
}

// offered is what an owner answers when it serves.
type offered struct {
	Key     ed25519.PublicKey `json:"key"`
	Address string            `json:"address"`
	Runs    []events.PageRun  `json:"runs"`
	Digest  string            `json:"digest"`
}

// RunOwner is the owner's process: it fills pages with fresh random data, serves
// them, and ends when its input does.
func RunOwner(ctx context.Context, stdin io.Reader, stdout io.Writer) (err error) {
	var cfg OwnerConfig
	d := json.NewDecoder(stdin)
	if err := d.Decode(&cfg); err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	pool, done, err := open(cfg.Device, cfg.Pages, cfg.PageBytes, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	a, err := pool.Alloc(pullID, cfg.Pages)
	if err != nil {
		return err
	}
	digest, err := fill(pool, a)
	if err != nil {
		return err
	}
	_, identity, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	s, err := handoff.NewServer(handoff.Config{Name: "owner", Epoch: 1, Layout: pullLayout, Pool: pool, Identity: identity, ChunkBytes: 4 << 20,
		GrantKeys: func() []ed25519.PublicKey { return []ed25519.PublicKey{cfg.GrantKey} }})
	if err != nil {
		return err
	}
	err = s.Offer(handoff.Offer{RequestID: pullID, Model: pullModel, Tenant: pullTenant, Alloc: a, PromptTokens: pullPrompt,
		Key: pullKey, Digest: digest, Lease: time.Now().Add(time.Hour), First: []byte("!")})
	if err != nil {
		return err
	}
	l, err := handoff.Listen(cfg.Listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	err = json.NewEncoder(stdout).Encode(offered{identity.Public().(ed25519.PublicKey), l.Address(), a.Runs(), digest.String()})
	if err == nil {
		_, err = io.Copy(io.Discard, stdin)
	}
	cancel()
	return errors.Join(err, <-served)
}

// fill writes random bytes to all pages, and says their digest.
func fill(pool *kvpool.Pool, a *kvpool.Allocation) (kvpool.Digest, error) {
	w, err := pool.BeginWrite(a)
	if err != nil {
		return 0, err
	}
	defer w.End()
	var seed [32]byte
	rand.Read(seed[:])
	r := mrand.NewChaCha8(seed)
	b := make([]byte, max(1, (4<<20)/pool.PageBytes())*pool.PageBytes())
	var sum, word uint64
	for page := 0; page < a.Pages(); {
		part := b[:min(len(b), (a.Pages()-page)*pool.PageBytes())]
		_, _ = r.Read(part) // never fails
		if err := w.Scatter(page, part); err != nil {
			return 0, err
		}
		sum += kvpool.Sum(pullKey, word, part)
		word += uint64(len(part) / 8)
		page += len(part) / pool.PageBytes()
	}
	return kvpool.Digest(sum), nil
}

// open makes a pool on a device, and what closes it.
func open(device string, pages, pageBytes int, epoch uint64) (*kvpool.Pool, func() error, error) {
	drv, err := kvpool.OpenDriver(device)
	if err != nil {
		return nil, nil, err
	}
	g, err := kvpool.NewGPU(drv, kvpool.GPUConfig{Pages: pages, PageBytes: pageBytes})
	if err != nil {
		return nil, nil, errors.Join(err, drv.Close())
	}
	done := func() error { return errors.Join(g.Close(), drv.Close()) }
	pool, err := kvpool.New(kvpool.Config{Pages: pages, PageBytes: pageBytes, Epoch: epoch, Device: g})
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return pool, done, nil
}

// Owner starts an owner with that configuration, which ends when the writer is
// closed; wait is for its end.
type Owner func(ctx context.Context) (stdin io.WriteCloser, stdout io.Reader, wait func() error, err error)

// pulls times whole verified pulls from an owner's process, after one that warms up.
func pulls(ctx context.Context, start Owner, cfg OwnerConfig, rounds int) (took []time.Duration, err error) {
	lifecycle, worker := newKey(), newKey()
	cfg.GrantKey = lifecycle.Public().(ed25519.PublicKey)
	stdin, stdout, wait, err := start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stdin.Close(), wait()) }()
	if err := json.NewEncoder(stdin).Encode(cfg); err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	var o offered
	if err := json.NewDecoder(stdout).Decode(&o); err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	pool, done, err := open(cfg.Device, cfg.Pages, cfg.PageBytes, 2)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	a, err := pool.Alloc(pullID, cfg.Pages)
	if err != nil {
		return nil, err
	}
	p, err := handoff.NewPuller(handoff.PullerConfig{Name: "puller", Epoch: 2, Layout: pullLayout, Pool: pool, Identity: worker,
		GrantKeys: func() []ed25519.PublicKey { return []ed25519.PublicKey{cfg.GrantKey} }})
	if err != nil {
		return nil, err
	}
	for round := range rounds + 1 {
		g := &events.Grant{
			RequestID: pullID, Model: pullModel, Tenant: pullTenant, GrantEpoch: round + 1, Event: "1.0",
			Owner: "owner", OwnerEpoch: 1, OwnerKey: handoff.EncodeKey(o.Key), OwnerAddress: o.Address,
			Worker: "puller", WorkerEpoch: 2, WorkerKey: handoff.EncodeKey(worker.Public().(ed25519.PublicKey)), Pages: o.Runs,
			PromptTokens: pullPrompt, KVBytes: int64(cfg.Pages) * int64(cfg.PageBytes), KVDigest: o.Digest, Layout: pullLayout, Lease: time.Now().Add(time.Minute),
		}
		signed, err := events.SignGrant(lifecycle, g)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if _, err := p.Pull(ctx, handoff.Pull{RequestID: pullID, Grant: signed, Key: pullKey, Into: a}); err != nil {
			return nil, err
		}
		if round > 0 {
			took = append(took, time.Since(began))
		}
	}
	return took, nil
}

func newKey() ed25519.PrivateKey {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // the system has no randomness: documented never to happen
	}
	return k
}
