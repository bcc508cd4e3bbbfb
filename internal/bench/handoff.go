package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// handoffSize is one case of the hand-off: bytes of KV, in pages.
type handoffSize struct{ page, bytes int }

var handoffSizes = []handoffSize{
	{64 << 10, 64 << 10}, {64 << 10, 4 << 20}, {64 << 10, 64 << 20},
	{2 << 20, 4 << 20}, {2 << 20, 64 << 20},
}

const handoffNote = "one request's KV, one connection. The plain copy writes as many bytes from one memory, in chunks and with a socket buffer as large, " +
	"straight into another, each as large as the pool; TLS is the library's, with a certificate at the server alone. " +
	"A pull also proves keys, checks the grant twice, stages, sums on both ends and signs; the signatures cost the same however small the KV is"

// handoff pulls KV as decode workers do, beside a plain copy of as many bytes
// over the same kind of socket.
func (b *bench) handoff(ctx context.Context) error { return b.handoffs(ctx, handoffSizes) }

func (b *bench) handoffs(ctx context.Context, sizes []handoffSize) error {
	type setup struct {
		network string
		size    handoffSize
		c       *Case
	}
	var all []setup
	for _, network := range []string{"unix", "tcp"} {
		for _, size := range sizes {
			name := "Unix socket"
			if network == "tcp" {
				name = "TCP with TLS 1.3"
			}
			all = append(all, setup{network, size, b.add(newCase("handoff", name, map[string]string{"page": bytesName(size.page), "KV": bytesName(size.bytes)},
				"verified pull", "plain copy", "GB/s",
				handoffNote))})
		}
	}
	for round := range b.Rounds {
		for _, x := range all {
			b.Progress("handoff: round %d of %d, %s", round+1, b.Rounds, x.c.title())
			p, c, err := b.pulls(ctx, round, x.network, x.size)
			if err != nil {
				return fmt.Errorf("%s: %w", x.c.title(), err)
			}
			x.c.add(p, c)
		}
	}
	return nil
}

func bytesName(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

const (
	handoffLayout = "bench.v1"
	handoffKey    = 0x1234_5678_9abc_def1
	handoffID     = zeroID
)

// transferRig is an owner and a puller, and the lifecycle's key.
type transferRig struct {
	network string
	size    handoffSize
	epoch   uint64

	lifecycle, owner, worker ed25519.PrivateKey
	puller                   *handoff.Puller
	from, into               *kvpool.Allocation
	digest                   string
	lease                    time.Time
	address                  string
	bytes                    []byte // what the owner holds
}

func (b *bench) pulls(ctx context.Context, round int, network string, size handoffSize) (p, c Sample, err error) {
	dir, remove, err := b.sub("handoff")
	if err != nil {
		return p, c, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	r, stop, err := b.newTransferRig(ctx, dir, network, size)
	if err != nil {
		return p, c, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	plain, done, err := newPlainCopy(dir, network, r.bytes, r.owner)
	if err != nil {
		return p, c, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return alternate(round,
		func() (Sample, error) { return b.transfers(size.bytes, func() error { return r.pull(ctx) }) },
		func() (Sample, error) { return b.transfers(size.bytes, func() error { return plain(ctx) }) })
}

// transfers repeats a transfer for the time of a measurement.
func (b *bench) transfers(bytes int, one func() error) (Sample, error) {
	if err := one(); err != nil { // the first touch of the memory
		return Sample{}, err
	}
	var r Recorder
	s, err := inProcess(func() (int, float64, error) {
		start := time.Now()
		for n := 1; ; n++ {
			t := time.Now()
			if err := one(); err != nil {
				return 0, 0, err
			}
			r.Add(time.Since(t))
			if time.Since(start) >= b.Duration && n >= 3 {
				return n, time.Since(start).Seconds(), nil
			}
		}
	})
	s.Value *= float64(bytes) / 1e9
	s.Latency = r.Latency()
	return s, err
}

func (b *bench) newTransferRig(ctx context.Context, dir, network string, size handoffSize) (*transferRig, func() error, error) {
	r := &transferRig{network: network, size: size, lease: time.Now().Add(time.Hour)}
	for _, k := range []*ed25519.PrivateKey{&r.lifecycle, &r.owner, &r.worker} {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		*k = key
	}
	pages := size.bytes / size.page
	pool := func(epoch uint64) (*kvpool.Pool, error) {
		return kvpool.New(kvpool.Config{Pages: pages, PageBytes: size.page, Epoch: epoch, Logger: b.Logger})
	}
	owners, err := pool(1)
	if err != nil {
		return nil, nil, err
	}
	pullers, err := pool(2)
	if err != nil {
		return nil, nil, err
	}
	if r.from, err = owners.Alloc(handoffID, pages); err != nil {
		return nil, nil, err
	}
	if r.into, err = pullers.Alloc(handoffID, pages); err != nil {
		return nil, nil, err
	}
	r.bytes = make([]byte, size.bytes)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], b.Seed)
	_, _ = mathrand.NewChaCha8(seed).Read(r.bytes) // never fails
	w, err := owners.BeginWrite(r.from)
	if err != nil {
		return nil, nil, err
	}
	err = w.Scatter(0, r.bytes)
	w.End()
	if err != nil {
		return nil, nil, err
	}
	sum := kvpool.Digest(kvpool.Sum(handoffKey, 0, r.bytes))
	r.digest = sum.String()
	keys := func() []ed25519.PublicKey { return []ed25519.PublicKey{publicKey(r.lifecycle)} }
	server, err := handoff.NewServer(handoff.Config{Name: sitePrefill, Epoch: 1, Layout: handoffLayout, Pool: owners, Identity: r.owner, GrantKeys: keys, Logger: b.Logger})
	if err != nil {
		return nil, nil, err
	}
	if r.puller, err = handoff.NewPuller(handoff.PullerConfig{Name: siteDecode, Epoch: 2, Layout: handoffLayout, Pool: pullers, Identity: r.worker, GrantKeys: keys}); err != nil {
		return nil, nil, err
	}
	if err := server.Offer(handoff.Offer{RequestID: handoffID, Model: loadModel, Tenant: loadTenant, Alloc: r.from, PromptTokens: loadPrompt,
		Key: handoffKey, Digest: sum, Lease: r.lease, First: []byte("!")}); err != nil {
		return nil, nil, err
	}
	l, err := handoff.Listen(transferAddress(dir, network, "owner"))
	if err != nil {
		return nil, nil, err
	}
	r.address = l.Address()
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	return r, func() error { cancel(); return <-served }, nil
}

// transferAddress is a place to listen on. Names are short: a socket's path
// holds a hundred bytes.
func transferAddress(dir, network, name string) string {
	if network == "unix" {
		return "unix://" + filepath.Join(dir, name)
	}
	return "tcp://127.0.0.1:0"
}

func publicKey(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// pull is one whole pull, under a grant of its own.
func (r *transferRig) pull(ctx context.Context) error {
	r.epoch++
	g := &events.Grant{
		RequestID: handoffID, Model: loadModel, Tenant: loadTenant, GrantEpoch: int(r.epoch), Event: "1.0",
		Owner: sitePrefill, OwnerEpoch: 1, OwnerKey: handoff.EncodeKey(publicKey(r.owner)), OwnerAddress: r.address,
		Worker: siteDecode, WorkerEpoch: 2, WorkerKey: handoff.EncodeKey(publicKey(r.worker)), Pages: r.from.Runs(),
		PromptTokens: loadPrompt, KVBytes: int64(r.size.bytes), KVDigest: r.digest, Layout: handoffLayout, Lease: r.lease,
	}
	signed, err := events.SignGrant(r.lifecycle, g)
	if err != nil {
		return err
	}
	got, err := r.puller.Pull(ctx, handoff.Pull{RequestID: handoffID, Grant: signed, Key: handoffKey, Into: r.into})
	if err != nil {
		return err
	}
	if got.KVDigest != r.digest || got.KVBytes != int64(r.size.bytes) {
		return errors.New("the pull brought something else")
	}
	return nil
}

const plainSocketBuffer = 1 << 20 // the hand-off's

// newPlainCopy serves b on a socket of the same kind, in chunks as large as the
// hand-off's, to whoever connects. It returns one whole copy into memory.
func newPlainCopy(dir, network string, b []byte, identity ed25519.PrivateKey) (one func(context.Context) error, stop func() error, err error) {
	address := transferAddress(dir, network, "plain")
	kind, at, _ := strings.Cut(address, "://")
	l, err := net.Listen(kind, at)
	if err != nil {
		return nil, nil, fmt.Errorf("plain copy: %w", err)
	}
	var server, client *tls.Config
	if network == "tcp" {
		if server, client, err = plainTLS(identity); err != nil {
			return nil, nil, errors.Join(err, l.Close())
		}
	}
	served := make(chan struct{})
	go func() { // ends with the listener
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if u, ok := c.(*net.UnixConn); ok {
				_ = u.SetWriteBuffer(plainSocketBuffer)
			}
			var w net.Conn = c
			if server != nil {
				w = tls.Server(c, server)
			}
			for rest := b; len(rest) > 0 && err == nil; {
				n := min(len(rest), handoff.DefaultChunkBytes)
				_, err = w.Write(rest[:n])
				rest = rest[n:]
			}
			_ = w.Close() // the reader notices what is missing
		}
	}()
	into := make([]byte, len(b))
	one = func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, kind, l.Addr().String())
		if err != nil {
			return fmt.Errorf("plain copy: %w", err)
		}
		defer c.Close()
		if client != nil {
			c = tls.Client(c, client)
		}
		if _, err := io.ReadFull(c, into); err != nil {
			return fmt.Errorf("plain copy: %w", err)
		}
		return nil
	}
	return one, func() error {
		err := l.Close()
		<-served
		return err
	}, nil
}

// plainTLS is TLS as plain as it can be had: one certificate, nobody verifies.
func plainTLS(identity ed25519.PrivateKey) (server, client *tls.Config, err error) {
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, identity.Public(), identity)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: identity}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, SessionTicketsDisabled: true},
		&tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, nil // its own loopback listener
}
