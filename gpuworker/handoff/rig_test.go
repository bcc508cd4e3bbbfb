package handoff

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testKey(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func publicKey(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// clock is a test's time. It stands still unless told otherwise, and can call a
// hook whenever somebody looks at it.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	hook func()
}

var epochStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newClock() *clock { return &clock{now: epochStart} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	hook := c.hook
	c.mu.Unlock()
	if hook != nil {
		hook()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) onLook(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = f
}

const testLease = 30 * time.Second

// rig is an owner and a puller, each with a pool, and the lifecycle's key.
type rig struct {
	t          testing.TB
	network    string
	lifecycle  ed25519.PrivateKey
	ownerKey   ed25519.PrivateKey
	pullerKey  ed25519.PrivateKey
	ownerClock *clock
	pullClock  *clock
	ownerPool  *kvpool.Pool
	pullPool   *kvpool.Pool
	server     *Server
	puller     *Puller
	address    string
	results    chan Result
}

type option func(*Config, *PullerConfig)

func guards(g Guards) option {
	return func(c *Config, p *PullerConfig) { c.Guards, p.Guards = g, g }
}

func timeout(d time.Duration) option {
	return func(c *Config, p *PullerConfig) { c.Timeout, p.Timeout = d, d }
}

const (
	testOwnerEpoch = 1_767_323_045_000_001
	testPullEpoch  = 1_767_323_045_000_002
	testLayout     = "test/v1"
)

func newRig(t testing.TB, network string, pages, pageBytes int, opts ...option) *rig {
	t.Helper()
	r := &rig{
		t: t, network: network, lifecycle: testKey("lifecycle"), ownerKey: testKey("p1"), pullerKey: testKey("d1"),
		ownerClock: newClock(), pullClock: newClock(), results: make(chan Result, 4096),
	}
	var err error
	if r.ownerPool, err = kvpool.New(kvpool.Config{Pages: pages, PageBytes: pageBytes, Epoch: testOwnerEpoch}); err != nil {
		t.Fatal(err)
	}
	if r.pullPool, err = kvpool.New(kvpool.Config{Pages: pages, PageBytes: pageBytes, Epoch: testPullEpoch}); err != nil {
		t.Fatal(err)
	}
	keys := func() []ed25519.PublicKey { return []ed25519.PublicKey{publicKey(r.lifecycle)} }
	sc := Config{Name: "p1", Epoch: testOwnerEpoch, Layout: testLayout, Pool: r.ownerPool, Identity: r.ownerKey, GrantKeys: keys,
		Clock: r.ownerClock.Now, Observe: func(res Result) { r.results <- res }}
	pc := PullerConfig{Name: "d1", Epoch: testPullEpoch, Layout: testLayout, Pool: r.pullPool, Identity: r.pullerKey, GrantKeys: keys,
		Clock: r.pullClock.Now}
	for _, o := range opts {
		o(&sc, &pc)
	}
	if r.server, err = NewServer(sc); err != nil {
		t.Fatal(err)
	}
	if r.puller, err = NewPuller(pc); err != nil {
		t.Fatal(err)
	}
	r.address = r.serve(r.server)
	return r
}

func (r *rig) listenAddress(name string) string {
	if r.network == "unix" {
		return "unix://" + filepath.Join(r.t.TempDir(), name)
	}
	return "tcp://127.0.0.1:0"
}

func (r *rig) serve(s *Server) string {
	r.t.Helper()
	l, err := Listen(r.listenAddress("owner"))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("serve: %v", err)
		}
	})
	return l.Address()
}

const kvKey = 0x1234_5678_9abc_def1

// prefill fills pages for a request and returns them with their bytes.
func (r *rig) prefill(id string, pages int) (*kvpool.Allocation, []byte) {
	r.t.Helper()
	a, err := r.ownerPool.Alloc(id, pages)
	if err != nil {
		r.t.Fatal(err)
	}
	w, err := r.ownerPool.BeginWrite(a)
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.End()
	seed := sha256.Sum256([]byte(id))
	b := make([]byte, pages*r.ownerPool.PageBytes())
	_, _ = rand.NewChaCha8(seed).Read(b)
	if err := w.Scatter(0, b); err != nil {
		r.t.Fatal(err)
	}
	return a, b
}

// offer prefills and offers.
func (r *rig) offer(id string, pages int) (Offer, []byte) {
	r.t.Helper()
	a, b := r.prefill(id, pages)
	o := Offer{RequestID: id, Model: "m", Tenant: "acme", Alloc: a, PromptTokens: pages * 64, Key: kvKey,
		Digest: kvpool.Digest(kvpool.Sum(kvKey, 0, b)), Lease: epochStart.Add(testLease), First: []byte("!"), Reference: []byte("ref")}
	if err := r.server.Offer(o); err != nil {
		r.t.Fatal(err)
	}
	return o, b
}

func (r *rig) grant(o Offer, epoch int) *events.Grant {
	runs := o.Alloc.Runs()
	return &events.Grant{
		RequestID: o.RequestID, Model: o.Model, Tenant: o.Tenant, GrantEpoch: epoch, Event: "1.0",
		Owner: "p1", OwnerEpoch: testOwnerEpoch, OwnerKey: EncodeKey(publicKey(r.ownerKey)), OwnerAddress: r.address,
		Worker: "d1", WorkerEpoch: testPullEpoch, WorkerKey: EncodeKey(publicKey(r.pullerKey)),
		Pages: runs, PromptTokens: o.PromptTokens, KVBytes: int64(events.Pages(runs) * r.ownerPool.PageBytes()),
		KVDigest: o.Digest.String(), Layout: testLayout, Lease: epochStart.Add(testLease),
	}
}

func (r *rig) sign(g *events.Grant) *events.SignedGrant {
	r.t.Helper()
	s, err := events.SignGrant(r.lifecycle, g)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// reserve allocates the puller's pages.
func (r *rig) reserve(id string, pages int) *kvpool.Allocation {
	r.t.Helper()
	a, err := r.pullPool.Alloc(id, pages)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) pull(g *events.Grant, into *kvpool.Allocation) (*Pulled, error) {
	r.t.Helper()
	return r.puller.Pull(r.t.Context(), Pull{RequestID: into.Owner(), Grant: r.sign(g), Key: kvKey, Into: into})
}

// content reads an allocation of the puller's.
func (r *rig) content(a *kvpool.Allocation, pages int) []byte {
	r.t.Helper()
	pin, err := r.pullPool.Pin(a.Owner(), testPullEpoch, a.Runs())
	if err != nil {
		r.t.Fatal(err)
	}
	defer pin.Release()
	b := make([]byte, pages*r.pullPool.PageBytes())
	if err := pin.Gather(b, 0, pages); err != nil {
		r.t.Fatal(err)
	}
	return b
}

// result is the owner's record of the next connection that ended.
func (r *rig) result() Result {
	r.t.Helper()
	select {
	case res := <-r.results:
		return res
	case <-time.After(10 * time.Second):
		r.t.Fatal("the owner recorded no end of the transfer")
		panic("unreachable")
	}
}

// wait fails the test where ch does not close soon.
func wait(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not come", what)
	}
}

// idle checks that neither side holds anything of a transfer.
func (r *rig) idle() {
	r.t.Helper()
	if n := r.ownerPool.Stats().Pinned; n != 0 {
		r.t.Errorf("%d pages are pinned after the transfer", n)
	}
	if n := r.server.Stats().Open; n != 0 {
		r.t.Errorf("%d transfers are open", n)
	}
}

func requestID(n int) string { return "01890a5d-ac96-774b-bcce-" + pad(n) }

func pad(n int) string {
	s := strconv.Itoa(n)
	return "000000000000"[len(s):] + s
}

// each runs a test over both transports.
func each(t *testing.T, f func(t *testing.T, network string)) {
	for _, n := range []string{"tcp", "unix"} {
		t.Run(n, func(t *testing.T) { f(t, n) })
	}
}

// rawPeer is a puller that a test drives by hand, past its proof.
func (r *rig) rawPeer(g *events.Grant) (*channel, error) {
	r.t.Helper()
	conn, err := r.puller.dial(r.t.Context(), g)
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(conn.cut)
	if _, err := r.puller.prove(conn, r.sign(g)); err != nil {
		return conn, err
	}
	return conn, r.puller.verdict(conn)
}

func dialRaw(t testing.TB, address string) net.Conn {
	t.Helper()
	network, at, err := splitAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial(network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
