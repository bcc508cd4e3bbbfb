package handoff

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

func discard(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}

// tamper changes the byte at one offset of one direction, or ends the
// connection there.
type tamper struct {
	fromOwner bool
	offset    int
	mask      byte // 0: cut
}

// proxy stands between puller and owner for one connection at a time. It
// reports how many bytes went each way.
type proxy struct {
	address string
	mu      sync.Mutex
	do      tamper
	seen    [2]int
	hit     bool
}

func (r *rig) proxy() *proxy {
	r.t.Helper()
	l, err := Listen(r.listenAddress("proxy"))
	if err != nil {
		r.t.Fatal(err)
	}
	p := &proxy{address: l.Address()}
	network, at, _ := splitAddress(r.address)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(network, at)
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() { p.copy(out, in, 0) })
			wg.Go(func() { p.copy(in, out, 1) })
		}
	})
	r.t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return p
}

func (p *proxy) set(do tamper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do, p.seen, p.hit = do, [2]int{}, false
}

// copy moves bytes until one side ends, then ends the other.
func (p *proxy) copy(dst, src net.Conn, direction int) {
	defer func() { _ = dst.Close(); _ = src.Close() }()
	buf := make([]byte, 4096)
	at := 0
	for {
		n, err := src.Read(buf)
		b := buf[:n]
		p.mu.Lock()
		i := p.do.offset - at
		match := p.do.fromOwner == (direction == 1) && i >= 0 && i < n
		if match {
			p.hit = true
			if p.do.mask == 0 {
				b = b[:i]
			} else {
				b[i] ^= p.do.mask
			}
		}
		cut := match && p.do.mask == 0
		at += n
		p.seen[direction] = at
		p.mu.Unlock()
		if _, werr := dst.Write(b); werr != nil || err != nil || cut {
			return
		}
	}
}

// sweep pulls once for each tampering, and calls check with the outcome.
func sweep(t *testing.T, network string, flip bool, step func(total int) int) {
	r := newRig(t, network, 16, 64, timeout(150*time.Millisecond), func(c *Config, _ *PullerConfig) { c.ChunkBytes = 128 })
	o, want := r.offer(requestID(1), 3)
	p := r.proxy()
	epoch := 0
	attempt := func() error {
		epoch++
		g := r.grant(o, epoch)
		g.OwnerAddress = p.address
		into := r.reserve(o.RequestID, 3)
		defer func() { <-r.pullPool.Free(into) }()
		_, err := r.pull(g, into)
		if err == nil && !bytes.Equal(r.content(into, 3), want) {
			t.Error("other bytes arrived")
		}
		return err
	}
	p.set(tamper{offset: -1})
	if err := attempt(); err != nil {
		t.Fatalf("untouched: %v", err)
	}
	p.mu.Lock()
	total := p.seen
	p.mu.Unlock()
	if total[0] < 300 || total[1] < 300 {
		t.Fatalf("%v bytes went over the wire", total)
	}
	hits := 0
	for direction, n := range total {
		for at := 0; at < n; at += step(n) {
			mask := byte(0)
			if flip {
				mask = 1 << (at % 8)
			}
			p.set(tamper{direction == 1, at, mask})
			err := attempt()
			p.mu.Lock()
			hit := p.hit
			p.mu.Unlock()
			if hit {
				hits++
			}
			// What comes after the trailer (an alert that ends TLS) is nobody's loss.
			if err == nil && hit && (network == "unix" || direction == 0 || at < n-64) {
				t.Errorf("direction %d, byte %d of %d, mask %02x: the pull succeeded", direction, at, n, mask)
			}
		}
	}
	if hits < 50 {
		t.Fatalf("%d bytes were tampered with", hits)
	}
	r.quiet(epoch)
	p.set(tamper{offset: -1})
	if err := attempt(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	r.quiet(1)
	r.idle()
}

// quiet waits until n connections have ended at the owner.
func (r *rig) quiet(n int) {
	r.t.Helper()
	for range n {
		r.result()
	}
}

// Any byte changed anywhere on the wire: never a successful pull. On the Unix
// socket every byte is tried, with no encryption in the way (every seventh under
// the race detector).
func TestFlippedBytes(t *testing.T) {
	t.Run("unix", func(t *testing.T) { sweep(t, "unix", true, func(int) int { return sweepStep }) })
	t.Run("tcp", func(t *testing.T) { sweep(t, "tcp", true, func(n int) int { return n/40 + 1 }) })
}

// The connection ends after any number of bytes: never a successful pull, and
// nothing stays pinned.
func TestPeerDeath(t *testing.T) {
	t.Run("unix", func(t *testing.T) { sweep(t, "unix", false, func(int) int { return 10 + sweepStep }) })
	t.Run("tcp", func(t *testing.T) { sweep(t, "tcp", false, func(n int) int { return n/40 + 1 }) })
}

// Peers that connect and do nothing, or too little, are gone after the timeout,
// and others are served meanwhile.
func TestSlowPeers(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newRig(t, network, 16, 64, func(c *Config, _ *PullerConfig) { c.Timeout = 300 * time.Millisecond })
		o, _ := r.offer(requestID(1), 4)
		const n = 8
		stop := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(stop)
		for i := range n {
			c := dialRaw(t, r.address)
			if i%2 == 0 {
				continue // silent
			}
			wg.Go(func() { // one byte at a time: the timeout is for the whole opening
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
						if _, err := c.Write([]byte{byte(frameHello)}); err != nil {
							return
						}
					}
				}
			})
		}
		if _, err := r.pull(r.grant(o, 1), r.reserve(o.RequestID, 4)); err != nil {
			t.Errorf("beside slow peers: %v", err)
		}
		good := 0
		for range n + 1 {
			if r.result().Err == nil {
				good++
			}
		}
		if good != 1 {
			t.Errorf("%d transfers completed, want 1", good)
		}
		r.idle()
	})
}

// A puller that stops reading in the middle holds the pages no longer than the
// timeout.
func TestReaderThatStops(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		r := newBigRig(t, network, func(c *Config, _ *PullerConfig) { c.Timeout = 200 * time.Millisecond })
		o, _ := r.offer(requestID(1), bigPages)
		slowPull(r, o, 1)
		if res := r.result(); res.Err == nil {
			t.Error("completed without a reader")
		}
		r.idle()
	})
}

// An owner that trickles does not hold the puller longer than the timeout.
func TestOwnerThatTrickles(t *testing.T) {
	r := newRig(t, "unix", 16, 64, func(_ *Config, p *PullerConfig) { p.Timeout = 200 * time.Millisecond })
	o, _ := r.offer(requestID(1), 2)
	l, err := Listen(r.listenAddress("slow"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = l.Close() }()
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for _, b := range appendHello(nil, make([]byte, nonceSize)) {
			<-tick.C
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
		}
	})
	g := r.grant(o, 1)
	g.OwnerAddress = l.Address()
	start := time.Now()
	if _, err := r.pull(g, r.reserve(o.RequestID, 2)); err == nil {
		t.Error("pulled from a trickle")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A proof recorded on one connection is worth nothing on another.
func TestReplayedProof(t *testing.T) {
	r := newRig(t, "unix", 16, 64)
	o, _ := r.offer(requestID(1), 2)
	signed := r.sign(r.grant(o, 1))
	payload, err := json.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []byte
	for range 2 {
		conn, err := r.puller.dial(t.Context(), r.grant(o, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.cut()
		if recorded == nil { // read the owner's nonce and answer wrongly, keeping the proof
			nonce, err := readHello(conn)
			if err != nil {
				t.Fatal(err)
			}
			mine := make([]byte, nonceSize)
			rand.Read(mine)
			script := transcript(nonce, mine, conn.binding, payload)
			recorded = appendFrame(appendHello(nil, mine), frameGrant, payload)
			recorded = appendFrame(recorded, frameProof, signProof(r, script))
			continue
		}
		if _, err := readHello(conn); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(recorded); err != nil {
			t.Fatal(err)
		}
		if err := r.puller.verdict(conn); err == nil || CodeOf(err) != events.CodeForbidden {
			t.Errorf("a replayed proof got %v", err)
		}
	}
}

// What a refused or broken transfer staged is gone from the staging buffers.
func TestStagingIsWiped(t *testing.T) {
	r := newRig(t, "unix", 4, 64, func(c *Config, _ *PullerConfig) { c.Guards.NoTable = true })
	o, want := r.offer(requestID(1), 4)
	g := r.grant(o, 1)
	g.PromptTokens++ // the puller refuses the header, after the owner has staged
	if _, err := r.pull(g, r.reserve(o.RequestID, 4)); err == nil {
		t.Fatal("not refused")
	}
	r.result()
	st := r.server.staging
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.idle) != 1 {
		t.Fatalf("%d frames are idle", len(st.idle))
	}
	if b := st.idle[0]; bytes.Contains(b, want[:32]) || len(bytes.Trim(b, "\x00")) != 0 {
		t.Fatal("staging holds bytes of a finished transfer")
	}
}

// All pages arrive, and the owner's confirmation does not: nothing was
// transferred. Without that guard it passes for done.
func TestNoTrailerNoTransfer(t *testing.T) {
	total := 0 // as seen where the puller waits for all of it
	for _, g := range []Guards{{}, {NoPullTrailer: true}} {
		r := newRig(t, "unix", 16, 64, guards(g))
		o, _ := r.offer(requestID(1), 3)
		p := r.proxy()
		p.set(tamper{offset: -1})
		pull := func(epoch int) error {
			grant := r.grant(o, epoch)
			grant.OwnerAddress = p.address
			into := r.reserve(o.RequestID, 3)
			defer func() { <-r.pullPool.Free(into) }()
			_, err := r.pull(grant, into)
			return err
		}
		if err := pull(1); err != nil {
			t.Fatal(err)
		}
		r.result()
		p.mu.Lock()
		total = max(total, p.seen[1])
		p.mu.Unlock()
		p.set(tamper{fromOwner: true, offset: total - frameHead - trailerSize})
		if err := pull(2); (err == nil) != g.NoPullTrailer {
			t.Errorf("guards %+v: %v", g, err)
		}
		r.result()
	}
}
