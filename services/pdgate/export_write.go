package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"

	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/audit/export"
)

// write makes the file from the part.
func (x *exporter) write(ctx context.Context, p *partFile) error {
	x.say("writes %s", x.out)
	tmp := x.out + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("out: %w", err)
	}
	defer os.Remove(tmp) // after the rename there is none
	defer f.Close()
	if x.format == "bundle" {
		err = x.bundle(ctx, f, p)
	} else {
		err = export.Write(f, x.derived[0], p.records())
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(tmp, x.out)
	}
	if err != nil {
		return fmt.Errorf("out: %w", err)
	}
	if x.format != "bundle" {
		x.say("%s is done. It proves nothing by itself: a bundle does", x.out)
		return nil
	}
	trust := "--vkey '" + p.plan.Key + "'"
	if x.policy != "" {
		trust = "--policy " + x.policy
	} else {
		x.say("the key below is the one that the log has now: whoever verifies takes it from elsewhere")
	}
	if p.plan.Completeness == auditlog.CompleteTenant && p.plan.From > 0 {
		trust += " --midway"
	}
	fmt.Fprintf(x.stderr, "verify with: pdgate verify bundle %s %s\n", trust, x.out)
	return nil
}

func (x *exporter) bundle(ctx context.Context, f *os.File, p *partFile) error {
	e := &auditlog.Export{Tiles: auditlog.Tiles{FS: x.src.files}, Key: p.plan.Key, Policy: x.policyText, Start: x.startNote, End: []byte(p.plan.End),
		Completeness: p.plan.Completeness, Filter: p.plan.Filter, From: p.plan.From, To: p.plan.To, Lines: until(ctx, p.lines()), Epoch: p.plan.Epoch}
	if len(e.Start) == 0 {
		e.Start = e.End
	}
	if x.discloser != nil {
		e.Disclosures = x.discloser.of(ctx, p.lines())
	}
	for _, format := range x.derived {
		e.Derived = append(e.Derived, auditlog.DerivedFile{Name: format.File(), Write: func(w io.Writer) error {
			return export.Write(w, format, p.records())
		}})
	}
	if _, err := auditlog.WriteBundle(f, e); err != nil {
		return err
	}
	// What the auditor gave was taken as it came: the bundle is judged as a whole.
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	key, err := auditlog.ParseKey(p.plan.Key)
	if err != nil {
		return err
	}
	x.progress("checks %s", x.out)
	r, err := auditlog.VerifyBundle(f, size, auditlog.Options{Policy: auditlog.KeyPolicy(key), Midway: true})
	if err != nil {
		return err
	}
	if r.Code == auditlog.Broken {
		return fmt.Errorf("what the auditor gave is not what it signed: %s: %s", r.Problems[0].Where, r.Problems[0].What)
	}
	return nil
}

// until ends a sequence with the context's error.
func until(ctx context.Context, lines iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line, err := range lines {
			if err == nil {
				err = ctx.Err()
			}
			if !yield(line, err) {
				return
			}
		}
	}
}

func openNote(note, key string) (*auditlog.SignedCheckpoint, error) {
	v, err := auditlog.ParseKey(key)
	if err != nil {
		return nil, err
	}
	return auditlog.OpenCheckpoint([]byte(note), auditlog.KeyPolicy(v))
}
