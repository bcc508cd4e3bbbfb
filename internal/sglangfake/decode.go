package sglangfake

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// seat is what decode holds for one choice.
type seat struct {
	owner string
	pages []int
	slot  int
}

// decode takes pages for the whole prompt, tells prefill where they are, and
// waits. A request without another node computes its prompt itself.
func (n *Node) decode(j *job, w http.ResponseWriter) ([]*enginefake.Generation, error) {
	alone := n.cfg.Role == Unified || j.boot.Host == fakeHost
	pool := j.life.pools[j.rank]
	tokens := len(j.prompt) + j.max
	if j.faults.OverCommit {
		tokens = len(j.prompt)
	}
	var seats []*seat
	over := true // nobody writes to the pages
	defer func() {
		if over {
			n.leave(j, seats)
			return
		}
		n.drain(j, seats)
	}()
	timeout := n.cfg.Clock.After(n.cfg.WaitTimeout)
	err := n.waits(func() error {
		for range j.N {
			s := &seat{owner: token(8)}
			var err error
			if s.pages, err = pool.Acquire(j.ctx, s.owner, n.pages(tokens)); err != nil {
				return err
			}
			// Choices of one request share its room, and the slot with it (sglang#26486).
			if len(seats) > 0 {
				s.slot = seats[0].slot
			} else {
				s.slot = n.takeSlot(j.faults.ReuseMetadataSlot)
			}
			seats = append(seats, s)
		}
		if alone {
			return nil
		}
		over = false
		var err error
		over, err = n.receive(j, seats, timeout)
		return err
	})
	if err != nil {
		return nil, err
	}
	if alone {
		for _, s := range seats {
			if err := n.compute(j, pool, s.pages); err != nil {
				return nil, err
			}
		}
	}
	if err := n.Pass(j.ctx, enginefake.AtDecode); err != nil {
		return nil, err
	}
	var gens []*enginefake.Generation
	for _, s := range seats {
		g, err := n.first(j, s, alone)
		if err != nil {
			return nil, err
		}
		gens = append(gens, g)
	}
	if j.Stream {
		err := n.stream(w, j, gens, seats)
		if err == nil {
			n.count(func(s *Stats) { s.Decodes++ })
			n.logFinished(j, gens, nil)
		}
		return nil, err
	}
	for i, g := range gens {
		for g.Finish == "" {
			if err := n.tick(j, seats[i], g); err != nil {
				return nil, err
			}
			g.Step()
		}
	}
	n.count(func(s *Stats) { s.Decodes++ })
	return gens, nil
}

// receive waits for the KV. It says whether nobody writes any more.
func (n *Node) receive(j *job, seats []*seat, timeout <-chan time.Time) (over bool, err error) {
	id := *j.boot.Room
	n.mu.Lock()
	r := n.roomOf(id)
	n.mu.Unlock()
	peer := j.peer()
	was := lifeOf(j.ctx, peer)
	for _, s := range seats {
		t := transfer{Place: place{Room: id, Session: n.SideURL(), Life: j.life.id, Pages: s.pages, Rank: j.rank, Slot: s.slot}}
		if err := tell(j.ctx, peer, "/register", t); j.ctx.Err() != nil {
			return false, j.ctx.Err() // it may have arrived
		} else if err != nil {
			return true, refuse(http.StatusInternalServerError, "InternalServerError", "Could not fetch prefill parallel info from bootstrap_addr: %s", strings.TrimPrefix(peer, "http://"))
		}
	}
	for {
		n.mu.Lock()
		state, changed := r.state, r.changed
		n.mu.Unlock()
		switch state {
		case transferring:
			timeout = nil // only a wait has one
		case done:
			return true, nil
		case failed:
			n.count(func(s *Stats) { s.FailedTransfers++ })
			return true, lost(j, "KVTransferError")
		}
		select {
		case <-changed:
		case <-j.ctx.Done():
			return false, j.ctx.Err()
		case <-n.cfg.Clock.After(n.cfg.Heartbeat):
			if lifeOf(j.ctx, peer) == was || j.ctx.Err() != nil {
				continue
			}
			n.count(func(s *Stats) { s.FailedTransfers++ })
			return true, lost(j, fmt.Sprintf("Lost connection with prefill instance (bootstrap_addr: %s)", strings.TrimPrefix(peer, "http://")))
		case <-timeout:
			n.count(func(s *Stats) { s.FailedTransfers++ })
			return false, lost(j, fmt.Sprintf("Request timed out after %.1fs in KVPoll.WaitingForInput", n.cfg.WaitTimeout.Seconds()))
		}
	}
}

// peer is the bootstrap server that the request names.
func (j *job) peer() string {
	port := 8998 // the engine's default
	if j.boot.Port != nil {
		port = *j.boot.Port
	}
	return fmt.Sprintf("http://%s:%d", j.boot.Host, port)
}

func lost(j *job, why string) *abortion {
	return refuse(http.StatusInternalServerError, "InternalServerError", "Decode transfer failed for request rank=0 decode_req.req.rid='%s' decode_req.req.bootstrap_room=%d with exception %s", j.rid, *j.boot.Room, why)
}

// first starts a choice with the token that came with the KV.
func (n *Node) first(j *job, s *seat, alone bool) (*enginefake.Generation, error) {
	kv := j.life.pools[j.rank].Read(s.pages, len(j.prompt))
	if alone {
		return enginefake.NewGeneration(kv, j.max, j.Request), nil
	}
	n.mu.Lock()
	meta := n.slots[s.slot]
	n.mu.Unlock()
	if meta.Room != *j.boot.Room && !j.faults.ReuseMetadataSlot {
		return nil, refuse(http.StatusInternalServerError, "InternalServerError", "Metadata corruption detected - bootstrap_room mismatch. Request: %s, expected: bootstrap_room=%d, got: bootstrap_room=%d", j.rid, *j.boot.Room, meta.Room)
	}
	j.cached = meta.Cached
	g := enginefake.NewGeneration(kv, j.max, j.Request, meta.First)
	if j.max == 1 && !n.cfg.KeepLoneToken {
		g.Mute() // the token is in prefill's answer (sglang#34216)
	}
	return g, nil
}

// takeSlot reserves a place for a first token.
func (n *Node) takeSlot(same bool) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, used := range n.used {
		if !used || same {
			n.used[i] = true
			return i
		}
	}
	n.slots, n.used = append(n.slots, slot{}), append(n.used, true)
	return len(n.used) - 1
}

// leave frees what a request held.
func (n *Node) leave(j *job, seats []*seat) {
	for _, s := range seats {
		j.life.pools[j.rank].Release(s.owner, s.pages)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range seats {
		j.life.used[s.slot] = false
	}
	if j.boot.Room != nil {
		delete(j.life.rooms, *j.boot.Room)
	}
}

// drain frees it once prefill says that it writes no more.
func (n *Node) drain(j *job, seats []*seat) {
	if j.faults.FreeWhileWriting {
		n.leave(j, seats)
		return
	}
	ctx := j.life.ctx
	timeout := n.cfg.Clock.After(n.cfg.DrainTimeout)
	n.count(func(s *Stats) { s.Draining++ })
	j.life.work.Go(func() {
		if j.faults.DrainAckLost {
			select {
			case <-timeout:
			case <-ctx.Done():
			}
		} else {
			// A prefill that is gone writes nothing.
			_ = tell(ctx, j.peer(), "/drain", transfer{Place: place{Room: *j.boot.Room}})
		}
		n.leave(j, seats)
		n.count(func(s *Stats) { s.Draining-- })
	})
}

// tick is before each token: its time, and a page for it.
func (n *Node) tick(j *job, s *seat, g *enginefake.Generation) error {
	if j.faults.OverCommit {
		n.mu.Lock()
		frozen := n.counts.Frozen
		n.mu.Unlock()
		if !frozen && n.pages(len(j.prompt)+g.Tokens()+1) > len(s.pages) {
			more, ok := j.life.pools[j.rank].Alloc(s.owner, 1)
			s.pages, frozen = append(s.pages, more...), !ok
		}
		if frozen {
			return n.freeze(j)
		}
	}
	ctx, stop := context.WithCancel(j.ctx)
	defer stop()
	return n.pace(ctx)
}
