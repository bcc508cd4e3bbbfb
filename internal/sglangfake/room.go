package sglangfake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// The side channel stands for the bootstrap server of a prefill node, and for
// the memory of a decode node that a prefill node writes to. A write asks
// nobody: it names pages, and the pages are written.

type state int

const (
	waiting state = iota
	transferring
	done
	failed
)

// room is a transfer as one node knows it. Its fields are under Node.mu.
type room struct {
	// Of a prefill node.
	placed  chan struct{} // closed once decode's pages are known
	dest    place         // the last that was registered
	writing chan struct{} // nil until a writer begins; closed when it has ended
	aborted bool          // decode wants nothing any more, and may have freed its pages

	// Of a decode node.
	state   state
	changed chan struct{} // closed at each change of state
}

// over says whether a writer has begun and ended.
func (r *room) over() bool {
	if r.writing == nil {
		return false
	}
	select {
	case <-r.writing:
		return true
	default:
		return false
	}
}

// place is where decode wants the KV of a room.
type place struct {
	Room    int64  `json:"room"`
	Session string `json:"session"` // decode's side channel
	Life    string `json:"life"`    // of the decode node: memory of an earlier one is gone
	Pages   []int  `json:"pages"`
	Rank    int    `json:"rank"`
	Slot    int    `json:"slot"`
}

// slot is where the first token of a request arrives.
type slot struct {
	Room   int64 `json:"room"`
	First  byte  `json:"first"`
	Cached int   `json:"cached"`
}

// transfer is what a prefill node writes.
type transfer struct {
	Place place  `json:"place"`
	KV    []byte `json:"kv"`
	Meta  slot   `json:"meta"`
}

// roomOf returns the room, and makes it at its first mention. The caller has n.mu.
func (n *Node) roomOf(id int64) *room {
	r := n.rooms[id]
	if r == nil {
		r = &room{placed: make(chan struct{}), changed: make(chan struct{})}
		n.rooms[id] = r
	}
	return r
}

// turn changes the state of a room on a decode node. The caller has n.mu.
func (r *room) turn(s state) {
	r.state = s
	close(r.changed)
	r.changed = make(chan struct{})
}

func (n *Node) sideRoutes() http.Handler {
	mux := http.NewServeMux()
	side := func(pattern string, f func(context.Context, transfer)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			var t transfer
			if err := json.NewDecoder(r.Body).Decode(&t); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			f(r.Context(), t)
		})
	}
	mux.HandleFunc("GET /life", func(w http.ResponseWriter, _ *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		_, _ = io.WriteString(w, n.id) // a node that has left reads nothing
	})
	side("POST /register", n.register)
	side("POST /drain", n.drained)
	side("POST /begin", func(_ context.Context, t transfer) { n.turn(t, transferring) })
	side("POST /fail", func(_ context.Context, t transfer) { n.turn(t, failed) })
	side("POST /kv", n.written)
	return mux
}

// register is decode's pages at a prefill node. Two registrations of one room are
// one: the later pages count.
func (n *Node) register(_ context.Context, t transfer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.roomOf(t.Place.Room)
	r.dest = t.Place
	select {
	case <-r.placed:
	default:
		close(r.placed)
	}
}

// drained answers once nothing more is written for a room: no writer begins for
// it any more, and one that has begun has ended.
func (n *Node) drained(ctx context.Context, t transfer) {
	n.mu.Lock()
	r := n.roomOf(t.Place.Room)
	r.aborted = true
	writing := r.writing
	n.mu.Unlock()
	if writing == nil {
		return
	}
	select {
	case <-writing:
	case <-ctx.Done():
	}
}

func (n *Node) turn(t transfer, s state) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.rooms[t.Place.Room]; r != nil && t.Place.Life == n.id {
		r.turn(s)
	}
}

// written is KV that arrives at a decode node.
func (n *Node) written(_ context.Context, t transfer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.Place.Life != n.id {
		return
	}
	if t.Place.Rank >= 0 && t.Place.Rank < len(n.pools) {
		n.pools[t.Place.Rank].Write(t.Place.Pages, 0, t.KV)
	}
	if t.Place.Slot >= 0 && t.Place.Slot < len(n.slots) {
		n.slots[t.Place.Slot] = t.Meta
	}
	n.counts.Written++
	if t.Place.Slot < 0 {
		return
	}
	if r := n.rooms[t.Place.Room]; r != nil {
		r.turn(done)
	}
}

// tell calls another node's side channel.
func tell(ctx context.Context, base, path string, t transfer) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	res, err := enginefake.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("side channel: %s", res.Status)
	}
	return nil
}

// lifeOf asks a prefill node which life it is in; empty: it is gone.
func lifeOf(ctx context.Context, base string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/life", nil)
	if err != nil {
		return ""
	}
	res, err := enginefake.Client.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body) // half of an id is another
	return string(b)
}
