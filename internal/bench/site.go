package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

// Principals of a site.
const (
	siteGateway = "gw1"
	sitePrefill = "p1"
	siteDecode  = "d1"
)

// principals are the names of a load's roles.
var principals = map[events.Role]string{events.RoleGateway: siteGateway, events.RolePrefill: sitePrefill, events.RoleDecode: siteDecode}

var siteNames = keyring.Names{Gateways: []string{siteGateway}, Prefill: []string{sitePrefill}, Decode: []string{siteDecode}}

// site is an installation whose parts are processes of their own, on a fresh
// data directory.
type site struct {
	b      *bench
	dir    string
	remove func() error
	ring   *keyring.Ring
	nats   *child
	url    string

	conns []*nats.Conn
	parts []*child // beside the server
}

// open starts the server.
func (b *bench) open(ctx context.Context, fsync bool) (s *site, err error) {
	s = &site{b: b}
	if s.dir, s.remove, err = b.sub("site"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.ring, err = keyring.Open(filepath.Join(s.dir, "keys"), siteNames); err != nil {
		return nil, err
	}
	return s, s.up(ctx, fsync)
}

// up starts the server on the data directory as it is.
func (s *site) up(ctx context.Context, fsync bool) (err error) {
	s.nats, err = s.b.start(ctx, "nats", childConfig{Kind: kindNATS, Dir: s.dir, Keys: s.ring.Dir(), Names: siteNames, Fsync: fsync}, &s.url)
	return err
}

// close ends everything, and removes the data.
func (s *site) close() error { return errors.Join(s.down(), s.remove()) }

// down ends everything, and leaves the data.
func (s *site) down() error {
	s.disconnect()
	err := s.stopParts()
	if s.nats != nil {
		err = errors.Join(err, s.nats.stop())
		s.nats = nil
	}
	return err
}

// stopParts ends what runs beside the server.
func (s *site) stopParts() error {
	var errs []error
	for i := len(s.parts) - 1; i >= 0; i-- {
		errs = append(errs, s.parts[i].stop())
	}
	s.parts = nil
	return errors.Join(errs...)
}

// crash kills everything at once, and leaves the data.
func (s *site) crash() {
	s.disconnect()
	for _, c := range s.processes() {
		c.kill()
	}
	s.nats, s.parts = nil, nil
}

func (s *site) disconnect() {
	for _, nc := range s.conns {
		nc.Close()
	}
	s.conns = nil
}

// processes are the server and the parts beside it.
func (s *site) processes() []*child { return append([]*child{s.nats}, s.parts...) }

// Rest is found by processor time: what a process that has nothing to do uses of
// a stretch of time, twice in a row.
const (
	restLook  = 200 * time.Millisecond
	restShare = .15
	restMost  = 30 * time.Minute
)

// rest waits until no process works any more: queues are drained, and the read
// side has caught up.
func (s *site) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restMost)
	defer cancel()
	last, at, calm := map[*child]time.Duration{}, time.Now(), 0
	told := at
	for calm < 2 {
		if err := pause(ctx, restLook); err != nil {
			return fmt.Errorf("wait until the parts are at rest: %w", err)
		}
		now, busy := time.Now(), ""
		for _, c := range s.processes() {
			u, err := c.usage()
			if err != nil {
				return err
			}
			if was, ok := last[c]; !ok || float64(u.CPU-was) > restShare*float64(now.Sub(at)) {
				busy = c.name
			}
			last[c] = u.CPU
		}
		at = now
		if calm++; busy != "" {
			calm = 0
		}
		if now.Sub(told) > progressEvery && busy != "" {
			s.b.Progress("%s is still at work on what it was given", busy)
			told = now
		}
	}
	return nil
}

// progressEvery is the time between two lines of progress.
const progressEvery = 5 * time.Second

// warm says whether every process has collected garbage more than once, and every
// replica has written a snapshot: what happens for the first time is then not in
// what is measured.
func (s *site) warm() (bool, error) {
	for _, c := range s.processes() {
		u, err := c.usage()
		if err != nil || u.GCs < 2 {
			return false, err
		}
		if !strings.HasPrefix(c.name, replicaPrefix) {
			continue
		}
		if n, err := sizeOf(s.dir, filepath.Join(c.name, "lifecycle.snapshot")); err != nil || n == 0 {
			return false, err
		}
	}
	return true, nil
}

// replicaPrefix begins the names of the service's replicas.
const replicaPrefix = "lc"

// part starts another process beside the server.
func (s *site) part(ctx context.Context, name string, cfg childConfig) (*child, error) {
	cfg.URL, cfg.Keys, cfg.Name = s.url, s.ring.Dir(), name
	cfg.Dir = filepath.Join(s.dir, name)
	c, err := s.b.start(ctx, name, cfg, nil)
	if err == nil {
		s.parts = append(s.parts, c)
	}
	return c, err
}

// gone takes a part off the list: it was killed.
func (s *site) gone(c *child) {
	for i, p := range s.parts {
		if p == c {
			s.parts = append(s.parts[:i], s.parts[i+1:]...)
			return
		}
	}
}

// connect is a connection that ends with the site.
func (s *site) connect(ctx context.Context, u keyring.User) (*nats.Conn, error) {
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: s.url, Ring: s.ring, User: u, Logger: s.b.Logger})
	if err == nil {
		s.conns = append(s.conns, nc)
	}
	return nc, err
}

// replicas starts so many replicas of the service, and waits until each
// partition is served by exactly one of them.
func (s *site) replicas(ctx context.Context, n int) error {
	for i := range n {
		if _, err := s.part(ctx, replicaPrefix+strconv.Itoa(i+1), childConfig{Kind: kindLifecycle, Partitions: s.b.Partitions}); err != nil {
			return err
		}
	}
	_, err := s.settled(ctx)
	return err
}

// settled waits until each partition has one replica, and returns who serves
// what. A replica that is ready has claimed its partitions, and shares each one
// with its former holder until that one has heard of it.
func (s *site) settled(ctx context.Context) (map[int]string, error) {
	nc, err := s.connect(ctx, keyring.Operator)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		at, double, err := s.served(nc)
		if err != nil {
			return nil, err
		}
		if !double && len(at) == s.b.Partitions {
			return at, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("partitions do not settle: %d of %d are served: %w", len(at), s.b.Partitions, context.Cause(ctx))
		}
	}
}

// served asks all replicas which partitions they serve. double: two serve one.
func (s *site) served(nc *nats.Conn) (at map[int]string, double bool, err error) {
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return nil, false, fmt.Errorf("ask for partitions: %w", err)
	}
	defer sub.Unsubscribe()
	if err := nc.PublishRequest("$SRV.INFO.pdgate-lifecycle", sub.Subject, nil); err != nil {
		return nil, false, fmt.Errorf("ask for partitions: %w", err)
	}
	at = map[int]string{}
	for {
		m, err := sub.NextMsg(100 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) {
			return at, double, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("ask for partitions: %w", err)
		}
		var info micro.Info
		if err := json.Unmarshal(m.Data, &info); err != nil {
			return nil, false, fmt.Errorf("ask for partitions: %w", err)
		}
		if p, err := strconv.Atoi(info.Metadata["partition"]); err == nil {
			double = double || at[p] != ""
			at[p] = info.Metadata["replica"]
		}
	}
}

// Streams of raw publishing lie in the log's account, on the same server.
const (
	rawStream  = "BENCH"
	rawSubject = "bench.raw"
)

// raw opens a stream with the log's settings, for publishing without a journal.
func raw(ctx context.Context, nc *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	js, err := jetstream.New(nc, opts...)
	if err != nil {
		return nil, fmt.Errorf("raw stream: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: rawStream, Subjects: []string{rawSubject}, Storage: jetstream.FileStorage, AllowDirect: true,
		DenyDelete: true, DenyPurge: true, Discard: jetstream.DiscardNew,
	})
	if err != nil {
		return nil, fmt.Errorf("raw stream: %w", err)
	}
	return js, nil
}

// lone publishes one message after the other, each when the last one is
// acknowledged: what a single durable append takes.
func lone(ctx context.Context, js jetstream.JetStream, size int, d time.Duration) (Sample, error) {
	payload := make([]byte, size)
	var r Recorder
	start := time.Now()
	for time.Since(start) < d || len(r.d) < 10 {
		t := time.Now()
		if _, err := js.Publish(ctx, rawSubject, payload); err != nil {
			return Sample{}, fmt.Errorf("publish: %w", err)
		}
		r.Add(time.Since(t))
	}
	took := time.Since(start).Seconds()
	l := r.Latency()
	return Sample{Value: l.P99 / 1e3, Count: l.N, Seconds: took, Latency: l}, nil
}
