package auditor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
)

// start brings together what the register, the directory and the stream say. It
// refuses whatever does not fit, before anything is written or signed.
func (a *Auditor) start(ctx context.Context, rebuild bool) error {
	st, err := a.store.load()
	if err != nil {
		return err
	}
	if rebuild && st != nil {
		return a.store.bad(stateFile, "a tree is here already; rebuild into an empty directory, and compare")
	}
	for {
		err := a.meet(ctx, st, rebuild)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		if !errors.Is(err, errMoved) {
			return err
		}
		a.cfg.Logger.Warn("read the last signed tree again", "cause", err)
		if err := sleep(ctx, a.cfg.Interval); err != nil {
			return err
		}
	}
	if st == nil {
		st = &state{Origin: a.verifier.Name(), Root: audit.NewTree(nil).Root(), Next: 1}
	}
	if a.tree, err = a.store.resume(st); err != nil {
		return err
	}
	if err := a.matchStream(ctx, st); err != nil {
		return err
	}
	if err := a.matchBegin(ctx, st, rebuild); err != nil {
		return err
	}
	a.next = st.Next
	a.committed.Store(st)
	if _, err := a.judge(st, a.last); err != nil {
		return err
	}
	if err := a.store.put(keyFile, []byte(a.vkey+"\n")); err != nil {
		return err
	}
	if err := a.witness.start(); err != nil {
		return err
	}
	a.cfg.Logger.Info("auditor starts", "log", st.Origin, "size", st.Size, "next", st.Next, "signed", a.last.Tree.N, "signs", a.leading)
	return nil
}

// meet reads the register, and settles the log's name and the last signed tree.
// The register says what is signed; a file that says more is a register that was
// restored from a backup, and wins: a smaller tree is never signed.
func (a *Auditor) meet(ctx context.Context, st *state, rebuild bool) error {
	rec, rev, err := a.register.get(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errMoved, err)
	}
	origin := a.cfg.Origin
	switch {
	case rec != nil:
		origin = rec.Origin
	case st != nil:
		origin = st.Origin
	case origin == "":
		var b [8]byte
		rand.Read(b[:])
		origin = "pdgate.local/" + hex.EncodeToString(b[:])
	}
	if a.cfg.Origin != "" && a.cfg.Origin != origin {
		return fmt.Errorf("origin %q: the log is named %q, for good: leave the setting out, or name it so", a.cfg.Origin, origin)
	}
	if st != nil && st.Origin != origin {
		return a.store.bad(stateFile, "it is of the log %q, this installation's is %q: give the auditor its own directory", st.Origin, origin)
	}
	if err := a.name(origin); err != nil {
		return err
	}
	a.last = &checkpoint{Checkpoint: audit.Checkpoint{Origin: origin, Tree: tlog.Tree{Hash: audit.NewTree(nil).Root()}}}
	mine, err := a.saved(checkpointFile)
	if err != nil {
		return err
	}
	if mine != nil {
		a.last = mine
	}
	if rec != nil && rec.Size > 0 {
		c, err := a.openRecord(rec)
		switch {
		case err != nil:
			return err
		case c.Tree.N > a.last.Tree.N:
			a.last = c
		default: // the directory holds as much: it judges before anything is replaced
			if _, err := a.judge(st, c); err != nil {
				return err
			}
		}
	}
	a.leading = rec == nil || rec.Size == 0 || rec.Signer == a.cfg.Name
	want := Signed{Origin: origin, Size: a.last.Tree.N, CompleteUntil: a.last.CompleteUntil, Signer: a.cfg.Name, Time: time.Now().UTC(), Checkpoint: string(a.last.note)}
	if rec != nil {
		want.LegalHold = rec.LegalHold
	}
	if a.cfg.Hold != HoldKeep {
		want.LegalHold = a.cfg.Hold == HoldOn
	}
	switch {
	case rebuild:
	case rec == nil, rec.Size < want.Size:
		if want.Size > 0 {
			a.cfg.Logger.Error("the last signed tree was lost from the NATS server, or is an older one; the auditor's file replaces it", "size", want.Size)
		}
		rec = &want
		rev, err = a.register.swap(ctx, rec, rev)
	case rec.LegalHold != want.LegalHold:
		held := *rec
		held.LegalHold = want.LegalHold
		rec = &held
		a.cfg.Logger.Warn("the legal hold changes", "legal_hold", want.LegalHold)
		rev, err = a.register.swap(ctx, rec, rev)
	}
	a.rec, a.rev = rec, rev
	return err
}

// saved reads a checkpoint of the directory; nil: there is none.
func (a *Auditor) saved(name string) (*checkpoint, error) {
	b, err := os.ReadFile(filepath.Join(a.cfg.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	c, err := a.open(b)
	if err != nil {
		return nil, a.store.bad(name, "%w: it is damaged, or audit.pem is not the key that signed it: restore the key, or the directory", err)
	}
	return c, nil
}

func (a *Auditor) openRecord(rec *Signed) (*checkpoint, error) {
	c, err := a.open([]byte(rec.Checkpoint))
	if err != nil {
		return nil, fmt.Errorf("%w: the last signed tree, in stream %s: %w: is audit.pem the key that signed it? restore it from the backup", ErrFork, events.AuditStream, err)
	}
	if c.Tree.N != rec.Size || c.CompleteUntil != rec.CompleteUntil {
		return nil, fmt.Errorf("%w: the last signed tree, in stream %s, does not say what its checkpoint says", ErrFork, events.AuditStream)
	}
	return c, nil
}

// staleness is how long a stream may look shorter than it is: the server that
// answers may have just started.
const staleness = 3 * time.Second

// matchStream sees to it that directory and signature are of this stream, and not
// of another one or of a longer past of this one.
func (a *Auditor) matchStream(ctx context.Context, st *state) error {
	began := time.Now()
	for {
		end, err := a.journal.Last(ctx)
		if err != nil {
			return err
		}
		a.target = end
		short := time.Since(began) > staleness
		switch {
		case end >= st.Next-1 && end >= a.last.CompleteUntil:
			return a.matchMessages(ctx, st)
		case short && end < a.last.CompleteUntil:
			return fmt.Errorf("%w: the stream ends at %d, and a tree that holds it up to %d is signed: the stream lost its end, or is another one: restore it from the backup", ErrFork, end, a.last.CompleteUntil)
		case short:
			return a.store.bad(stateFile, "it is newer than the stream, which ends at %d; the tiles hold it up to %d: restore the stream, or remove the directory of an unsigned tree", end, st.Next-1)
		}
		if err := sleep(ctx, staleness/20); err != nil {
			return err
		}
	}
}

// matchBegin sees to it that the stream still has what the directory lacks. What
// left before anybody signed anything is a gap that the tree begins with; later it
// is in the tiles of another replica, and a gap in its place would be another tree.
func (a *Auditor) matchBegin(ctx context.Context, st *state, rebuild bool) error {
	x, err := a.journal.Extent(ctx)
	if err != nil || x.First <= st.Next {
		return err
	}
	if a.last.Tree.N == 0 {
		a.begins = true
		return nil
	}
	return a.left(ctx, x, st.Next, rebuild)
}

// left says what to do about a stream that begins behind what is wanted next.
func (a *Auditor) left(ctx context.Context, x *journal.Extent, next uint64, rebuild bool) error {
	var cut *journal.CutError
	switch err := x.Check(ctx, a.journal); {
	case err != nil && !errors.As(err, &cut):
		return err
	case cut != nil:
		return fmt.Errorf("%w: messages %d to %d are gone: %w", ErrFork, next, x.First-1, err)
	case rebuild:
		return a.store.bad("", "the stream begins at %d, since it was trimmed, so nothing can be built from its first message on: the tiles of a replica are the archive, and pdgate verify checks what is read from them", x.First)
	}
	return a.store.bad(stateFile, "the stream begins at %d, since it was trimmed, and the tiles here hold it up to %d: stop this replica, and copy the directory of another one in its place, state.json first", x.First, next-1)
}

// matchMessages compares the tree's first and last messages with the stream's, as
// far as the stream still has them.
func (a *Auditor) matchMessages(ctx context.Context, st *state) error {
	if st.Index == 0 {
		return nil
	}
	for _, i := range []int64{0, st.Index - 1} {
		seq, _, err := a.store.record(i)
		if err != nil {
			return err
		}
		var sum [32]byte
		env, err := a.journal.Read(ctx, seq)
		var foreign *journal.ForeignError
		switch {
		case errors.Is(err, journal.ErrNotFound): // taken off the stream, or a gap
			continue
		case errors.As(err, &foreign):
			env, sum = &events.Envelope{Seq: seq}, foreign.Sum
		case err != nil:
			return err
		}
		m, err := read(env, sum, a.journal.Partitions())
		if err != nil {
			return err
		}
		from, to, err := a.store.leaves(st, seq)
		if err != nil {
			return err
		}
		n := 0
		for leaf, err := range a.store.tiles.Leaves(from, to, st.Size) {
			if err != nil {
				return a.store.bad("tile/entries", "%w; %s", err, restore)
			}
			if isEpoch(leaf) {
				continue
			}
			if n >= len(m.leaves) || !bytes.Equal(leaf, m.leaves[n]) {
				return a.store.bad("tile/entries", "message %d is another one in the stream: the directory is another log's, or damaged: give the auditor its own directory, or remove this one", seq)
			}
			n++
		}
		if n != len(m.leaves) {
			return a.store.bad("tile/entries", "message %d has %d lines in the stream, and %d here: %s", seq, len(m.leaves), n, restore)
		}
	}
	return nil
}
