package sglangfake

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// errTransfer is a transfer that failed.
var errTransfer = errors.New("KVTransferError")

// prefill waits for decode's pages, computes the prompt, writes its KV there, and
// only then has an answer.
func (n *Node) prefill(j *job) (*enginefake.Generation, error) {
	fake := j.boot.Host == fakeHost
	n.mu.Lock()
	r := n.roomOf(*j.boot.Room)
	n.mu.Unlock()
	if !fake {
		timeout := n.cfg.Clock.After(n.cfg.BootstrapTimeout)
		if err := n.waits(func() error { return n.placed(j, r, timeout) }); err != nil {
			n.drop(j)
			return nil, err
		}
	}
	owner := token(8)
	pool := j.life.pools[j.rank]
	ids, err := pool.Acquire(j.ctx, owner, n.pages(len(j.prompt)))
	if err == nil {
		err = n.compute(j, pool, ids)
	}
	if err != nil {
		pool.Release(owner, ids)
		n.refuseRoom(j, r)
		return nil, err
	}
	kv := pool.Read(ids, len(j.prompt))
	g := enginefake.NewGeneration(kv, 1, j.Request)
	g.All()
	g.Finish = enginefake.FinishLength // whatever the one token was
	if !fake {
		out := make(chan error, 1)
		n.mu.Lock()
		switch {
		case r.aborted:
			out <- errTransfer
			pool.Release(owner, ids)
		case r.writing == nil: // a room is written once
			r.writing = make(chan struct{})
			dest := r.dest
			j.life.work.Go(func() {
				err := n.write(j, dest, transfer{Place: dest, KV: kv, Meta: slot{Room: *j.boot.Room, First: g.Raw()[0], Cached: j.cached}})
				pool.Release(owner, ids)
				n.mu.Lock()
				close(r.writing)
				delete(j.life.rooms, *j.boot.Room)
				n.mu.Unlock()
				out <- err
			})
		default:
			out <- nil
			pool.Release(owner, ids)
		}
		n.mu.Unlock()
		select {
		case err = <-out:
		case <-j.ctx.Done():
			return nil, j.ctx.Err()
		}
		if err != nil {
			n.drop(j)
			n.count(func(s *Stats) { s.FailedTransfers++ })
			return nil, refuse(http.StatusInternalServerError, "InternalServerError", "Prefill transfer failed for request rank=0 req.rid='%s' bootstrap_room=%d with exception %v", j.rid, *j.boot.Room, err)
		}
	} else {
		pool.Release(owner, ids)
		n.drop(j)
	}
	if err := n.Pass(j.ctx, enginefake.AtAnswer); err != nil {
		return nil, err
	}
	n.count(func(s *Stats) { s.Prefills++ })
	return g, nil
}

// placed waits for decode's pages.
func (n *Node) placed(j *job, r *room, timeout <-chan time.Time) error {
	select {
	case <-r.placed:
		return nil
	case <-j.ctx.Done():
		return j.ctx.Err()
	case <-timeout:
		return refuse(http.StatusInternalServerError, "InternalServerError", "Prefill bootstrap failed for request rank=0 req.rid='%s' bootstrap_room=%d with exception Request timed out after %.1fs in KVPoll.Bootstrapping", j.rid, *j.boot.Room, n.cfg.BootstrapTimeout.Seconds())
	}
}

// compute is the forward pass over the prompt.
func (n *Node) compute(j *job, pool *enginefake.Pool, ids []int) error {
	if err := n.Pass(j.ctx, enginefake.AtPrefill); err != nil {
		return err
	}
	j.cached = n.lookup(j)
	if err := enginefake.Sleep(j.ctx, n.cfg.Clock, enginefake.Work(len(j.prompt)-j.cached, n.cfg.PrefillRate)); err != nil {
		return err
	}
	pool.Write(ids, 0, j.prompt)
	return nil
}

// write sends the KV. Once begun it does not ask whether its client is there
// still: what is on its way arrives.
func (n *Node) write(j *job, dest place, t transfer) error {
	ctx, f := j.life.ctx, j.faults
	if err := tell(ctx, dest.Session, "/begin", t); err != nil {
		return err
	}
	if f.StuckTransfer {
		select {
		case <-j.ctx.Done():
		case <-ctx.Done():
		}
		return errors.Join(errTransfer, tell(ctx, dest.Session, "/fail", t))
	}
	if err := n.Pass(ctx, enginefake.AtTransfer); err != nil {
		return err
	}
	if f.FailTransfer {
		return errors.Join(errTransfer, tell(ctx, dest.Session, "/fail", t))
	}
	if j.ctx.Err() != nil {
		t.Place.Slot = -1 // the first token goes out last, and not for who has left
	}
	if f.CorruptTransfer {
		t.KV = append([]byte(nil), t.KV...)
		for at := n.cfg.PageSize - 1; at < len(t.KV); at += n.cfg.PageSize {
			t.KV[at] ^= 1
		}
		t.KV[len(t.KV)-1] ^= 2
	}
	return tell(ctx, dest.Session, "/kv", t)
}

// refuseRoom tells decode that nothing will come.
func (n *Node) refuseRoom(j *job, r *room) {
	n.mu.Lock()
	dest := r.dest
	n.mu.Unlock()
	if dest.Session != "" {
		t := transfer{Place: dest}
		_ = tell(context.WithoutCancel(j.ctx), dest.Session, "/fail", t) // a decode that is gone waits for nothing
	}
	n.drop(j)
}

// drop forgets a room whose writer, if it had one, has ended.
func (n *Node) drop(j *job) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.rooms[*j.boot.Room]; r != nil && (r.writing == nil || r.over()) {
		delete(n.rooms, *j.boot.Room)
	}
}

// prefix is a prompt that was here before.
type prefix struct {
	key    string
	prompt []byte
}

// lookup is how many tokens of the prompt's beginning a cache had, in whole
// pages, and remembers the prompt.
func (n *Node) lookup(j *job) int {
	if !n.cfg.PrefixCache {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key, best := j.boot.ExtraKey+"\x00"+j.boot.Salt, 0
	for _, p := range n.prefixes {
		if p.key != key && !j.faults.SharedPrefix {
			continue
		}
		same := 0
		for same < min(len(p.prompt), len(j.prompt)) && p.prompt[same] == j.prompt[same] {
			same++
		}
		best = max(best, min(same, len(j.prompt)-1)/n.cfg.PageSize*n.cfg.PageSize)
	}
	n.prefixes = append(n.prefixes, prefix{key, j.prompt})
	return best
}
