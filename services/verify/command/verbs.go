package command

import (
	"fmt"
	"os"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events/audit"
)

// maxConsistency bounds the file of a consistency proof: 64 hashes in JSON.
const maxConsistency = 8 << 10

func (c *command) bundle() (*audit.Report, error) {
	o, err := c.options(false)
	if err != nil {
		return nil, err
	}
	if c.start != "" {
		if o.Start, err = c.startCheckpoint(o); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(c.args[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r, err := audit.VerifyBundle(f, info.Size(), o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.args[0], err)
	}
	r.Subject = c.args[0]
	return r, nil
}

// startCheckpoint is the checkpoint that whoever verifies has seen before.
func (c *command) startCheckpoint(o audit.Options) (*audit.Checkpoint, error) {
	if o.Policy == nil {
		return nil, fmt.Errorf("%w: --start wants --policy or --vkey", errUsage)
	}
	b, err := read(c.start, audit.MaxCheckpoint)
	if err != nil {
		return nil, err
	}
	s, err := audit.OpenCheckpoint(b, o.Policy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.start, err)
	}
	return &s.Checkpoint, nil
}

func (c *command) oneProof() (*audit.Report, error) {
	return c.withProof(c.args[0], func(text, leaf []byte, o audit.Options) *audit.Report {
		return audit.VerifyProof(text, leaf, o)
	})
}

func (c *command) receipt() (*audit.Report, error) {
	if c.proof == "" {
		return nil, fmt.Errorf("%w: want --proof", errUsage)
	}
	rec, err := audit.ParseReceipt(c.args[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return c.withProof(c.proof, func(text, leaf []byte, o audit.Options) *audit.Report {
		return audit.VerifyReceipt(rec, text, leaf, o)
	})
}

func (c *command) withProof(path string, verify func(text, leaf []byte, o audit.Options) *audit.Report) (*audit.Report, error) {
	o, err := c.options(true)
	if err != nil {
		return nil, err
	}
	leaf, err := c.givenLeaf()
	if err != nil {
		return nil, err
	}
	text, err := read(path, audit.MaxProof)
	if err != nil {
		return nil, err
	}
	r := verify(text, leaf, o)
	r.Subject = path
	return r, nil
}

func (c *command) checkpoint() (*audit.Report, error) {
	o, err := c.options(true)
	if err != nil {
		return nil, err
	}
	b, err := read(c.args[0], audit.MaxCheckpoint)
	if err != nil {
		return nil, err
	}
	r := audit.VerifyCheckpoint(b, o)
	r.Subject = c.args[0]
	return r, nil
}

func (c *command) consistency() (*audit.Report, error) {
	o, err := c.options(true)
	if err != nil {
		return nil, err
	}
	if (c.proof == "") == (c.tiles == "") {
		return nil, fmt.Errorf("%w: want --proof or --tiles", errUsage)
	}
	before, err := read(c.args[0], audit.MaxCheckpoint)
	if err != nil {
		return nil, err
	}
	now, err := read(c.args[1], audit.MaxCheckpoint)
	if err != nil {
		return nil, err
	}
	prove := func(from int64, now tlog.Tree) (*audit.Consistency, error) {
		return audit.ProveConsistency(from, now, audit.Tiles{FS: os.DirFS(c.tiles)}.Hashes(now))
	}
	if c.proof != "" {
		b, err := read(c.proof, maxConsistency)
		if err != nil {
			return nil, err
		}
		prove = func(int64, tlog.Tree) (*audit.Consistency, error) { return audit.ParseConsistency(b) }
	}
	r := audit.VerifyConsistency(before, now, prove, o)
	r.Subject = c.args[1]
	return r, nil
}
