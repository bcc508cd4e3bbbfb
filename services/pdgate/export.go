package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/audit/export"
)

// exportFlags are the command line of export.
type exportFlags struct {
	out, format, with     string
	url, token, dir       string
	tenant, model         string
	request, from, to     string
	policy, start         string
	resume, disclose      bool
	remote                remote // of --disclose
	patience              time.Duration
	fromSeq, toSeq        uint64
	since, until          time.Time
	derived               []export.Format
	policyText, startNote []byte
}

func (a *app) exportCommand() *cobra.Command {
	var f exportFlags
	c := &cobra.Command{
		Use:   "export",
		Short: "Export the audit log, or a part of it, as a bundle that anybody can verify",
		Long: `export reads the audit log and writes a bundle that pdgate verify checks offline
(docs/audit.md). The export itself is recorded in the log first. A tenant's bundle
(--tenant alone) shows that tenant's events whole; any other filter shows leaves of a
range, with the others withheld as hashes.

What breaks off leaves FILE.part, from which --resume goes on.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return &usageError{err, cmd}
			}
			x := &exporter{exportFlags: f, stderr: a.stderr}
			err := a.sources(x, cmd)
			if err == nil {
				defer x.close()
				if f.disclose {
					x.discloser, err = a.openDiscloser(cmd.Context(), &f.remote, x.say)
				}
			}
			if err == nil {
				err = x.run(cmd.Context())
			}
			if err != nil && x.begun {
				return fmt.Errorf("%w\nWhat was read is kept in %s: go on with --resume", err, x.part())
			}
			return err
		},
	}
	p := c.Flags()
	p.StringVar(&f.out, "out", "", "file to write; it must not exist")
	p.StringVar(&f.format, "format", "bundle", "bundle, or one derived form: jsonl, ocsf, parquet, csv or otlp (which prove nothing)")
	p.StringVar(&f.with, "with", "", "derived forms to add to the bundle, separated by commas")
	p.StringVar(&f.tenant, "tenant", "", "only this tenant's events")
	p.StringVar(&f.model, "model", "", "only events of this model, and of its requests")
	p.StringVar(&f.request, "request", "", "only events of this request")
	p.StringVar(&f.from, "from", "", "first stream sequence, or time (RFC 3339)")
	p.StringVar(&f.to, "to", "", "last stream sequence, or time (exclusive)")
	p.StringVar(&f.url, "audit-url", "", "the auditor's read API (default: the one that runs on the data directory)")
	p.StringVar(&f.token, "token-file", "", "file with a reader's token (default: audit-token in the key directory)")
	p.StringVar(&f.dir, "dir", "", "read an auditor's directory, or a copy; without an auditor the export is not recorded")
	p.StringVar(&f.policy, "policy", "", "policy to put into the bundle: log, witnesses, quorum")
	p.StringVar(&f.start, "start", "", "an earlier checkpoint, which the bundle shall prove to be continued")
	p.BoolVar(&f.disclose, "disclose", false, "add what opens the salted digests of the lines; needs eraser.nk and the tenants' keys")
	f.remote.add(p)
	p.BoolVar(&f.resume, "resume", false, "go on with an export that broke off")
	p.DurationVar(&f.patience, "patience", 30*time.Second, "how long to try again while the auditor does not answer")
	return c
}

// check reads what the flags say.
func (f *exportFlags) check() error {
	var errs []error
	if f.out == "" {
		errs = append(errs, errors.New("out: want a file to write"))
	}
	if f.patience < 0 {
		errs = append(errs, errors.New("patience: want 0 or more"))
	}
	names := strings.FieldsFunc(f.with, func(r rune) bool { return r == ',' })
	if f.format != "bundle" {
		if len(names) > 0 {
			errs = append(errs, errors.New("with: want it for a bundle only"))
		}
		names = []string{f.format}
		if f.disclose {
			errs = append(errs, errors.New("disclose: want it for a bundle only"))
		}
	}
	for _, n := range names {
		if n == "jsonl" {
			n = string(export.CloudEvents)
		}
		if export.Format(n).File() == "" || slices.Contains(f.derived, export.Format(n)) {
			errs = append(errs, fmt.Errorf("format %q: want jsonl, ocsf, parquet, csv or otlp, each once", n))
		}
		f.derived = append(f.derived, export.Format(n))
	}
	if f.tenant != "" && !events.ValidName(f.tenant) {
		errs = append(errs, errors.New("tenant: want a tenant's name"))
	}
	if f.model != "" && !events.ValidModel(f.model) {
		errs = append(errs, errors.New("model: want a model's name"))
	}
	if f.request != "" {
		if _, err := events.RequestTime(f.request); err != nil {
			errs = append(errs, err)
		}
	}
	bound := func(name, s string, seq *uint64, t *time.Time) {
		if s == "" {
			return
		}
		if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > 0 {
			*seq = n
		} else if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
			*t = events.Micros(at)
		} else {
			errs = append(errs, fmt.Errorf("%s %q: want a stream sequence from 1, or a time like 2026-01-02T15:04:05Z", name, s))
		}
	}
	bound("from", f.from, &f.fromSeq, &f.since)
	bound("to", f.to, &f.toSeq, &f.until)
	read := func(name, path string, into *[]byte) {
		if path == "" {
			return
		}
		b, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		*into = b
	}
	read("policy", f.policy, &f.policyText)
	read("start", f.start, &f.startNote)
	return firstOf(errs...)
}

// sources finds the auditor, and what to read from.
func (a *app) sources(x *exporter, cmd *cobra.Command) error {
	url := x.url
	if url == "" {
		var err error
		if url, err = publishedURL(a.data, auditorURLFile); err != nil {
			return err
		}
	}
	if url == "" && x.dir == "" {
		return &usageError{errors.New("audit-url: no auditor runs on the data directory: name one, or a --dir"), cmd}
	}
	if url != "" {
		path := x.token
		if path == "" {
			path = filepath.Join(a.data, "keys", "audit-token")
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("token of a reader: %w", err)
		}
		transport := &http.Transport{ResponseHeaderTimeout: 30 * time.Second}
		x.web = &webSource{ctx: cmd.Context(), url: strings.TrimSuffix(url, "/"), token: strings.TrimSpace(string(b)),
			client: &http.Client{Transport: transport, Timeout: 2 * time.Minute}, patience: x.patience}
		x.src, x.closers = &logSource{files: x.web, index: x.web}, append(x.closers, func() { transport.CloseIdleConnections() })
	}
	if x.dir != "" {
		src, file, err := dirSource(x.dir)
		if err != nil {
			return err
		}
		x.src, x.closers = src, append(x.closers, func() { file.Close() })
	}
	return nil
}

// exporter is one run of an export.
type exporter struct {
	exportFlags
	stderr    io.Writer
	web       *webSource // nil: there is no auditor to record the export
	src       *logSource
	closers   []func()
	discloser *discloser // nil: nothing is disclosed
	begun     bool       // there is a part to go on with
	said      time.Time
	models    map[string]struct{} // requests of the model that is asked for: 16 to 100 bytes each
}

func (x *exporter) close() {
	if x.discloser != nil {
		x.discloser.close()
	}
	for _, f := range x.closers {
		f()
	}
}

func (x *exporter) part() string { return x.out + ".part" }

func (x *exporter) say(format string, args ...any) {
	fmt.Fprintf(x.stderr, "export: "+format+"\n", args...)
	x.said = time.Now()
}

// progress says something, but not too often.
func (x *exporter) progress(format string, args ...any) {
	if time.Since(x.said) >= time.Second {
		x.say(format, args...)
	}
}

func (x *exporter) run(ctx context.Context) error {
	if _, err := os.Stat(x.out); err == nil {
		return fmt.Errorf("out: %s exists: name another file, or remove it", x.out)
	}
	x.models = map[string]struct{}{}
	p, err := x.open(ctx)
	if err != nil {
		return err
	}
	defer p.f.Close()
	x.begun = true
	if x.web != nil {
		x.web.export = p.plan.Position
	}
	end, err := openNote(p.plan.End, p.plan.Key)
	if err != nil {
		return err
	}
	if err := x.read(ctx, p, end.Tree.N); err != nil {
		return err
	}
	if err := x.write(ctx, p); err != nil {
		return err
	}
	if err := os.Remove(x.part()); err != nil {
		return fmt.Errorf("part of the export: %w", err)
	}
	x.begun = false
	return nil
}

// open begins an export, or goes on with one.
func (x *exporter) open(ctx context.Context) (*partFile, error) {
	if !x.resume {
		if _, err := os.Stat(x.part()); err == nil {
			return nil, fmt.Errorf("%s is of an export that did not end: go on with --resume, or remove it", x.part())
		}
		plan, err := x.begin(ctx)
		if err != nil {
			return nil, err
		}
		return createPart(x.part(), *plan)
	}
	p, err := openPart(x.part(), func(id string) { x.models[id] = struct{}{} })
	if err != nil {
		return nil, err
	}
	want := x.filter()
	if want.Tenant != p.plan.Filter.Tenant || want.Model != p.plan.Filter.Model || want.Request != p.plan.Filter.Request ||
		!want.Since.Equal(p.plan.Filter.Since) || !want.Until.Equal(p.plan.Filter.Until) {
		p.f.Close()
		return nil, fmt.Errorf("resume: %s is of an export with another filter", x.part())
	}
	x.say("goes on at leaf %d of %d", p.at.next, p.plan.To)
	return p, nil
}

func (x *exporter) filter() auditlog.Filter {
	return auditlog.Filter{Tenant: x.tenant, Request: x.request, Model: x.model, Since: x.since, Until: x.until}
}

// read fills the part with the leaves that are shown.
func (x *exporter) read(ctx context.Context, p *partFile, size int64) error {
	tiles := auditlog.Tiles{FS: x.src.files}
	var d events.Decoder
	seq, next := uint64(0), int64(0) // of the present message, first leaf of the next one
	enter := func(record int64) error {
		var err error
		p.at.record = record
		if seq, _, err = x.src.record(record); err != nil {
			return err
		}
		next = size
		if end, err := x.src.index.size(); err != nil || record+1 >= end/indexRecord {
			return err
		}
		_, next, err = x.src.record(record + 1)
		return err
	}
	if p.at.next < p.plan.To {
		if p.at.record < 0 {
			i, err := x.src.search(func(_ uint64, leaf int64) (bool, error) { return leaf <= p.at.next, nil })
			if err != nil {
				return err
			}
			p.at.record = i - 1
		}
		if err := enter(p.at.record); err != nil {
			return err
		}
	}
	for p.at.next < p.plan.To {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := p.at.next
		end := min(at&^(auditlog.TileWidth-1)+auditlog.TileWidth, p.plan.To)
		for line, err := range tiles.Leaves(at, end, size) {
			if err != nil {
				return err
			}
			for at >= next {
				if err := enter(p.at.record + 1); err != nil {
					return err
				}
				p.at.line = 0
			}
			var leaf *auditlog.Leaf
			if bytes.HasPrefix(line, []byte(`{"pdgate_`)) {
				leaf, err = auditlog.ParseLeaf(line)
			} else {
				leaf = &auditlog.Leaf{}
				leaf.Event, err = d.Decode(line)
				p.at.line++
			}
			if err != nil {
				return fmt.Errorf("leaf %d: %w", at, err)
			}
			show, err := x.shows(p, leaf)
			if err == nil && show {
				err = p.add(at, seq, max(p.at.line-1, 0), line)
			}
			if err != nil {
				return err
			}
			at++
		}
		p.at.next = end
		if err := p.mark(); err != nil {
			return err
		}
		x.progress("read %d of %d leaves", end-p.plan.From, p.plan.To-p.plan.From)
	}
	return nil
}

// shows says whether the export shows a leaf.
func (x *exporter) shows(p *partFile, l *auditlog.Leaf) (bool, error) {
	f := p.plan.Filter
	if f.Model != "" && l.Event != nil {
		// Most events do not name the model: those of its requests do at their beginning.
		_, of := x.models[l.Event.Subject]
		named := auditlog.ModelOf(l.Event.Data) == f.Model
		if named && !of {
			switch l.Event.Data.(type) {
			case *events.RequestAdmitted, *events.RequestRejected:
				id := strings.Clone(l.Event.Subject)
				x.models[id] = struct{}{}
				if err := p.learn(id); err != nil {
					return false, err
				}
			}
		}
		if !of && !named {
			return false, nil
		}
	}
	if p.plan.Completeness == auditlog.CompleteTenant && l.Event == nil {
		return false, nil
	}
	return !f.Excludes(l), nil
}
