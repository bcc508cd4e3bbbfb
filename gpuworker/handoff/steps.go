package handoff

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/pdgate/pdgate/events"
)

// One transfer without a connection, step by step. The checks are those of
// [Server.Serve] and [Puller.Pull], in their order and in the same functions; a
// simulation puts whatever it likes between two steps: a lease that ends, pages
// that are given back, a page of the copy that is lost.

// Opening is what a puller sends first.
type Opening struct {
	Grant []byte // a signed grant's frame
	Proof []byte // of the key that the grant names, over this exchange
	nonce []byte // the owner's and the puller's, and what stands for the channel
}

// NewOpening is the opening of whoever holds key, for whatever grant: also one
// that was made out to somebody else. nonce stands for both sides' and must be
// new.
func NewOpening(signed *events.SignedGrant, key ed25519.PrivateKey, nonce []byte) (*Opening, error) {
	payload, err := json.Marshal(signed)
	if err != nil {
		return nil, fmt.Errorf("encode grant: %w", err)
	}
	o := &Opening{Grant: payload, nonce: nonce}
	o.Proof = ed25519.Sign(key, proofMessage(o.transcript()))
	return o, nil
}

func (o *Opening) transcript() []byte { return transcript(o.nonce, nil, nil, o.Grant) }

// latch is a connection that can only be cut.
type latch struct {
	net.Conn // nil: nothing is sent
	cut      atomic.Bool
}

// Close implements net.Conn.
func (l *latch) Close() error {
	l.cut.Store(true)
	return nil
}

var errCut = errors.New("the transfer was cut")

// Sending is the owner's side of one transfer.
type Sending struct {
	s        *Server
	t        *transfer
	latch    *latch
	script   []byte
	head     []byte
	from, to int
	sum      uint64
	body     []byte
}

// Begin checks a grant as it arrives, and opens its transfer. The caller ends it
// with [Sending.Close].
func (s *Server) Begin(o *Opening) (*Sending, error) {
	g, err := s.open(o.Grant)
	if err != nil {
		return nil, fmt.Errorf("check grant: %w", err)
	}
	x := &Sending{s: s, latch: &latch{}, script: o.transcript(), body: make([]byte, s.chunk*s.cfg.Pool.PageBytes())}
	conn := &channel{Conn: x.latch, raw: x.latch}
	if err := s.check(g, conn, x.script, o.Proof); err != nil {
		return nil, fmt.Errorf("check grant: %w", err)
	}
	if x.t, err = s.begin(g, conn); err != nil {
		return nil, fmt.Errorf("check grant: %w", err)
	}
	x.sum = s.sum(x.t)
	if err = s.release(x.t); err == nil {
		x.head, err = s.head(x.t)
	}
	if err == nil {
		err = x.may()
	}
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("send: %w", err)
	}
	return x, nil
}

// may says whether the next frame may leave.
func (x *Sending) may() error {
	if x.latch.cut.Load() {
		if err := x.s.seal(x.t); err != nil {
			return err
		}
		return errCut
	}
	_, err := x.s.patience(x.t)
	return err
}

// Header is what the puller gets first.
func (x *Sending) Header() []byte { return x.head }

// Pages is how many pages are sent.
func (x *Sending) Pages() int { return x.s.pages(x.t) }

// Copy copies the next pages into staging. It is false where none is left.
func (x *Sending) Copy() (bool, error) {
	if x.to == x.Pages() {
		return false, nil
	}
	x.from, x.to = x.to, min(x.to+x.s.chunk, x.Pages())
	return true, x.s.gather(x.t, x.staged(), x.from, x.to, &x.sum)
}

func (x *Sending) staged() []byte { return x.body[:(x.to-x.from)*x.s.cfg.Pool.PageBytes()] }

// Send checks what was copied, and gives out the number of the first page and
// all their bytes, which the next Copy overwrites.
func (x *Sending) Send() (first uint32, body []byte, err error) {
	if err := x.s.recheck(x.t, x.from, x.to); err != nil {
		return 0, nil, err
	}
	return uint32(x.from), x.staged(), x.may()
}

// End makes the last checks, and gives out the trailer.
func (x *Sending) End() ([]byte, error) {
	b, err := x.s.trailer(x.t, x.script, x.head, x.sum)
	if err != nil {
		return nil, err
	}
	return b, x.may()
}

// Close lets go of the pages and wipes the staging. Repeating it does nothing.
func (x *Sending) Close() {
	clear(x.body)
	if x.t != nil {
		x.s.finish(x.t)
		x.t = nil
	}
}

// Receiving is the puller's side of one transfer.
type Receiving struct{ in *arrival }

// Begin checks the grant and opens the reserved pages for writing. The caller
// ends it with [Receiving.Close]. nonce is [NewOpening]'s.
func (p *Puller) Begin(job Pull, nonce []byte) (*Receiving, *Opening, error) {
	g, err := p.open(job)
	if err != nil {
		return nil, nil, fmt.Errorf("pull: %w", err)
	}
	o, err := NewOpening(job.Grant, p.cfg.Identity, nonce)
	if err != nil {
		return nil, nil, fmt.Errorf("pull: %w", err)
	}
	write, err := p.cfg.Pool.BeginWrite(job.Into)
	if err != nil {
		return nil, nil, fmt.Errorf("pull: %w", err)
	}
	return &Receiving{&arrival{p: p, grant: g, key: job.Key, write: write, began: p.cfg.Clock(), script: o.transcript()}}, o, nil
}

// Header takes the owner's header.
func (r *Receiving) Header(raw []byte) error { return r.in.head(raw) }

// Pages takes pages. They must be whole, in order, and no more than granted.
func (r *Receiving) Pages(first uint32, body []byte) error {
	size := r.in.p.cfg.Pool.PageBytes()
	if size == 0 {
		return fmt.Errorf("%w: pages of an account", errFrame)
	}
	n := len(body) / size
	if len(body)%size != 0 || r.in.at+n > r.in.due() {
		return fmt.Errorf("%w: %d bytes at page %d", errFrame, len(body), r.in.at)
	}
	if _, err := r.in.p.patience(r.in.grant); err != nil {
		return err
	}
	return r.in.pages(first, n, bytes.NewReader(body))
}

// End takes the trailer and judges what arrived. Where pages are missing it is an
// error. A puller without the guard for it needs no trailer.
func (r *Receiving) End(trailer []byte) (*Pulled, error) {
	if r.in.header == nil || r.in.at != r.in.due() {
		return nil, fmt.Errorf("%w: the end at page %d", errFrame, r.in.at)
	}
	if err := r.in.settle(); err != nil {
		return nil, err
	}
	if !r.in.p.cfg.Guards.NoPullTrailer {
		if len(trailer) != trailerSize {
			return nil, fmt.Errorf("%w: trailer of %d bytes", errFrame, len(trailer))
		}
		if err := r.in.trailer(trailer); err != nil {
			return nil, err
		}
	}
	return r.in.end()
}

// Close ends the write. Repeating it does nothing.
func (r *Receiving) Close() { r.in.write.End() }
