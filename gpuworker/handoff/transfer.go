package handoff

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// transfer is one pull in flight.
type transfer struct {
	offer *offer
	grant *events.Grant
	conn  *channel
	pin   *kvpool.Pin

	superseded bool // guarded by Server.mu
}

// transfer speaks the protocol on one connection, start to end.
func (s *Server) transfer(ctx context.Context, raw net.Conn, r *Result) error {
	// One deadline for the whole opening: a peer that trickles bytes does not
	// extend it.
	if err := raw.SetDeadline(time.Now().Add(s.cfg.Timeout)); err != nil {
		return fmt.Errorf("open transfer: %w", err)
	}
	conn, err := secure(ctx, raw, s.tls, true)
	if err != nil {
		return fmt.Errorf("open transfer: %w", err)
	}
	g, script, err := s.opening(conn)
	if g != nil {
		r.RequestID, r.Worker, r.GrantEpoch = g.RequestID, g.Worker, g.GrantEpoch
	}
	if err != nil {
		return s.refuse(conn, fmt.Errorf("check grant: %w", err))
	}

	select { // staging is bounded
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-time.After(s.cfg.Timeout):
		return s.refuse(conn, events.NewError(events.CodeOverloaded, "too many transfers"))
	case <-ctx.Done():
		return fmt.Errorf("open transfer: %w", ctx.Err())
	}
	// The page table comes last, after everything that could make us wait: what it
	// says holds from here on, since the pages are pinned with the same step.
	t, err := s.begin(g, conn)
	if err != nil {
		return s.refuse(conn, fmt.Errorf("check grant: %w", err))
	}
	defer s.finish(t)
	if err := s.send(t, script, r); err != nil {
		if e := s.seal(t); e != nil { // the connection was cut from here: say why
			return fmt.Errorf("send: %w", e)
		}
		return s.refuse(conn, fmt.Errorf("send: %w", err))
	}
	return nil
}

// opening exchanges hellos, reads the grant and makes the checks that need no
// page table. The grant is returned once its signature is good.
func (s *Server) opening(conn *channel) (*events.Grant, []byte, error) {
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	if _, err := conn.Write(appendHello(nil, nonce)); err != nil {
		return nil, nil, err
	}
	peerNonce, err := readHello(conn)
	if err != nil {
		return nil, nil, err
	}
	payload, err := readFrame(conn, frameGrant)
	if err != nil {
		return nil, nil, err
	}
	proof, err := readFrame(conn, frameProof)
	if err != nil {
		return nil, nil, err
	}
	g, err := s.open(payload)
	if err != nil {
		return nil, nil, err
	}
	script := transcript(nonce, peerNonce, conn.binding, payload)
	return g, script, s.check(g, conn, script, proof)
}

// open verifies and decodes a grant.
func (s *Server) open(payload []byte) (*events.Grant, error) {
	var signed events.SignedGrant
	if err := json.Unmarshal(payload, &signed); err != nil {
		return nil, events.NewError(events.CodeMalformed, "the grant frame is not a signed grant")
	}
	g, err := signed.Open(s.cfg.GrantKeys()...)
	if err != nil && s.cfg.Guards.NoSignature {
		g = new(events.Grant)
		err = json.Unmarshal(signed.Grant, g)
	}
	if err != nil {
		return nil, events.NewError(events.CodeGrantSignature, "the grant is not signed by a trusted key")
	}
	return g, nil
}

// check is what can be said of a grant without the page table.
func (s *Server) check(g *events.Grant, conn *channel, script, proof []byte) error {
	c := &s.cfg
	if !c.Guards.NoProof {
		key, err := decodeKey(g.WorkerKey)
		if err != nil || !ed25519.Verify(key, proofMessage(script), proof) || conn.peer != nil && !key.Equal(conn.peer) {
			return events.NewError(events.CodeForbidden, "the puller does not hold the granted key")
		}
	}
	if !c.Guards.NoOwner && (g.Owner != c.Name || !sameKey(c.Identity.Public().(ed25519.PublicKey), g.OwnerKey)) {
		return events.NewError(events.CodeWrongWorker, "the grant names another owner")
	}
	if !c.Guards.NoEpoch && g.OwnerEpoch != c.Epoch {
		return events.NewError(events.CodeWorkerEpoch, fmt.Sprintf("the grant is for boot epoch %d, this is %d", g.OwnerEpoch, c.Epoch))
	}
	if !c.Guards.NoLease && !c.Clock().Before(g.Lease) {
		return events.NewError(events.CodeLeaseOver, "the lease of the grant is over")
	}
	return nil
}

// send copies the pages chunk by chunk. Each chunk is gathered into staging of
// this transfer, summed, and sent only after its pages were found to be the
// request's still; staging is wiped however it ends.
func (s *Server) send(t *transfer, script []byte, r *Result) error {
	if err := s.release(t); err != nil {
		return err
	}
	head, err := s.head(t)
	if err != nil {
		return err
	}
	if err := s.write(t, appendFrame(appendFrame(nil, frameVerdict, nil), frameHeader, head)); err != nil {
		return err
	}

	sum, err := s.stream(t, r)
	if err != nil {
		return err
	}
	end, err := s.trailer(t, script, head, sum)
	if err != nil {
		return err
	}
	return s.write(t, appendFrame(nil, frameTrailer, end))
}

// pages is how many pages are sent: of an account, none.
func (s *Server) pages(t *transfer) int {
	if s.account() {
		return 0
	}
	return t.pin.Pages()
}

// sum is that of what goes before the pages: of an engine's reference, which
// stands for all of them, and 0 otherwise.
func (s *Server) sum(t *transfer) uint64 {
	if s.account() {
		return kvpool.Sum(t.offer.Key, 0, t.offer.Reference)
	}
	return 0
}

// piece is pages whose copy lies in a frame.
type piece struct {
	frame    []byte
	from, to int
	sum      uint64
	err      error
}

func (c *piece) body() []byte { return c.frame[frameHead+pagesHead:] }

// stream sends all pages, and returns their sum. Where a device copies by itself, it
// fills one frame while the other is on its way to the peer.
func (s *Server) stream(t *transfer, r *Result) (sum uint64, err error) {
	sum = s.sum(t)
	pages, size := s.pages(t), s.cfg.Pool.PageBytes()
	frames, err := s.staging.get(s.cfg.Pool.OnDevice() && pages > s.chunk)
	if err != nil {
		return 0, err
	}
	longest := frameHead + pagesHead + min(s.chunk, pages)*size // the first chunk's
	defer s.staging.put(frames, longest)
	copied := func(b []byte, from int) (c piece) {
		to := min(from+s.chunk, pages)
		c = piece{frame: frame(b)[:frameHead+pagesHead+(to-from)*size], from: from, to: to}
		c.err = s.gather(t, c.body(), from, to, &c.sum)
		return c
	}
	var ahead chan piece
	defer func() {
		if ahead != nil {
			<-ahead // it still writes to staging
		}
	}()
	for turn, from := 0, 0; from < pages; turn++ {
		var c piece
		if ahead == nil {
			c = copied(frames[turn%len(frames)], from)
		} else {
			c = <-ahead
			ahead = nil
		}
		if c.err != nil {
			return 0, c.err
		}
		if len(frames) > 1 && c.to < pages {
			done := make(chan piece, 1)
			ahead = done
			go func() { done <- copied(frames[(turn+1)%len(frames)], c.to) }()
		}
		if err := s.recheck(t, c.from, c.to); err != nil {
			return 0, err
		}
		putHead(c.frame, framePages, len(c.frame)-frameHead)
		binary.BigEndian.PutUint32(c.frame[frameHead:], uint32(c.from))
		if err := s.write(t, c.frame); err != nil {
			return 0, err
		}
		r.Bytes += int64(len(c.body()))
		sum += c.sum
		from = c.to
	}
	return sum, nil
}

// head is the header frame's payload.
func (s *Server) head(t *transfer) ([]byte, error) {
	h := header{
		RequestID: t.offer.RequestID, GrantEpoch: t.grant.GrantEpoch, PromptTokens: t.offer.PromptTokens,
		Pages: t.pin.Pages(), KVBytes: s.kvBytes(t.offer), KVDigest: t.offer.Digest.String(), Layout: s.cfg.Layout,
		Reference: t.offer.Reference, First: t.offer.First,
	}
	if s.account() {
		// A span and not a time: the two clocks need not agree.
		h.LeaseUS = t.offer.Lease.Sub(s.cfg.Clock()).Microseconds()
	}
	b, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	return b, nil
}

// gather copies pages [from, to) into staging and adds them to the sum.
func (s *Server) gather(t *transfer, body []byte, from, to int, sum *uint64) error {
	part, err := t.pin.GatherSum(body, from, to, t.offer.Key)
	*sum += part
	return err
}

// recheck says whether pages [from, to), whose copy lies in staging, may leave.
func (s *Server) recheck(t *transfer, from, to int) error {
	if s.cfg.Guards.NoRecheck {
		return nil
	}
	return t.pin.CheckPages(from, to)
}

// trailer checks everything once more, and makes the trailer without which the
// transfer does not count. A crash before it leaves the peer with bytes it may
// not use.
func (s *Server) trailer(t *transfer, script, head []byte, sum uint64) ([]byte, error) {
	if !s.cfg.Guards.NoRecheck {
		if err := t.pin.Check(); err != nil {
			return nil, err
		}
	}
	if kvpool.Digest(sum) != t.offer.Digest && !s.cfg.Guards.NoDigest {
		return nil, events.NewError(events.CodeDigestMismatch, "the pages changed since they were offered")
	}
	if now := s.cfg.Clock(); !s.cfg.Guards.NoLeaseEnd && (!now.Before(t.grant.Lease) || !now.Before(t.offer.Lease)) {
		return nil, events.NewError(events.CodeLeaseOver, "the lease ended during the copy")
	}
	if err := s.seal(t); err != nil {
		return nil, err
	}
	end := binary.BigEndian.AppendUint64(nil, sum)
	return append(end, ed25519.Sign(s.cfg.Identity, trailerMessage(script, head, sum))...), nil
}

// write sends whole frames under one deadline, the lease's end where that is
// nearer.
func (s *Server) write(t *transfer, frame []byte) error {
	d, err := s.patience(t)
	if err != nil {
		return err
	}
	if err := t.conn.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	_, err = t.conn.Write(frame)
	return err
}

// patience is how long the next frame may take to leave.
func (s *Server) patience(t *transfer) (time.Duration, error) {
	if s.cfg.Guards.NoLeaseEnd {
		return s.cfg.Timeout, nil
	}
	now := s.cfg.Clock()
	left := min(t.grant.Lease.Sub(now), t.offer.Lease.Sub(now))
	if left <= 0 {
		return 0, events.NewError(events.CodeLeaseOver, "the lease ended during the copy")
	}
	return min(s.cfg.Timeout, left), nil
}

// refuse tells the peer why, where the reason is one of ours, and returns it.
func (s *Server) refuse(conn *channel, err error) error {
	var e *events.Error
	if errors.Is(err, errFrame) {
		e = events.NewError(events.CodeMalformed, "malformed frame")
		err = fmt.Errorf("%w: %w", e, err)
	} else if !errors.As(err, &e) {
		return err
	}
	b, jerr := json.Marshal(e)
	if jerr != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(s.cfg.Timeout))
	_, _ = conn.Write(appendFrame(nil, frameVerdict, b)) // the peer may be gone
	return err
}
