package auditor

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
)

// Auditor is one replica.
type Auditor struct {
	cfg      Config
	vkey     string        // of the log's name and key; set before anything is served
	verifier note.Verifier // the same
	signer   note.Signer
	journal  *journal.JetStream
	register *register
	store    *store
	witness  *witnesses
	metrics  *metrics
	ledger   *ledger
	begins   bool     // the tree may begin with a gap: nothing was signed, and the stream begins above 1; set before the follower runs
	sum      [32]byte // of the foreign message that is handed over next; of the follower

	committed atomic.Pointer[state]
	signed    atomic.Pointer[checkpoint] // the last signed one that this replica's own tiles bear out
	cosigned  atomic.Pointer[checkpoint] // the last one with the policy's quorum

	// Of the builder.
	tree    *audit.Tree
	heads   *heads // of the tenants' chains in tree
	next    uint64 // stream sequence that follows what is in tree
	dirty   int    // leaves since the last commit
	bytes   int    // of them
	rec     *Signed
	rev     uint64 // of rec
	last    *checkpoint
	leading bool
	due     time.Time // since when a signature is due that another replica owes; zero: none is
	target  uint64    // the stream's end at the start
	ready   bool
}

// checkpoint is a signed tree head.
type checkpoint struct {
	audit.Checkpoint
	note []byte
	time time.Time // when this replica learned of it
}

// New checks the configuration. Nothing is touched before [Auditor.Run].
func New(cfg Config) (*Auditor, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Auditor{cfg: cfg, ledger: newLedger(cfg.Recorder, cfg.Logger)}
	if a.witness, err = newWitnesses(a, cfg.Policy); err != nil {
		return nil, err
	}
	if a.metrics, err = newMetrics(); err != nil {
		return nil, fmt.Errorf("auditor: metrics: %w", err)
	}
	return a, nil
}

// Run follows, builds, signs and serves until ctx ends, or until something is
// wrong that only a person can mend: ErrFork, ErrDirectory, ErrVersion, a disk
// that is full. It returns nil after the end of ctx.
func (a *Auditor) Run(ctx context.Context) error {
	err := a.run(ctx, false)
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, ErrFork) {
		a.metrics.alarm()
		a.cfg.Logger.Error("ALARM: the tree is not signed any more", "err", err)
	}
	return err
}

// Rebuild makes the tree from the stream in an empty directory, up to what is
// signed, or up to the stream's end where nothing is, and compares it with the
// last signed tree. It signs nothing.
func (a *Auditor) Rebuild(ctx context.Context) (audit.Checkpoint, error) {
	err := a.run(ctx, true)
	if err != nil && !errors.Is(err, errRebuilt) {
		return audit.Checkpoint{}, err
	}
	st := a.committed.Load()
	return audit.Checkpoint{Origin: st.Origin, Tree: st.head(), CompleteUntil: st.Next - 1}, nil
}

var errRebuilt = errors.New("the tree is built")

// run is both: a replica's life, or a rebuild.
func (a *Auditor) run(ctx context.Context, rebuild bool) (err error) {
	if a.store, err = openStore(a.cfg.Dir, a.cfg.step); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.store.close()) }()
	if a.register, err = openRegister(ctx, a.cfg.Conn, a.cfg.Replicas); err != nil {
		return err
	}
	if a.journal, err = a.openJournal(ctx); err != nil {
		return err
	}
	defer a.journal.Close()
	if err := a.start(ctx, rebuild); err != nil {
		return err
	}
	h, useless, err := loadHeads(a.store, a.committed.Load(), a.journal.Partitions())
	if err != nil {
		return err
	}
	if useless != nil {
		a.cfg.Logger.Warn("the file of chain heads is of no use, the tiles were read instead", "cause", useless)
	}
	a.heads = h
	stop, err := a.observe()
	if err != nil {
		return err
	}
	defer stop()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	part := func(f func(context.Context) error) {
		group.Go(func() { cancel(f(ctx)) })
	}
	in := make(chan message, 1024)
	part(func(ctx context.Context) error { return a.follow(ctx, a.next, in) })
	part(func(ctx context.Context) error { return a.build(ctx, in, rebuild) })
	if !rebuild {
		part(a.witness.run)
		part(a.ledger.run)
		part(a.serveReceipts)
		if a.cfg.Listener != nil {
			part(a.serveHTTP)
		}
	}
	group.Wait()
	return context.Cause(ctx)
}

// openJournal waits for the log: no lifecycle replica may have started yet.
func (a *Auditor) openJournal(ctx context.Context) (*journal.JetStream, error) {
	for said := false; ; said = true {
		j, err := journal.OpenJetStream(ctx, a.cfg.Conn, journal.Config{
			Key: a.cfg.LogKey, Domain: a.cfg.Domain, Logger: a.cfg.Logger,
			OnForeign: func(e *journal.ForeignError) { a.sum = e.Sum },
		})
		if err == nil || !errors.Is(err, journal.ErrNoLog) && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return j, err
		}
		if !said {
			a.cfg.Logger.Info("the auditor waits for the log", "cause", err)
		}
		if err := sleep(ctx, a.cfg.Interval); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// name sets the log's name, and with it the key that signs.
func (a *Auditor) name(origin string) error {
	vkey, err := note.NewEd25519VerifierKey(origin, a.cfg.Key.Public().(ed25519.PublicKey))
	if err == nil {
		a.verifier, err = note.NewVerifier(vkey)
	}
	if err == nil {
		// The form of x/mod: algorithm 1, and the seed.
		key := append([]byte{1}, a.cfg.Key.Seed()...)
		a.signer, err = note.NewSigner(fmt.Sprintf("PRIVATE+KEY+%s+%08x+%s", origin, a.verifier.KeyHash(), base64.StdEncoding.EncodeToString(key)))
	}
	if err != nil {
		return fmt.Errorf("the log's name %q cannot stand in a checkpoint: %w", origin, err)
	}
	a.vkey = vkey
	return nil
}

// open reads a signed checkpoint and verifies that it is ours.
func (a *Auditor) open(signed []byte) (*checkpoint, error) {
	c, err := audit.OpenCheckpoint(signed, audit.KeyPolicy(a.verifier))
	if err != nil {
		return nil, err
	}
	return &checkpoint{Checkpoint: c.Checkpoint, note: signed, time: time.Now()}, nil
}
