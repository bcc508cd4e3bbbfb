package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/pdgate/pdgate/events"
)

// FileDisclosures opens salted digests of the lines, one a line, in the order of
// the lines and of their fields:
//
//	{"event":"01a2….1","field":"user","salt":"base64","value":"…"}
//
// A bundle may open all of them, some or none.
const FileDisclosures = "disclosures.jsonl"

// maxDisclosure is far above what a value of events.MaxField bytes takes.
const maxDisclosure = 16 << 10

// disclosures writes the file, where there is anything to disclose.
func (b *bundleWriter) disclosures() error {
	if b.x.Disclosures == nil {
		return nil
	}
	return b.file(FileDisclosures, func(w io.Writer) error {
		for d, err := range b.x.Disclosures {
			if err != nil {
				return err
			}
			if _, err := w.Write(canonical(d)); err != nil {
				return err
			}
		}
		return nil
	})
}

// discloses says whether the bundle has disclosures.
func (m *Manifest) discloses() bool {
	for _, f := range m.Files {
		if f.Name == FileDisclosures {
			return true
		}
	}
	return false
}

// disclosureCheck holds disclosures against the lines as they come by.
type disclosureCheck struct {
	b    *bundle
	file *fileStream // nil: there are none
	r    *bufio.Reader
	next *events.Disclosure // nil: no more
	line int64
	err  error // of reading; nothing is read after it
	open int64 // digests that were opened, each by what it was made of
	shut int64 // those that were not
}

func (b *bundle) openDisclosures() *disclosureCheck {
	c := &disclosureCheck{b: b}
	if !b.m.discloses() {
		return c
	}
	if c.file, c.err = b.stream(FileDisclosures); c.err != nil {
		return c
	}
	c.r = bufio.NewReaderSize(c.file, maxDisclosure)
	c.advance()
	return c
}

// advance reads the next disclosure.
func (c *disclosureCheck) advance() {
	c.next = nil
	line, err := c.r.ReadSlice('\n')
	c.line++
	switch {
	case err == io.EOF && len(line) == 0:
	case err == io.EOF:
		c.err = errors.New("the last line is cut off")
	case errors.Is(err, bufio.ErrBufferFull):
		c.err = fmt.Errorf("line %d: want %d bytes at most", c.line, maxDisclosure)
	case err != nil:
		c.err = err
	default:
		d := &events.Disclosure{}
		if err := parseCanonical(line, d); err != nil {
			c.err = fmt.Errorf("line %d: %w", c.line, err)
			return
		}
		c.next = d
	}
}

// event holds an event's salted digests against what discloses them.
func (c *disclosureCheck) event(e *events.Event) {
	for _, f := range events.SaltedFields(e.Data) {
		if c.next == nil || c.next.Event != e.ID || c.next.Field != f.Field {
			c.shut++
			continue
		}
		if c.next.Digest() == f.Digest {
			c.open++
		} else {
			c.b.Add(Broken, c.where(), "is not what %s of event %s is the digest of", f.Field, e.ID)
		}
		c.advance()
	}
}

func (c *disclosureCheck) where() string { return fmt.Sprintf("%s:%d", FileDisclosures, c.line) }

// finish is called behind the last line.
func (c *disclosureCheck) finish() {
	if c.next != nil && c.err == nil {
		c.b.Add(Broken, c.where(), "is of no salted digest of the lines, or not in their order")
	}
	if c.file != nil {
		if c.err == nil {
			_, c.err = io.Copy(io.Discard, c.r) // for its digest
		}
		c.b.finish(FileDisclosures, c.file, c.err)
	}
	if c.file != nil || c.open+c.shut > 0 {
		c.b.fact("disclosed", "%d of %d salted digests; %d are not", c.open, c.open+c.shut, c.shut)
	}
}
