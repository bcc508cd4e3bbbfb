package handoff

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// PullerConfig describes a Puller.
type PullerConfig struct {
	Name      string // the worker's, as grants name it
	Epoch     uint64 // its boot epoch
	Layout    string
	Pool      *kvpool.Pool
	Identity  ed25519.PrivateKey
	GrantKeys func() []ed25519.PublicKey

	Timeout time.Duration    // for dialling, the opening, and each frame after it; 0: 5 s
	Clock   func() time.Time // for leases; nil: time.Now
	Guards  Guards           // zero value: all checks
}

// Puller is the decode side. It may be used concurrently.
type Puller struct {
	cfg  PullerConfig
	cert tls.Certificate
}

// NewPuller makes a puller.
func NewPuller(cfg PullerConfig) (*Puller, error) {
	switch {
	case cfg.Name == "" || cfg.Epoch == 0 || cfg.Layout == "":
		return nil, errors.New("handoff: Name, Epoch and Layout are needed")
	case cfg.Pool == nil:
		return nil, errors.New("handoff: Pool is needed")
	case len(cfg.Identity) != ed25519.PrivateKeySize:
		return nil, errors.New("handoff: Identity is not an Ed25519 private key")
	case cfg.GrantKeys == nil:
		return nil, errors.New("handoff: GrantKeys is needed")
	case cfg.Timeout < 0:
		return nil, errors.New("handoff: Timeout is negative")
	}
	cfg.Timeout = or(cfg.Timeout, DefaultTimeout)
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	cert, err := certificate(cfg.Identity)
	if err != nil {
		return nil, err
	}
	return &Puller{cfg: cfg, cert: cert}, nil
}

// Pull asks for one pull of a request's KV.
type Pull struct {
	RequestID string
	Grant     *events.SignedGrant
	Key       uint64             // of the KV digest
	Into      *kvpool.Allocation // its first pages are written; what fails half-way is scrubbed by its Free
}

// Pulled is KV that arrived, with all checks passed.
type Pulled struct {
	Grant        *events.Grant
	KVRequest    string // whose KV the owner said it sent
	PromptTokens int
	KVBytes      int64
	KVDigest     string // summed over what arrived
	Reference    []byte
	First        []byte
	Lease        time.Time // the KV is gone after it, by this clock
	Duration     time.Duration
}

// account says whether the pages only stand for an engine's own memory.
func (p *Puller) account() bool { return p.cfg.Pool.PageBytes() == 0 }

// Pull fetches the KV that the grant allows. Where it returns an error, nothing
// in Into may be used; see [CodeOf] for the reason on record.
func (p *Puller) Pull(ctx context.Context, job Pull) (*Pulled, error) {
	g, err := p.open(job)
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	write, err := p.cfg.Pool.BeginWrite(job.Into)
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	defer write.End()
	conn, err := p.dial(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	defer conn.cut()
	// Whoever cancels wants the pages back: nothing is waited for.
	stop := context.AfterFunc(ctx, conn.cut)
	defer stop()
	out, err := p.receive(conn, g, job, write)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("pull: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return out, nil
}

// open checks that the grant is one for this worker and this allocation.
func (p *Puller) open(job Pull) (*events.Grant, error) {
	c := &p.cfg
	if job.Grant == nil || job.Into == nil {
		return nil, events.NewError(events.CodeMalformed, "there is no grant, or nowhere to put the KV")
	}
	g, err := job.Grant.Open(c.GrantKeys()...)
	if err != nil && c.Guards.NoSignature {
		g = new(events.Grant)
		err = json.Unmarshal(job.Grant.Grant, g)
	}
	if err != nil {
		return nil, events.NewError(events.CodeGrantSignature, "the grant is not signed by a trusted key")
	}
	pages := events.Pages(g.Pages)
	switch {
	case g.RequestID != job.RequestID && !c.Guards.NoHeader:
		return g, events.NewError(events.CodePageOwner, "the grant is for another request")
	case g.Worker != c.Name || !sameKey(c.Identity.Public().(ed25519.PublicKey), g.WorkerKey):
		return g, events.NewError(events.CodeWrongWorker, "the grant is for another worker")
	case g.WorkerEpoch != c.Epoch:
		return g, events.NewError(events.CodeWorkerEpoch, "the grant is for another life of this worker")
	case g.Layout != c.Layout || !p.account() && g.KVBytes != int64(pages)*int64(c.Pool.PageBytes()):
		return g, events.NewError(events.CodeIncompatible, "page layouts differ")
	case pages < 1 || pages > job.Into.Pages():
		return g, events.NewError(events.CodeReservation, fmt.Sprintf("%d pages granted, %d reserved", pages, job.Into.Pages()))
	case !c.Clock().Before(g.Lease) && !c.Guards.NoPullLease:
		return g, events.NewError(events.CodeLeaseOver, "the lease of the grant is over")
	}
	return g, nil
}

// dial connects to the owner. The address is the lifecycle's word, from an
// authenticated registration; the key decides whether it is the owner.
func (p *Puller) dial(ctx context.Context, g *events.Grant) (*channel, error) {
	network, at, err := splitAddress(g.OwnerAddress)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(p.cfg.Timeout)
	d := net.Dialer{Deadline: deadline}
	raw, err := d.DialContext(ctx, network, at)
	if err != nil {
		return nil, err
	}
	if err := raw.SetDeadline(deadline); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	conn, err := secure(ctx, raw, tlsConfig(p.cert, func(k ed25519.PublicKey) error {
		if !p.cfg.Guards.NoOwnerKey && !sameKey(k, g.OwnerKey) {
			return events.NewError(events.CodeWrongWorker, "the peer does not hold the owner's key")
		}
		return nil
	}), false)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// receive speaks the protocol, start to end.
func (p *Puller) receive(conn *channel, g *events.Grant, job Pull, write *kvpool.Write) (*Pulled, error) {
	start := time.Now()
	in := &arrival{p: p, grant: g, key: job.Key, write: write, began: p.cfg.Clock()}
	var err error
	if in.script, err = p.prove(conn, job.Grant); err != nil {
		return nil, err
	}
	if err := p.verdict(conn); err != nil {
		return nil, err
	}
	raw, err := readFrame(conn, frameHeader)
	if err != nil {
		return nil, err
	}
	if err := in.head(raw); err != nil {
		return nil, err
	}
	// A pages frame's two heads take one system call; KV goes past the buffer.
	r := bufio.NewReaderSize(conn, 16)
	if err := p.pages(conn, r, in); err != nil {
		return nil, err
	}
	if err := in.settle(); err != nil {
		return nil, err
	}
	if err := p.trailer(conn, r, in); err != nil {
		return nil, err
	}
	out, err := in.end()
	if err != nil {
		return nil, err
	}
	out.Duration = time.Since(start)
	return out, nil
}

// prove answers the owner's hello with grant and proof.
func (p *Puller) prove(conn *channel, signed *events.SignedGrant) (script []byte, err error) {
	ownerNonce, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(signed)
	if err != nil {
		return nil, fmt.Errorf("encode grant: %w", err)
	}
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	script = transcript(ownerNonce, nonce, conn.binding, payload)
	out := appendFrame(appendHello(nil, nonce), frameGrant, payload)
	out = appendFrame(out, frameProof, ed25519.Sign(p.cfg.Identity, proofMessage(script)))
	_, err = conn.Write(out)
	return script, err
}

// verdict reads the owner's word on the grant.
func (p *Puller) verdict(conn *channel) error {
	b, err := readFrame(conn, frameVerdict)
	if err != nil || len(b) == 0 {
		return err
	}
	return refusal(b)
}

// refusal is the owner's reason, as far as it can be taken over from a peer.
func refusal(b []byte) error {
	var e events.Error
	if err := json.Unmarshal(b, &e); err != nil || !e.Code.Known() {
		return fmt.Errorf("%w: verdict", errFrame)
	}
	message := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, e.Message)
	return fmt.Errorf("owner refused: %w", events.NewError(e.Code, message[:min(len(message), 200)]))
}

// deadline is set once for a whole frame, so that a trickle does not extend it.
func (p *Puller) deadline(conn *channel, g *events.Grant) error {
	d, err := p.patience(g)
	if err != nil {
		return err
	}
	return conn.SetReadDeadline(time.Now().Add(d))
}

// patience is how long the next frame may take to come.
func (p *Puller) patience(g *events.Grant) (time.Duration, error) {
	if p.cfg.Guards.NoPullLease {
		return p.cfg.Timeout, nil
	}
	left := g.Lease.Sub(p.cfg.Clock())
	if left <= 0 {
		return 0, events.NewError(events.CodeLeaseOver, "the lease ended during the copy")
	}
	return min(p.cfg.Timeout, left), nil
}

// pages receives all pages in order.
func (p *Puller) pages(conn *channel, r io.Reader, in *arrival) error {
	size, total := p.cfg.Pool.PageBytes(), in.due()
	for in.at < total {
		if err := p.deadline(conn, in.grant); err != nil {
			return err
		}
		t, n, err := readHead(r, max(maxChunk, size))
		if err != nil {
			return err
		}
		if t == frameVerdict {
			return abort(r, n)
		}
		if t != framePages || (n-pagesHead)%size != 0 || (n-pagesHead)/size > total-in.at {
			return fmt.Errorf("%w: type %q with %d bytes at page %d of %d", errFrame, byte(t), n, in.at, total)
		}
		var first [pagesHead]byte
		if _, err := io.ReadFull(r, first[:]); err != nil {
			return err
		}
		if err := in.pages(binary.BigEndian.Uint32(first[:]), (n-pagesHead)/size, r); err != nil {
			return err
		}
	}
	return nil
}

// abort reads a verdict that came instead of what was due.
func abort(r io.Reader, n int) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return refusal(b)
}

// trailer reads the owner's confirmation.
func (p *Puller) trailer(conn *channel, r io.Reader, in *arrival) error {
	if p.cfg.Guards.NoPullTrailer {
		return nil
	}
	if err := p.deadline(conn, in.grant); err != nil {
		return err
	}
	t, n, err := readHead(r, 0)
	if err != nil {
		return err
	}
	if t == frameVerdict {
		return abort(r, n)
	}
	if t != frameTrailer {
		return fmt.Errorf("%w: type %q where the trailer is due", errFrame, byte(t))
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return in.trailer(b)
}
