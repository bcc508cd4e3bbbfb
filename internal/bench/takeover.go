package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// takeover ends the replica that is preferred for some partitions, in two ways,
// and measures how long it takes until these partitions answer again. Commands
// come through the product's client, which gateways and workers use.
func (b *bench) takeover(ctx context.Context) error {
	fsync := b.Fsync[0]
	ways := []struct {
		name string
		end  func(*child) error
	}{
		{"killed", func(c *child) error { c.kill(); return nil }},
		{"hanging", (*child).pause},
	}
	var cases []*Case
	for _, w := range ways {
		cases = append(cases, b.add(newCase("takeover", "one of two replicas is "+w.name, map[string]string{"fsync": onOff(fsync)},
			"first answer afterwards", "an answer before", unitMillis,
			"from the end of the replica to the first answer to a command sent after it, through the product's client; the value is the slowest of the lost partitions, latency is over all of them; the ceiling's value is p99")))
	}
	slowest := make([]time.Duration, len(ways))
	for round := range b.Rounds {
		for i, w := range ways {
			b.Progress("takeover: round %d of %d, %s", round+1, b.Rounds, w.name)
			o, err := b.outage(ctx, fsync, w.end)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			cases[i].add(o.first, o.normal)
			slowest[i] = max(slowest[i], o.open)
		}
	}
	for i, c := range cases {
		if slowest[i] > 0 {
			c.Notes = append(c.Notes, "the slowest command that was open when the replica ended took "+us(micros(slowest[i]))+": the client's patience with the preferred replica")
		}
	}
	return nil
}

// asked is one command to one partition; a zero answered: it waits still.
type asked struct {
	partition      int
	sent, answered time.Time
}

// askEvery is the time between two commands to a partition.
const askEvery = 10 * time.Millisecond

// prober sends commands to every partition at a steady pace, whatever has been
// answered: a caller that waits for its own last answer would measure the
// client's timeout.
type prober struct {
	client     *client.Client
	partitions int

	mu     sync.Mutex // guards all below
	all    []*asked
	failed error
}

// run sends until stop is closed, and returns when all is answered, or ctx ends.
func (p *prober) run(ctx context.Context, stop <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	t := time.NewTicker(askEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for part := range p.partitions {
			x := &asked{partition: part, sent: time.Now()}
			p.mu.Lock()
			p.all = append(p.all, x)
			p.mu.Unlock()
			wg.Go(func() {
				_, err := p.client.Admit(ctx, newID(part, p.partitions), steps[0].data(nil, nil).(*events.Admit))
				now := time.Now()
				p.mu.Lock()
				defer p.mu.Unlock()
				if err != nil {
					p.failed = errors.Join(p.failed, err)
					return
				}
				x.answered = now
			})
		}
	}
}

// first is when each of the partitions first answered a command that was sent
// after t; ok: all of them have.
func (p *prober) first(partitions map[int]bool, t time.Time) (after []time.Duration, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := map[int]time.Duration{}
	for _, x := range p.all {
		if !partitions[x.partition] || x.answered.IsZero() || !x.sent.After(t) {
			continue
		}
		if d, seen := at[x.partition]; !seen || x.answered.Sub(t) < d {
			at[x.partition] = x.answered.Sub(t)
		}
	}
	for _, d := range at {
		after = append(after, d)
	}
	return after, len(at) == len(partitions), p.failed
}

// outage measures one takeover.
func (b *bench) outage(ctx context.Context, fsync bool, end func(*child) error) (_ outcome, err error) {
	s, err := b.open(ctx, fsync)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.replicas(ctx, 2); err != nil {
		return outcome{}, err
	}
	l, err := s.newLoad(ctx, true) // for its workers
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	at, err := s.settled(ctx)
	if err != nil {
		return outcome{}, err
	}
	// Which replica is preferred for how many partitions depends on their names.
	many := map[string]int{}
	for _, name := range at {
		many[name]++
	}
	victim := s.parts[0]
	if many[s.parts[1].name] > many[victim.name] {
		victim = s.parts[1]
	}
	lost := map[int]bool{}
	for part, name := range at {
		if name == victim.name {
			lost[part] = true
		}
	}
	nc, err := s.connect(ctx, keyring.Gateway(siteGateway))
	if err != nil {
		return outcome{}, err
	}
	cl, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleGateway, Principal: siteGateway, Partitions: b.Partitions, Logger: b.Logger})
	if err != nil {
		return outcome{}, err
	}
	p := &prober{client: cl, partitions: b.Partitions}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, stopped := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() { defer close(stopped); p.run(asking, stop) }()
	quit := sync.OnceFunc(func() { close(stop); <-stopped })
	defer quit()
	if err := pause(ctx, max(b.Duration/2, 200*time.Millisecond)); err != nil {
		cancel()
		return outcome{}, err
	}
	ended := time.Now()
	if err := end(victim); err != nil {
		cancel()
		return outcome{}, err
	}
	s.gone(victim)
	defer victim.kill() // if it hangs
	first, err := p.await(ctx, lost, ended)
	if err != nil {
		cancel()
		return outcome{}, err
	}
	quit() // what was open is answered now
	return p.outcome(first, start, ended, lost)
}

// await waits until every lost partition answers.
func (p *prober) await(ctx context.Context, lost map[int]bool, ended time.Time) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		first, ok, err := p.first(lost, ended)
		if ok || err != nil {
			return first, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d lost partitions answer: %w", len(first), len(lost), context.Cause(ctx))
		}
	}
}

// outcome is what one takeover came to.
type outcome struct {
	first, normal Sample
	open          time.Duration // the slowest of the commands that were open when the replica ended; 0: none was
}

func (p *prober) outcome(first []time.Duration, start, ended time.Time, lost map[int]bool) (o outcome, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return o, p.failed
	}
	var before, after Recorder
	for _, x := range p.all {
		switch {
		case x.answered.Before(ended):
			before.Add(x.answered.Sub(x.sent))
		case x.sent.Before(ended) && lost[x.partition]:
			o.open = max(o.open, x.answered.Sub(ended))
		}
	}
	for _, d := range first {
		after.Add(d)
	}
	normal, out := before.Latency(), after.Latency()
	if normal == nil || out == nil {
		return o, errors.New("nothing was answered, or no partition was lost")
	}
	o.first = Sample{Value: out.Max / 1e3, Count: out.N, Seconds: out.Max / 1e6, Latency: out}
	o.normal = Sample{Value: normal.P99 / 1e3, Count: normal.N, Seconds: ended.Sub(start).Seconds(), Latency: normal}
	return o, nil
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
