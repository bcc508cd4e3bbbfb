package vllmfake

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// end is how the blocks of a finished prefill went.
type end int

const (
	held     end = iota // they wait to be read
	consumed            // a decode node has read them
	expired             // their lease ran out
)

// sent is a prefill that finished and offers its blocks.
type sent struct {
	id     string
	owner  string // of the blocks in the pool
	blocks []int
	uses   []int // of the blocks, when they were written
	until  time.Time
	gone   end
}

// offer keeps the blocks of a finished prefill for whoever reads them and
// returns kv_transfer_params. An id that is used again replaces the earlier
// request: its blocks have no owner then that anybody knows.
func (n *Node) offer(id, owner string, blocks []int, tokens int) json.RawMessage {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts.Prefills++
	until := n.cfg.Clock.Now().Add(n.cfg.Lease)
	n.sent[id] = &sent{id: id, owner: owner, blocks: blocks, uses: n.pool.Uses(blocks), until: until}

	// Written by hand: the order of the keys and the digits are the engine's, and
	// a reader that encodes the object again is seen by its bytes.
	ids := blockList(blocks, n.cfg.BlockIDs)
	if n.cfg.BlockIDs == Nested {
		list := ids
		for range n.cfg.Groups - 1 {
			ids += "," + list
		}
		ids = "[" + ids + "]"
	}
	quoted, _ := json.Marshal(id) // strings always encode
	b := fmt.Appendf(nil, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":%s,"remote_engine_id":%q,"remote_request_id":%s,"remote_host":"127.0.0.1","remote_port":%d,"tp_size":%d`,
		ids, n.engine, quoted, n.SidePort(), n.cfg.TP)
	if n.cfg.Build == Current {
		b = fmt.Appendf(b, `,"remote_num_tokens":%d,"remote_blocks_expiry_time":%.6f,"dcp_size":1,"pp_size":1,"transfer_mode":"read"`,
			tokens, float64(until.UnixMicro())/1e6)
	}
	return append(b, '}')
}

func blockList(blocks []int, form BlockForm) string {
	s := "["
	for i, b := range blocks {
		if i > 0 {
			s += ","
		}
		if form == Strings {
			s += strconv.Quote(strconv.Itoa(b))
		} else {
			s += strconv.Itoa(b)
		}
	}
	return s + "]"
}

// params is kv_transfer_params as a node reads it.
type params struct {
	DoRemotePrefill bool            `json:"do_remote_prefill"`
	DoRemoteDecode  bool            `json:"do_remote_decode"`
	BlockIDs        json.RawMessage `json:"remote_block_ids"`
	EngineID        string          `json:"remote_engine_id"`
	RequestID       string          `json:"remote_request_id"`
	Host            string          `json:"remote_host"`
	Port            int             `json:"remote_port"`
}

// blocks reads remote_block_ids in any form; of several KV groups the first.
func (p *params) blocks() ([]int, bool) {
	var groups []json.RawMessage
	if json.Unmarshal(p.BlockIDs, &groups) != nil || len(groups) == 0 {
		return nil, false
	}
	flat := groups
	var first []json.RawMessage
	if json.Unmarshal(groups[0], &first) == nil {
		flat = first
	}
	var ids []int
	for _, raw := range flat {
		var id int
		var s string
		if json.Unmarshal(raw, &s) == nil {
			raw = json.RawMessage(s)
		}
		if json.Unmarshal(raw, &id) != nil {
			return nil, false
		}
		ids = append(ids, id)
	}
	return ids, len(ids) > 0
}

// sweep frees what is past its lease. The caller has n.mu.
func (n *Node) sweep() {
	now := n.cfg.Clock.Now()
	for _, r := range n.sent {
		if r.gone != held || now.Before(r.until) || n.faults.NeverFree {
			continue
		}
		r.gone = expired
		n.counts.Expired++
		n.pool.Release(r.owner, r.blocks)
		if n.cfg.Build == Old {
			n.logf("Releasing expired KV blocks for request %s which were retrieved by %d decode worker(s) within %d seconds.", r.id, 0, int(n.cfg.Lease.Seconds()))
		} else {
			n.logf("Releasing expired KV blocks for request %s which were retrieved by %d remote worker(s) before lease expired.", r.id, 0)
		}
	}
}

// found is what became of a read.
type found string

const (
	foundLive     found = "live"     // the blocks were the request's
	foundUnknown  found = "unknown"  // no such request here
	foundExpired  found = "expired"  // its lease is over, its blocks untouched
	foundBroken   found = "broken"   // no such blocks, or read before
	foundReplaced found = "replaced" // the blocks are another request's by now
)

// read is what another node gets for a reference. vllm#52234 has the table: the
// engine finds out only some of what is wrong with one, and where the blocks
// belong to somebody else by now it hands them over.
func (n *Node) read(engine, id string, blocks []int, tokens int) (found, []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	r := n.sent[id]
	switch {
	case engine != n.engine || r == nil:
		return foundUnknown, nil
	case !n.pool.Has(blocks):
		return foundBroken, enginefake.Noise(tokens)
	case r.gone == held:
		return foundLive, n.pool.Read(blocks, tokens)
	}
	for i, u := range n.pool.Uses(r.blocks) {
		if u != r.uses[i] {
			n.logf("Potentially invalid KV blocks for unrecognized request %s were retrieved by a decode worker. They may have expired.", id)
			return foundReplaced, n.pool.Read(blocks, tokens)
		}
	}
	if r.gone == expired {
		return foundExpired, nil
	}
	return foundBroken, enginefake.Noise(tokens)
}

// done is the read notification, or that of a request rejected before it was
// admitted: the blocks are free.
func (n *Node) done(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	if r := n.sent[id]; r != nil && r.gone == held && !n.faults.NeverFree {
		r.gone = consumed
		n.pool.Release(r.owner, r.blocks)
	}
}

// extend is a heartbeat.
func (n *Node) extend(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	if r := n.sent[id]; r != nil && r.gone == held {
		if until := n.cfg.Clock.Now().Add(2 * n.cfg.Lease / 3); until.After(r.until) {
			r.until = until
		}
		n.counts.Extended++
	}
}
