package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"

	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/audit/export"
)

// partFile holds what was read of an export that is not done: the plan in its first
// line, then, a line each,
//
//	+ID                      a request that is of the model that is asked for
//	LEAF SEQ.LINE EVENT      a leaf that is shown
//	@NEXT RECORD LINE        everything before leaf NEXT was read
//
// What follows the last whole @ line was cut off, and is read again.
type partFile struct {
	f    *os.File
	w    *bufio.Writer
	plan exportPlan
	at   readMark
}

// exportPlan is what does not change over an export's tries.
type exportPlan struct {
	Format       string                `json:"format"`
	Position     string                `json:"position"` // of the event that records it; empty: none does
	Completeness auditlog.Completeness `json:"completeness"`
	Filter       auditlog.Filter       `json:"filter"`
	From         int64                 `json:"from"` // leaves to read
	To           int64                 `json:"to"`
	Epoch        int64                 `json:"epoch"` // first epoch leaf, of completeness tenant
	Key          string                `json:"key"`   // of the log
	End          string                `json:"end"`   // signed checkpoint
}

const partFormat = "pdgate-export/1"

// readMark is how far the leaves were read.
type readMark struct {
	next   int64 // leaf
	record int64 // of the index: the message that it is of, or the next one's
	line   int   // events of that message before it
}

func createPart(path string, plan exportPlan) (*partFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s is of an export that did not end: go on with --resume, or remove it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("part of the export: %w", err)
	}
	p := &partFile{f: f, w: bufio.NewWriterSize(f, 256<<10), plan: plan, at: readMark{next: plan.From, record: -1}}
	first, err := json.Marshal(plan)
	if err == nil {
		_, err = p.w.Write(append(first, '\n'))
	}
	if err = errors.Join(err, p.mark()); err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// openPart goes on with a part, and hands over the requests that it learned.
func openPart(path string, learned func(id string)) (*partFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("resume: there is no %s: leave --resume out", path)
	}
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	p := &partFile{f: f}
	if err := p.scan(learned); err != nil {
		f.Close()
		return nil, fmt.Errorf("resume: %s: %w: remove it, and begin anew", path, err)
	}
	p.w = bufio.NewWriterSize(f, 256<<10)
	return p, nil
}

func (p *partFile) scan(learned func(string)) error {
	r := bufio.NewReaderSize(p.f, 256<<10)
	good, offset := int64(0), int64(0)
	var ids []string // since the last mark
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		offset += int64(len(line))
		line = line[:len(line)-1]
		switch {
		case n == 0:
			if err := json.Unmarshal(line, &p.plan); err != nil || p.plan.Format != partFormat {
				return errors.New("it is not of an export")
			}
		case len(line) > 0 && line[0] == '+':
			ids = append(ids, string(line[1:]))
		case len(line) > 0 && line[0] == '@':
			var m readMark
			if _, err := fmt.Sscanf(string(line), "@%d %d %d", &m.next, &m.record, &m.line); err != nil {
				return errors.New("it is damaged")
			}
			p.at, good = m, offset
			for _, id := range ids {
				learned(id)
			}
			ids = ids[:0]
		}
	}
	if good == 0 {
		return errors.New("it holds nothing")
	}
	if err := p.f.Truncate(good); err != nil {
		return err
	}
	_, err := p.f.Seek(good, io.SeekStart)
	return err
}

func (p *partFile) learn(id string) error {
	_, err := p.w.WriteString("+" + id + "\n")
	return err
}

func (p *partFile) add(leaf int64, seq uint64, line int, raw []byte) error {
	b := p.w.AvailableBuffer()
	b = append(strconv.AppendInt(b, leaf, 10), ' ')
	b = append(strconv.AppendUint(b, seq, 10), '.')
	b = append(strconv.AppendInt(b, int64(line), 10), ' ')
	b = append(append(b, raw...), '\n')
	_, err := p.w.Write(b)
	return err
}

// mark says that everything before p.at was read.
func (p *partFile) mark() error {
	fmt.Fprintf(p.w, "@%d %d %d\n", p.at.next, p.at.record, p.at.line)
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("part of the export: %w", err)
	}
	return nil
}

// records are the shown leaves, each valid until the next.
func (p *partFile) records() iter.Seq2[export.Record, error] {
	return func(yield func(export.Record, error) bool) {
		r := bufio.NewReaderSize(io.NewSectionReader(p.f, 0, 1<<62), auditlog.MaxLeaf+256)
		for n := 0; ; n++ {
			line, err := r.ReadSlice('\n')
			if err == io.EOF {
				return
			}
			if err != nil && n > 0 {
				yield(export.Record{}, fmt.Errorf("part of the export: %w", err))
				return
			}
			if n == 0 || line[0] < '0' || line[0] > '9' {
				continue
			}
			rec, err := parseRecord(line[:len(line)-1])
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

func parseRecord(line []byte) (r export.Record, err error) {
	leaf, rest, _ := bytes.Cut(line, []byte(" "))
	pos, raw, _ := bytes.Cut(rest, []byte(" "))
	seq, at, _ := bytes.Cut(pos, []byte("."))
	var err1, err2, err3 error
	r.Leaf, err1 = strconv.ParseInt(string(leaf), 10, 64)
	r.Seq, err2 = strconv.ParseUint(string(seq), 10, 64)
	r.Line, err3 = strconv.Atoi(string(at))
	r.Raw = raw
	if err := errors.Join(err1, err2, err3); err != nil {
		return r, fmt.Errorf("part of the export is damaged: %w", err)
	}
	return r, nil
}

// lines are the bytes of the shown leaves.
func (p *partFile) lines() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for r, err := range p.records() {
			if !yield(r.Raw, err) {
				return
			}
		}
	}
}
