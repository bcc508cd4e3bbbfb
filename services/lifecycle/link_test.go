package lifecycle

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// link gives nats.go in-process connections to a server that can be replaced,
// with hard cuts and, from a seed, delays on what the server sends.
type link struct {
	mu     sync.Mutex
	server nats.InProcessConnProvider
	conns  []*linked
	rng    *rand.Rand
	delay  time.Duration
}

var errDown = errors.New("server is down")

func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return nil, errDown
	}
	c, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	x := &linked{Conn: c, link: l}
	l.conns = append(l.conns, x)
	return x, nil
}

func (l *link) set(s nats.InProcessConnProvider) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = s
}

// cut breaks every connection.
func (l *link) cut() {
	l.mu.Lock()
	all := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

func (l *link) jitter() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.delay == 0 {
		return 0
	}
	return time.Duration(l.rng.Int64N(int64(l.delay)))
}

type linked struct {
	net.Conn
	link  *link
	reads int
}

// Read delays what the server sends. Not the first few reads: nats.go holds its
// lock while it reads the greeting, and a goroutine that waits for a mutex keeps
// a bubble's clock from moving.
func (c *linked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.reads++; c.reads > 6 {
		if d := c.link.jitter(); d > 0 {
			time.Sleep(d) // a slow network; in bubbles only
		}
	}
	return n, err
}
