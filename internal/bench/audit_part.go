package bench

import (
	"archive/zip"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/auditor"
)

// mark is where a measurement starts.
type mark struct {
	at     time.Time
	before Usage
}

func start() mark { return mark{time.Now(), usage()} }

// since is the time and what this process used of it. The peak is that of the
// whole process.
func (m mark) since() (float64, Usage) {
	u := usage()
	return time.Since(m.at).Seconds(), Usage{CPU: u.CPU - m.before.CPU, PeakRSS: u.PeakRSS}
}

// runAudit is an auditor with an empty directory, until the tree is caught up and
// signed.
func runAudit(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error {
	ring, err := keyring.Load(cfg.Keys)
	if err != nil {
		return err
	}
	logKey, err1 := ring.LogKey()
	key, err2 := ring.AuditKey()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: cfg.URL, Ring: ring, User: keyring.Auditor, Logger: log})
	if err != nil {
		return err
	}
	defer nc.Close()
	m := start()
	var r audited
	run, stop := context.WithCancel(ctx)
	defer stop()
	a, err := auditor.New(auditor.Config{
		Name: "au1", Dir: cfg.Dir, Conn: nc, Domain: broker.AuditDomain, LogKey: logKey, Key: key, Origin: "example.com/bench", Logger: log,
		Ready: func(string) {
			r.finish(m)
			stop()
		},
	})
	if err != nil {
		return err
	}
	if err := a.Run(run); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	x, err := wholeLog(cfg.Dir)
	if err != nil {
		return err
	}
	r.Events = int(x.To)
	ready(r)
	<-ctx.Done()
	return nil
}

// noTiles is a tree that is only hashed.
type noTiles struct{}

func (noTiles) WriteTile(tlog.Tile, []byte) error { return nil }

// runHash computes the root of a file of leaves, or digests the file where cfg.Raw.
func runHash(ctx context.Context, cfg childConfig, _ *slog.Logger, ready func(any)) error {
	f, err := os.Open(cfg.File)
	if err != nil {
		return fmt.Errorf("leaves: %w", err)
	}
	defer f.Close()
	m := start()
	var r audited
	tree, sum := audit.NewTree(noTiles{}), sha256.New()
	err = eachLine(f, func(line []byte) error {
		r.Events++
		r.Bytes += int64(len(line))
		if cfg.Raw {
			_, err := sum.Write(line)
			return err
		}
		return tree.Append(line[:len(line)-1])
	})
	if err != nil {
		return err
	}
	tree.Root()
	sum.Sum(nil)
	r.finish(m)
	ready(r)
	<-ctx.Done()
	return nil
}

// eachLine hands over a file's lines, each with its '\n'.
func eachLine(f io.Reader, do func([]byte) error) error {
	in := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("leaves: %w", err)
		}
		if err := do(line); err != nil {
			return err
		}
	}
}

// runExport writes a bundle of the whole log into cfg.File; where cfg.Raw, the
// lines of cfg.File into a zip beside the tiles.
func runExport(ctx context.Context, cfg childConfig, _ *slog.Logger, ready func(any)) error {
	m := start()
	var r audited
	if err := exportInto(cfg, &r); err != nil {
		return err
	}
	r.finish(m)
	ready(r)
	<-ctx.Done()
	return nil
}

func exportInto(cfg childConfig, r *audited) (err error) {
	path := cfg.File
	if cfg.Raw {
		path = cfg.Dir + "/plain.zip"
	}
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := bufio.NewWriterSize(out, 1<<20)
	if cfg.Raw {
		err = plainZip(w, cfg.File, r)
	} else {
		err = bundleOf(w, cfg.Dir, r)
	}
	return errors.Join(err, w.Flush())
}

func bundleOf(w io.Writer, dir string, r *audited) error {
	x, err := wholeLog(dir)
	if err != nil {
		return err
	}
	man, err := audit.WriteBundle(w, x)
	if err != nil {
		return err
	}
	r.Events = int(man.Lines)
	return nil
}

func plainZip(w io.Writer, leaves string, r *audited) error {
	f, err := os.Open(leaves)
	if err != nil {
		return fmt.Errorf("leaves: %w", err)
	}
	defer f.Close()
	z := zip.NewWriter(w)
	file, err := z.Create("events.jsonl")
	if err != nil {
		return err
	}
	err = eachLine(f, func(line []byte) error {
		r.Events++
		_, err := file.Write(line)
		return err
	})
	return errors.Join(err, z.Close())
}

// runVerify verifies a bundle.
func runVerify(ctx context.Context, cfg childConfig, _ *slog.Logger, ready func(any)) error {
	f, err := os.Open(cfg.File)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	x, err := wholeLog(cfg.Dir)
	if err != nil {
		return err
	}
	m := start()
	var r audited
	report, err := audit.VerifyBundle(f, fi.Size(), audit.Options{OwnKey: true})
	if err != nil {
		return err
	}
	r.finish(m)
	if report.Exit != 0 {
		return fmt.Errorf("verify: exit code %d: %v", report.Exit, report.Problems)
	}
	r.Events = int(x.To)
	ready(r)
	<-ctx.Done()
	return nil
}
