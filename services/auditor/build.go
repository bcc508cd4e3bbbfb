package auditor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
)

// maxBytes bounds the leaves of one commit.
const maxBytes = 8 << 20

// ErrFork means that a signed tree and this replica's do not fit together: the
// stream was changed after it was signed, or somebody signed another history. It
// is never mended by signing.
var ErrFork = errors.New("the tree does not continue the last signed one")

// follow turns the log into messages of leaves.
func (a *Auditor) follow(ctx context.Context, next uint64, out chan<- message) error {
	send := func(m message) error {
		select {
		case out <- m:
			next = m.next
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		err := a.journal.Follow(ctx, next, func(env *events.Envelope) error {
			m, err := read(env, a.sum, a.journal.Partitions())
			if err != nil {
				return err
			}
			return send(m)
		})
		var gap *journal.GapError
		if !errors.As(err, &gap) {
			return err
		}
		if err := a.gone(ctx, gap); err != nil {
			return err
		}
		a.cfg.Logger.Error("messages are missing from the log; the tree says so", "from", gap.From, "to", gap.To-1)
		a.metrics.gap()
		if err := send(missing(gap)); err != nil {
			return err
		}
	}
}

// gone tells a hole in the stream, which is a leaf, from what was trimmed before
// this replica had it. Where nothing was signed at the start, the tree may begin
// with what left before.
func (a *Auditor) gone(ctx context.Context, gap *journal.GapError) error {
	x, err := a.journal.Extent(ctx)
	if err != nil || x.First < gap.To || a.begins && gap.From == 1 {
		return err
	}
	return a.left(ctx, x, gap.From, false)
}

// build is the one goroutine that writes and signs.
func (a *Auditor) build(ctx context.Context, in <-chan message, rebuild bool) error {
	tick := time.NewTicker(a.cfg.Interval)
	defer tick.Stop()
	until := a.last.CompleteUntil
	if until == 0 {
		until = a.target
	}
	done := func() bool { return rebuild && a.next > until }
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-in:
			if err := a.take(m); err != nil {
				return err
			}
			if a.dirty < a.cfg.Batch && a.bytes < maxBytes {
				continue
			}
			if err := a.commit(); err != nil {
				return err
			}
		case <-tick.C:
			if err := a.commit(); err != nil {
				return err
			}
			if rebuild {
				continue
			}
			if err := a.turn(ctx); err != nil {
				return err
			}
		}
	}
	if err := a.commit(); err != nil {
		return err
	}
	if _, err := a.judge(a.committed.Load(), a.last); err != nil {
		return err
	}
	return errRebuilt
}

// take appends a message's leaves. Whole tiles are stored as they fill.
func (a *Auditor) take(m message) error {
	if m.seq != a.next {
		return fmt.Errorf("auditor: message %d follows %d", m.seq, a.next-1) // a bug here or in the journal
	}
	a.store.add(m.seq, a.tree.Size())
	marks := m.marks
	for line, leaf := range m.leaves {
		if err := a.leaf(leaf); err != nil {
			return err
		}
		if len(marks) == 0 || marks[0].line != line {
			continue
		}
		k := marks[0]
		marks = marks[1:]
		if k.head.Seq > 0 {
			a.heads.set(k.tenant, k.head)
			continue
		}
		for _, epoch := range audit.NewEpochs(events.Position{Seq: m.seq, Line: line}, k.tenant, a.heads.of(k.tenant)) {
			if err := a.leaf(epoch.Append(nil)); err != nil {
				return err
			}
		}
	}
	a.next = m.next
	return nil
}

func (a *Auditor) leaf(b []byte) error {
	if err := a.tree.Append(b); err != nil {
		return err
	}
	a.bytes += len(b)
	a.dirty++
	return nil
}

// commit makes what was taken durable; see the package's commit points.
func (a *Auditor) commit() error {
	if a.dirty == 0 {
		return nil
	}
	if err := a.tree.Flush(); err != nil {
		return err
	}
	st := &state{Origin: a.verifier.Name(), Size: a.tree.Size(), Root: a.tree.Root(), Next: a.next}
	if err := a.store.commit(st); err != nil {
		return err
	}
	a.dirty, a.bytes = 0, 0
	a.committed.Store(st)
	if !a.heads.enough(st.Size, a.cfg.headsAfter) {
		return nil
	}
	if err := a.cfg.step("heads"); err != nil {
		return err
	}
	return a.heads.save(a.store, st)
}

// judge compares a signed tree with this replica's. It is true when the replica's
// tiles bear it out, and false while they do not reach so far.
func (a *Auditor) judge(st *state, c *checkpoint) (bool, error) {
	if c.Tree.N > st.Size {
		if st.Next > c.CompleteUntil {
			return false, fmt.Errorf("%w: the log up to message %d gives %d leaves here, and %d are signed", ErrFork, c.CompleteUntil, st.Size, c.Tree.N)
		}
		return false, nil
	}
	root := audit.NewTree(nil).Root()
	var err error
	switch c.Tree.N {
	case 0:
	case st.Size:
		root = st.Root
	default:
		root, err = tlog.TreeHash(c.Tree.N, a.store.tiles.Hashes(st.head()))
	}
	if err != nil {
		return false, a.store.bad("tile", "%w; %s", err, restore)
	}
	if root != c.Tree.Hash {
		return false, fmt.Errorf("%w: the root of %d leaves is %s here, and %s is signed: the stream is not what it was when it was signed (changed, cut, or trimmed before this directory held it), or another one signed with the key: compare with another replica's directory, or a backup of it", ErrFork, c.Tree.N, root, c.Tree.Hash)
	}
	return true, nil
}

// turn is what comes after a commit: look who signs, judge it, sign.
func (a *Auditor) turn(ctx context.Context) error {
	st := a.committed.Load()
	if !a.leading {
		if err := a.look(ctx); err != nil {
			return a.later(ctx, "read the last signed tree", err)
		}
	}
	good, err := a.judge(st, a.last)
	if err != nil || !good {
		return err
	}
	if err := a.publish(); err != nil {
		return err
	}
	if st.Size > a.last.Tree.N && a.mayLead(time.Now()) {
		if err := a.sign(ctx, st); err != nil {
			return a.later(ctx, "sign the tree", err)
		}
	}
	if !a.ready && st.Next > a.target && a.last.Tree.N == st.Size {
		a.ready = true
		if a.cfg.Ready != nil {
			a.cfg.Ready(a.last.Text())
		}
	}
	return nil
}

// later lets pass what the NATS server's return mends.
func (a *Auditor) later(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil || errors.Is(err, ErrFork) || !errors.Is(err, errMoved) {
		return err
	}
	a.cfg.Logger.Warn("auditor will try again: "+what, "err", err)
	return nil
}

// mayLead says whether this replica signs: it signed the last one, or whoever did
// has owed a signature for too long. Two that think so meet in the compare-and-swap.
func (a *Auditor) mayLead(now time.Time) bool {
	if a.leading {
		return true
	}
	if a.due.IsZero() {
		a.due = now
	}
	if now.Sub(a.due) < a.cfg.Takeover {
		return false
	}
	a.cfg.Logger.Warn("no signature came from the replica that signs; this one takes over", "signer", a.rec.Signer, "after", a.cfg.Takeover)
	return true
}

// look reads the register, and takes over what is newer there.
func (a *Auditor) look(ctx context.Context) error {
	rec, rev, err := a.register.get(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errMoved, err)
	}
	if rec == nil { // the stream was made anew; the next signature stands there again
		a.rev, a.leading = rev, true
		return nil
	}
	// Who signed last goes on, also after an answer that got lost.
	a.leading = rec.Signer == a.cfg.Name
	if rev == a.rev {
		return nil
	}
	a.due = time.Time{}
	if rec.Origin != a.verifier.Name() {
		return fmt.Errorf("%w: stream %s names the log %q, this one is %q", ErrFork, events.AuditStream, rec.Origin, a.verifier.Name())
	}
	a.rec, a.rev = rec, rev
	if rec.Size == 0 {
		return nil
	}
	c, err := a.openRecord(rec)
	if err != nil {
		return err
	}
	if c.Tree.N >= a.last.Tree.N {
		if c.Tree.N == a.last.Tree.N && c.Tree.Hash != a.last.Tree.Hash {
			return fmt.Errorf("%w: two trees of %d leaves are signed", ErrFork, c.Tree.N)
		}
		a.last = c
		return nil
	}
	// An older one came back. It must be ours all the same; what was signed since
	// stays what the next one continues.
	a.cfg.Logger.Error("an older signed tree came back in the NATS server", "size", c.Tree.N, "signed", a.last.Tree.N)
	_, err = a.judge(a.committed.Load(), c)
	return err
}

// sign signs the committed tree, which continues a.last or is refused here.
func (a *Auditor) sign(ctx context.Context, st *state) error {
	if err := a.prove(st); err != nil {
		return err
	}
	if err := a.cfg.step("sign"); err != nil {
		return err
	}
	c := audit.Checkpoint{Origin: st.Origin, Tree: st.head(), CompleteUntil: st.Next - 1}
	signed, err := audit.SignCheckpoint(&c, a.signer)
	if err != nil {
		return err
	}
	rec := &Signed{Origin: st.Origin, Size: st.Size, CompleteUntil: c.CompleteUntil, LegalHold: a.rec.LegalHold, Signer: a.cfg.Name, Time: time.Now().UTC(), Checkpoint: string(signed)}
	if err := a.cfg.step("record"); err != nil {
		return err
	}
	// Until the swap nobody has seen the signature. A swap whose answer is lost may
	// have happened: the register says, now or at the next turn.
	rev, err := a.register.swap(ctx, rec, a.rev)
	if err != nil {
		a.leading = false
		if looked := a.look(ctx); looked != nil {
			return looked
		}
		if a.rec.Checkpoint != rec.Checkpoint {
			return err
		}
		rev = a.rev
	}
	a.rec, a.rev, a.leading, a.due = rec, rev, true, time.Time{}
	a.last = &checkpoint{Checkpoint: c, note: signed, time: time.Now()}
	if err := a.cfg.step("checkpoint"); err != nil {
		return err
	}
	return a.publish()
}

// prove is the guard before each signature: the tiles on disk must prove that the
// tree continues the last signed one.
func (a *Auditor) prove(st *state) error {
	old := a.last.Tree
	if st.Size <= old.N {
		return fmt.Errorf("%w: %d leaves are signed, and %d are no more", ErrFork, old.N, st.Size)
	}
	if old.N == 0 {
		return nil
	}
	proof, err := tlog.ProveTree(st.Size, old.N, a.store.tiles.Hashes(st.head()))
	if err != nil {
		return a.store.bad("tile", "%w; %s", err, restore)
	}
	if err := tlog.CheckTree(proof, st.Size, st.Root, old.N, old.Hash); err != nil {
		return fmt.Errorf("%w: %w", ErrFork, err)
	}
	return nil
}

// publish lets clients and witnesses see a.last, which the tiles bear out.
func (a *Auditor) publish() error {
	if was := a.signed.Load(); a.last.Tree.N == 0 || was != nil && was.Tree.N >= a.last.Tree.N {
		return nil
	}
	if err := a.store.put(checkpointFile, a.last.note); err != nil {
		return err
	}
	a.signed.Store(a.last)
	if a.leading { // one replica's questions are enough
		a.witness.push(a.last)
	}
	return nil
}
