package audit

import (
	"errors"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
)

// VerifyCheckpoint reports on a signed checkpoint.
func VerifyCheckpoint(signed []byte, o Options) *Report {
	r := NewReport("checkpoint")
	if r.checkpoint("checkpoint", signed, o.Policy) != nil {
		r.Proven = append(r.Proven, "The log signed this tree head.")
		r.NotProven = append(r.NotProven, limitLogged, limitTruth)
		if !o.Policy.WantsWitnesses() {
			r.NotProven = append(r.NotProven, limitAlone)
		}
	}
	r.Close(o.Strict)
	return r
}

// VerifyProof reports on the proof of one leaf. leaf is its bytes, without a
// newline; nil: those that the proof brings.
func VerifyProof(text, leaf []byte, o Options) *Report {
	r := NewReport("proof")
	r.proof(text, leaf, o)
	r.Close(o.Strict)
	return r
}

// VerifyReceipt reports on the proof that the event of a receipt is in the log.
func VerifyReceipt(rec Receipt, text, leaf []byte, o Options) *Report {
	r := NewReport("receipt")
	defer r.Close(o.Strict)
	r.fact("receipt", "%s", rec)
	p := r.proof(text, leaf, o)
	if p == nil {
		return r
	}
	if events.Hash(p.leaf) != rec.Hash {
		r.Add(Broken, "receipt", "its hash is not that of the leaf: the log holds another event than the client was told")
	}
	if until := p.checkpoint.CompleteUntil; until != 0 && until < rec.Position.Seq {
		r.Add(Broken, "receipt", "the checkpoint is complete until %d, before the receipt's position", until)
	}
	r.NotProven = append(r.NotProven, limitOrder)
	return r
}

// VerifyConsistency reports on two signed checkpoints, and whether the later one
// continues the earlier one. prove is given the later tree.
func VerifyConsistency(before, now []byte, prove func(from int64, now tlog.Tree) (*Consistency, error), o Options) *Report {
	r := NewReport("consistency")
	defer r.Close(o.Strict)
	a, b := r.checkpoint("earlier checkpoint", before, o.Policy), r.checkpoint("later checkpoint", now, o.Policy)
	if a == nil || b == nil {
		return r
	}
	if a.Tree.N > b.Tree.N {
		r.Add(Broken, "later checkpoint", "has %d leaves, the earlier one %d: the log shrank, or they are the wrong way round", b.Tree.N, a.Tree.N)
		return r
	}
	c, err := prove(a.Tree.N, b.Tree)
	if err == nil {
		err = c.Verify(a.Tree, b.Tree)
	}
	if err != nil {
		r.Add(Broken, "consistency", "%v", err)
		return r
	}
	if a.CompleteUntil > b.CompleteUntil {
		r.Add(Broken, "later checkpoint", "is complete until %d, the earlier one until %d", b.CompleteUntil, a.CompleteUntil)
	}
	r.Proven = append(r.Proven, "The later tree starts with all leaves of the earlier one, unchanged.")
	r.NotProven = append(r.NotProven, limitLogged, limitTruth, limitAlone)
	return r
}

// provenLeaf is a leaf and the checkpoint that it is proven under.
type provenLeaf struct {
	leaf       []byte
	checkpoint *SignedCheckpoint
}

func (r *Report) proof(text, leaf []byte, o Options) *provenLeaf {
	p, err := ParseProof(text)
	if err != nil {
		r.Add(Broken, "proof", "%v", err)
		return nil
	}
	if leaf == nil {
		leaf = p.Extra
	}
	if leaf == nil {
		r.Add(Incomplete, "proof", "it does not bring its leaf: give the event's line")
		return nil
	}
	c := r.checkpoint("checkpoint", p.Checkpoint, o.Policy)
	if c == nil {
		return nil
	}
	if tlog.CheckRecord(p.Path, c.Tree.N, c.Tree.Hash, p.Index, tlog.RecordHash(leaf)) != nil {
		r.Add(Broken, "proof", "%v", ErrNotIncluded)
		return nil
	}
	r.fact("leaf", "%d of %d", p.Index, c.Tree.N)
	switch l, err := ParseLeaf(leaf); {
	case errors.Is(err, events.ErrUnknownType):
		r.Add(Incomplete, "leaf", "%v: a newer verifier knows it", err)
	case err != nil:
		r.Add(Broken, "leaf", "%v", err)
	case l.Event != nil:
		r.fact("event", "%s, %s", l.Event.ID, l.Event.Type)
		r.fact("time", "%s", l.Event.Time.Format(time.RFC3339Nano))
	}
	r.Proven = append(r.Proven, "The leaf is in the log that the checkpoint signs, at this index, byte for byte.")
	r.NotProven = append(r.NotProven, limitLogged, limitTruth, limitTime)
	if !o.Policy.WantsWitnesses() {
		r.NotProven = append(r.NotProven, limitAlone)
	}
	return &provenLeaf{leaf, c}
}

// checkpoint opens one and states what it says.
func (r *Report) checkpoint(what string, signed []byte, p *Policy) *SignedCheckpoint {
	c, err := OpenCheckpoint(signed, p)
	if err != nil {
		r.Add(Broken, what, "%v", err)
		return nil
	}
	if c.QuorumErr != nil {
		r.Add(Finding, what, "%v", c.QuorumErr)
	}
	r.facts(what, c)
	return c
}

func (r *Report) facts(what string, c *SignedCheckpoint) {
	r.fact(what, "%s, %d leaves, root %s", c.Origin, c.Tree.N, c.Tree.Hash)
	if c.CompleteUntil != 0 {
		r.fact("complete until", "stream sequence %d", c.CompleteUntil)
	}
	for _, w := range c.Witnesses {
		r.fact("witness", "%s at %s", w.Name, time.Unix(w.Time, 0).UTC().Format(time.RFC3339))
	}
}
