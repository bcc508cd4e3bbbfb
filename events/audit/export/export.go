// Package export writes the log's leaves in the forms that other tools read. All
// of them can be made again from the canonical lines, which alone are hashed and
// proven: a derived file is a view, and no evidence by itself.
//
// Every format has one file here and shows every leaf. Leaves that are no events,
// a gap or a message that is not the log's own, are shown in each format's way,
// since leaving them out would make a damaged log look whole.
//
// All writers stream: memory is bounded by a row group (Parquet), by the requests
// that are open (OTLP), or by one line.
package export

import (
	"bufio"
	"fmt"
	"io"
	"iter"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// Format names a derived form.
type Format string

const (
	CloudEvents Format = "cloudevents" // the canonical lines themselves
	OCSF        Format = "ocsf"        // OCSF 1.8.0, a JSON object a line
	Parquet     Format = "parquet"     // a row a leaf, page runs as a nested list
	CSV         Format = "csv"         // a line a leaf with the main columns
	OTLP        Format = "otlp"        // OTLP JSON, a span a request
)

// Formats lists all of them.
func Formats() []Format { return []Format{CloudEvents, OCSF, Parquet, CSV, OTLP} }

// File is the name of a format's file in a bundle; "" for an unknown format.
func (f Format) File() string {
	switch f {
	case CloudEvents:
		return "cloudevents.jsonl"
	case OCSF:
		return "ocsf.jsonl"
	case Parquet:
		return "events.parquet"
	case CSV:
		return "events.csv"
	case OTLP:
		return "otlp.jsonl"
	}
	return ""
}

// Record is one leaf. It and what it refers to need to be valid until the next one
// only.
type Record struct {
	Seq   uint64        // stream sequence; of a gap, its first
	Line  int           // line of the message, from 0
	Leaf  int64         // index in the log
	Raw   []byte        // the leaf's bytes
	Event *events.Event // nil: it is read from Raw
}

// encoder is one format. Nothing it wrote is whole before close.
type encoder interface {
	add(*entry) error
	close() error
	// abort ends the output so that no reader takes it for a whole one.
	abort()
}

// entry is a record with its leaf read.
type entry struct {
	Record
	audit.Leaf
}

// Write writes records, which ascend by position, in a format. An error of the
// records or of w is returned; what was written until then is broken at its end on
// purpose, so that it cannot be taken for a short but whole export.
func Write(w io.Writer, format Format, records iter.Seq2[Record, error]) error {
	buf := bufio.NewWriterSize(w, 64<<10)
	enc, err := newEncoder(buf, format)
	if err != nil {
		return err
	}
	err = each(records, enc.add)
	if err == nil {
		err = enc.close()
	} else {
		enc.abort()
	}
	if ferr := buf.Flush(); err == nil {
		err = ferr
	}
	if err != nil {
		return fmt.Errorf("export %s: %w", format, err)
	}
	return nil
}

func newEncoder(w *bufio.Writer, format Format) (encoder, error) {
	switch format {
	case CloudEvents:
		return &cloudEvents{w}, nil
	case OCSF:
		return newOCSF(w), nil
	case Parquet:
		return newParquet(w), nil
	case CSV:
		return newCSV(w)
	case OTLP:
		return newOTLP(w), nil
	}
	return nil, fmt.Errorf("export format %q: want one of %q", format, Formats())
}

// each reads the records' leaves and checks their order.
func each(records iter.Seq2[Record, error], f func(*entry) error) error {
	var e entry
	var seq uint64
	line := 0
	for r, err := range records {
		if err != nil {
			return err
		}
		if r.Seq < seq || r.Seq == seq && r.Line < line {
			return fmt.Errorf("record %d.%d follows %d.%d: want them in ascending order", r.Seq, r.Line, seq, line)
		}
		seq, line = r.Seq, r.Line
		e = entry{Record: r, Leaf: audit.Leaf{Event: r.Event}}
		if r.Event == nil {
			leaf, err := audit.ParseLeaf(r.Raw)
			if err != nil {
				return fmt.Errorf("record %d.%d: %w", r.Seq, r.Line, err)
			}
			e.Leaf = *leaf
		}
		if err := f(&e); err != nil {
			return fmt.Errorf("record %d.%d: %w", r.Seq, r.Line, err)
		}
	}
	return nil
}

// brokenLine ends a file of JSON lines that is not whole: no parser accepts it.
const brokenLine = `{"pdgate_export_incomplete":`
