package projection

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"modernc.org/sqlite" // also the driver, in pure Go
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/pdgate/pdgate/events"
)

// Config says where the read side lives and how it batches.
type Config struct {
	Path     string        // database file; "": in memory
	Batch    int           // about the most events in one transaction; 0: 32,768
	Interval time.Duration // between two commits under load; 0: 500 ms
	// Begin is the log's first sequence: what is before it has left. nil: 1.
	Begin  func(ctx context.Context) (uint64, error)
	Logger *slog.Logger // nil: nothing is logged
}

// Projection is the read side. Run feeds it; every other method may be called at
// any time.
type Projection struct {
	cfg     Config
	db      atomic.Pointer[sql.DB] // reads; and writes, from Run's goroutine only
	applied atomic.Uint64
	tail    tail
	damaged chan struct{} // holds a token when a read found the file damaged
	begin   atomic.Int64  // sequence that the rows begin at; 0: at the log's beginning
	since   atomic.Int64  // rows of ended requests from before are gone, microseconds since 1970; 0: none are
	prune   chan time.Time
}

// Follow hands over every envelope from stream sequence next on, in order, until
// ctx ends or handle fails.
type Follow func(ctx context.Context, next uint64, handle func(*events.Envelope) error) error

// Open opens or creates the database. A file of another schema version, and one
// that is damaged, is made anew.
func Open(ctx context.Context, cfg Config) (*Projection, error) {
	if cfg.Batch < 0 || cfg.Interval < 0 {
		return nil, errors.New("projection: negative batch or interval")
	}
	if cfg.Batch == 0 {
		cfg.Batch = 32 << 10
	}
	if cfg.Interval == 0 {
		cfg.Interval = 500 * time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Projection{cfg: cfg, tail: tail{wake: make(chan struct{}, 1)}, damaged: make(chan struct{}, 1), prune: make(chan time.Time, 1)}
	err := p.open(ctx)
	if err != nil && cfg.Path != "" && ctx.Err() == nil {
		err = p.anew(ctx, err)
	}
	if err != nil {
		return nil, fmt.Errorf("projection: %w", err)
	}
	return p, nil
}

// anew replaces the file by an empty one. Who reads meanwhile reads the old one
// to the end, or gets an error.
func (p *Projection) anew(ctx context.Context, cause error) error {
	p.cfg.Logger.Warn("read side is made anew", "cause", cause)
	if err := remove(p.cfg.Path); err != nil {
		return err
	}
	was := p.db.Load()
	if err := p.open(ctx); err != nil {
		return err
	}
	select {
	case <-p.damaged: // the old one was
	default:
	}
	if was != nil {
		return was.Close()
	}
	return nil
}

// corrupt says whether SQLite found its file damaged. It finds a damaged page
// when it comes to it, which may be long after the file was opened.
func corrupt(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Code() & 0xff // the rest is detail
	return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
}

// noteDamage has Run make a damaged file anew, when a read met the damage.
func (p *Projection) noteDamage(err error) error {
	if corrupt(err) {
		select {
		case p.damaged <- struct{}{}:
		default:
		}
	}
	return err
}

// version is the schema's. Another one in a file means that the file is made
// anew: rows are folded from the log, never migrated.
const version = 2

const schema = `
CREATE TABLE meta (
	id      INTEGER PRIMARY KEY CHECK (id = 1),
	applied INTEGER NOT NULL, -- stream sequence of the last envelope
	mac     TEXT    NOT NULL, -- and its MAC: another log has another one there
	begin   INTEGER NOT NULL, -- sequence that the rows begin at; 0: at the log's beginning
	since   INTEGER NOT NULL  -- rows of ended requests from before are gone, microseconds since 1970; 0: none are
);
INSERT INTO meta VALUES (1, 0, '', 0, 0);
CREATE TABLE request (
	id                TEXT PRIMARY KEY,
	state             TEXT NOT NULL,
	tenant            TEXT NOT NULL,
	model             TEXT NOT NULL,
	gateway           TEXT NOT NULL,
	prompt_tokens     INTEGER NOT NULL,
	max_tokens        INTEGER NOT NULL,
	completion_tokens INTEGER NOT NULL,
	finish_reason     TEXT NOT NULL,
	error_code        TEXT NOT NULL,
	error_message     TEXT NOT NULL,
	error_status      INTEGER NOT NULL,
	prefill_worker    TEXT NOT NULL,
	decode_worker     TEXT NOT NULL,
	grant_epoch       INTEGER NOT NULL,
	admitted_at       INTEGER NOT NULL, -- microseconds since 1970; 0: not known
	updated_at        INTEGER NOT NULL,
	deadline          INTEGER NOT NULL,
	position          TEXT NOT NULL,
	events            INTEGER NOT NULL,
	held              TEXT NOT NULL     -- JSON, '' if nothing is held
) WITHOUT ROWID;
CREATE INDEX request_tenant ON request (tenant, id);
CREATE INDEX request_state  ON request (state, id);
CREATE INDEX request_model  ON request (model, id);
PRAGMA user_version = 2;
`

func (p *Projection) open(ctx context.Context) error {
	dsn := "file::memory:?_pragma=foreign_keys(0)"
	if p.cfg.Path != "" {
		// Before the journal's mode, which writes the first page and settles it: room
		// that rows took is given back. synchronous NORMAL with a write-ahead log may lose the last batches in a
		// power failure and never the file; what is lost is read again.
		dsn = "file:" + escape(p.cfg.Path) + "?_pragma=auto_vacuum(incremental)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}
	if p.cfg.Path == "" {
		// Each connection to :memory: is a database of its own.
		db.SetMaxOpenConns(1)
	} else {
		db.SetMaxOpenConns(4)
	}
	db.SetConnMaxIdleTime(0)
	if err := p.load(ctx, db); err != nil {
		return errors.Join(err, db.Close())
	}
	p.db.Store(db)
	return nil
}

func (p *Projection) load(ctx context.Context, db *sql.DB) error {
	var v int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	switch v {
	case version:
	case 0:
		if _, err := db.ExecContext(ctx, schema); err != nil {
			return fmt.Errorf("create schema: %w", err)
		}
	default:
		return fmt.Errorf("schema version %d, this build has %d", v, version)
	}
	var seq, begin, since int64
	if err := db.QueryRowContext(ctx, "SELECT applied, begin, since FROM meta").Scan(&seq, &begin, &since); err != nil {
		return fmt.Errorf("read position: %w", err)
	}
	p.applied.Store(uint64(seq))
	p.begin.Store(begin)
	p.since.Store(since)
	return nil
}

// remove deletes the database and what SQLite keeps beside it.
func remove(path string) error {
	for _, s := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + s); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// escape keeps a path's '?', '#' and '%' from being read as part of a URI.
func escape(path string) string {
	out := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		switch c := path[i]; c {
		case '?':
			out = append(out, "%3f"...)
		case '#':
			out = append(out, "%23"...)
		case '%':
			out = append(out, "%25"...)
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// Applied is the stream sequence up to which the log is in the rows.
func (p *Projection) Applied() uint64 { return p.applied.Load() }

// Begins says where the rows begin: the first sequence that was read, 0 for the
// log's beginning, and the time before which rows of ended requests are gone, zero
// if none are.
func (p *Projection) Begins() (seq uint64, since time.Time) {
	return uint64(p.begin.Load()), moment(p.since.Load())
}

// Check compares the stored position with the log: mac returns the MAC of the
// envelope at a sequence. Rows of another log are thrown away.
func (p *Projection) Check(ctx context.Context, mac func(ctx context.Context, seq uint64) (string, error)) error {
	seq := p.applied.Load()
	if seq == 0 {
		return nil
	}
	var have string
	if err := p.db.Load().QueryRowContext(ctx, "SELECT mac FROM meta").Scan(&have); err != nil {
		return fmt.Errorf("projection: read position: %w", err)
	}
	want, err := mac(ctx, seq)
	if err == nil && want == have {
		return nil
	}
	p.cfg.Logger.Warn("read side belongs to another log and is made anew", "seq", seq, "cause", err)
	return p.Rebuild(ctx)
}

// Rebuild forgets every row; Run reads the log from the start. Not while Run runs.
func (p *Projection) Rebuild(ctx context.Context) error { return p.restart(ctx, 0) }

// restart forgets every row, for the log to be read from behind sequence at, which
// is before the first one that it has.
func (p *Projection) restart(ctx context.Context, at uint64) error {
	begin := int64(0)
	if at > 0 {
		begin = int64(at) + 1
	}
	tx, err := p.db.Load().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("projection: rebuild: %w", err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "DELETE FROM request"); err != nil {
		return fmt.Errorf("projection: rebuild: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE meta SET applied = ?, mac = '', begin = ?, since = 0", int64(at), begin); err != nil {
		return fmt.Errorf("projection: rebuild: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("projection: rebuild: %w", err)
	}
	p.applied.Store(at)
	p.begin.Store(begin)
	p.since.Store(0)
	return nil
}

// Close closes the database. Run must have ended.
func (p *Projection) Close() error {
	if err := p.db.Load().Close(); err != nil {
		return fmt.Errorf("projection: close: %w", err)
	}
	return nil
}
