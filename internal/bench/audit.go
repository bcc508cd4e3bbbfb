package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// audited is what a child of the audit bench did.
type audited struct {
	Events  int     `json:"events"`
	Bytes   int64   `json:"bytes"` // of the leaves
	Seconds float64 `json:"seconds"`
	Used    Usage   `json:"used"`
}

func (a *audited) finish(m mark) { a.Seconds, a.Used = m.since() }

// auditRate is how many events a second of measurement are in the log: a million
// in the two seconds of the default.
const auditRate = 500_000

// audit measures what the proof costs: from the log's stream into signed tiles on
// disk, from there into a bundle, and its verification.
func (b *bench) audit(ctx context.Context) (err error) {
	b.Progress("audit: writing a log")
	s, err := b.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.fillLog(ctx, int(b.Duration.Seconds()*auditRate)); err != nil {
		return err
	}
	a := &auditBench{site: s, leaves: filepath.Join(s.dir, "leaves.jsonl")}
	if err := a.writeLeaves(ctx); err != nil {
		return err
	}
	size := fmt.Sprintf("%d events, %d bytes each on average", a.events, a.bytes/int64(a.events))
	const stream = "the auditor reads the stream, checks MACs, decodes, appends, writes tiles with fsync, and signs"
	hashing := b.add(newCase("audit", "signed tiles", nil, "auditor", "hashing alone", "events/s", size, stream,
		"the ceiling reads the same leaves from a file and computes the tree's root, and writes nothing"))
	var tessera *Case
	program, why := b.tessera(ctx)
	if program == "" {
		hashing.Notes = append(hashing.Notes, "Tessera was not measured: "+why)
	} else {
		tessera = b.add(newCase("audit", "signed tiles, beside Tessera", nil, "auditor", "Tessera, POSIX", "events/s", size, stream,
			"Tessera v1.0.4 is given the same leaves from a file, in batches of as many, and signs once a second"))
	}
	bundle := b.add(newCase("audit", "write a bundle", nil, "bundle", "plain zip", "events/s", size, "the ceiling puts the same lines into a zip, compressed as well"))
	verify := b.add(newCase("audit", "verify a bundle", nil, "verifier", "SHA-256", "MB/s", size, "MB of event lines; the ceiling digests the lines alone"))
	for round := range b.Rounds {
		b.Progress("audit: round %d of %d", round+1, b.Rounds)
		if err := a.round(ctx, round, hashing, tessera, bundle, verify, program); err != nil {
			return err
		}
	}
	return nil
}

// auditBench is the log that is measured on.
type auditBench struct {
	*site
	leaves string // the log's lines
	events int
	bytes  int64
}

// round measures everything once.
func (a *auditBench) round(ctx context.Context, round int, hashing, tessera, bundle, verify *Case, program string) (err error) {
	dir, remove, err := a.b.sub("auditor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := a.unsigned(ctx); err != nil {
		return err
	}
	var other Sample
	beside := func() (err error) {
		if tessera != nil {
			other, err = a.runTessera(ctx, program)
		}
		return err
	}
	if round%2 == 1 {
		if err := beside(); err != nil {
			return err
		}
	}
	p, c, err := alternate(round,
		func() (Sample, error) { return a.in(ctx, kindAudit, childConfig{Dir: dir}) },
		func() (Sample, error) { return a.in(ctx, kindHash, childConfig{File: a.leaves}) })
	if err != nil {
		return err
	}
	hashing.add(p, c)
	if round%2 == 0 {
		if err := beside(); err != nil {
			return err
		}
	}
	if tessera != nil {
		tessera.add(p, other)
	}
	path := filepath.Join(dir, "bundle.zip")
	p, c, err = alternate(round,
		func() (Sample, error) { return a.in(ctx, kindExport, childConfig{Dir: dir, File: path}) },
		func() (Sample, error) { return a.in(ctx, kindExport, childConfig{Dir: dir, File: a.leaves, Raw: true}) })
	if err != nil {
		return err
	}
	bundle.add(p, c)
	p, c, err = alternate(round,
		func() (Sample, error) { return a.in(ctx, kindVerify, childConfig{Dir: dir, File: path}) },
		func() (Sample, error) { return a.in(ctx, kindHash, childConfig{File: a.leaves, Raw: true}) })
	if err != nil {
		return err
	}
	for _, s := range []*Sample{&p, &c} {
		s.Value = float64(a.bytes) / 1e6 / s.Seconds
	}
	verify.add(p, c)
	return nil
}

// unsigned starts the server anew without what was signed, so that each round's
// auditor signs.
func (a *auditBench) unsigned(ctx context.Context) error {
	if err := a.down(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(a.dir, "jetstream", "jetstream", "AUDIT")); err != nil {
		return fmt.Errorf("forget what was signed: %w", err)
	}
	return a.up(ctx, false)
}

// in runs one child to its end.
func (a *auditBench) in(ctx context.Context, kind string, cfg childConfig) (Sample, error) {
	cfg.Kind, cfg.URL, cfg.Keys, cfg.Partitions = kind, a.url, a.ring.Dir(), a.b.Partitions
	name := kind
	if cfg.Raw {
		name += "-raw"
	}
	var r audited
	c, err := a.b.start(ctx, name, cfg, &r)
	if err != nil {
		return Sample{}, err
	}
	if err := c.stop(); err != nil {
		return Sample{}, err
	}
	return a.sample(name, &r)
}

// sample makes one of what a process did, which must be all of it.
func (a *auditBench) sample(name string, r *audited) (Sample, error) {
	if r.Events != a.events {
		return Sample{}, fmt.Errorf("%s: %d events, want %d", name, r.Events, a.events)
	}
	n := float64(r.Events)
	return Sample{Value: n / r.Seconds, Count: r.Events, Seconds: r.Seconds,
		CPU: map[string]float64{name: micros(r.Used.CPU) / n}, PeakMB: map[string]float64{name: float64(r.Used.PeakRSS >> 20)}}, nil
}

// writeLeaves copies the log's lines into a file.
func (a *auditBench) writeLeaves(ctx context.Context) (err error) {
	f, err := os.Create(a.leaves)
	if err != nil {
		return fmt.Errorf("leaves: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	err = followLog(ctx, a.url, a.ring, a.b.Logger, func(env *events.Envelope) error {
		a.events += bytes.Count(env.Lines, []byte{'\n'})
		a.bytes += int64(len(env.Lines))
		_, err := w.Write(env.Lines)
		return err
	})
	if a.events == 0 && err == nil {
		err = errors.New("leaves: the log has none")
	}
	return errors.Join(err, w.Flush())
}

// tesseraSource is where the program of Tessera's side is, in this repository.
const tesseraSource = "internal/bench/tesserabench"

// tessera builds the program that runs Tessera, or says why it cannot. It is a
// module of its own: pdgate does not depend on Tessera.
func (b *bench) tessera(ctx context.Context) (program, why string) {
	dir := tesseraSource
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", "run this in the root of pdgate's repository, where " + tesseraSource + " is"
	}
	program = filepath.Join(b.dir, "tesserabench")
	abs, err := filepath.Abs(program)
	if err != nil {
		return "", err.Error()
	}
	b.Progress("audit: building %s", dir)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", abs, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Sprintf("go build in %s: %v: %s", dir, err, first)
	}
	return abs, ""
}

// runTessera adds the leaves to a new Tessera log.
func (a *auditBench) runTessera(ctx context.Context, program string) (_ Sample, err error) {
	dir, remove, err := a.b.sub("tessera")
	if err != nil {
		return Sample{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var errs tail
	cmd := exec.CommandContext(ctx, program, a.leaves, dir)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return Sample{}, fmt.Errorf("tessera: %w: %s", err, &errs)
	}
	var r audited
	if err := json.Unmarshal(out, &r); err != nil {
		return Sample{}, fmt.Errorf("tessera: %w", err)
	}
	return a.sample("tessera", &r)
}

// wholeLog is the bundle of everything that an auditor's directory has signed.
func wholeLog(dir string) (*audit.Export, error) {
	key, err1 := os.ReadFile(filepath.Join(dir, "log.vkey"))
	signed, err2 := os.ReadFile(filepath.Join(dir, "checkpoint"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("auditor's directory: %w", err)
	}
	x := &audit.Export{Tiles: audit.Tiles{FS: os.DirFS(dir)}, Key: strings.TrimSpace(string(key)), Start: signed, End: signed, Completeness: audit.CompleteRange}
	v, err := audit.ParseKey(x.Key)
	if err != nil {
		return nil, err
	}
	c, err := audit.OpenCheckpoint(signed, audit.KeyPolicy(v))
	if err != nil {
		return nil, err
	}
	x.To = c.Tree.N
	return x, nil
}
