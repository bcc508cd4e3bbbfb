package export

import "bufio"

// cloudEvents writes the leaves as they are, a line each: CloudEvents 1.0 in
// structured mode. Markers stand among them, told by their first key.
type cloudEvents struct{ w *bufio.Writer }

func (c *cloudEvents) add(e *entry) error {
	_, err := c.w.Write(e.Raw)
	if err == nil {
		err = c.w.WriteByte('\n')
	}
	return err
}

func (c *cloudEvents) close() error { return nil }

func (c *cloudEvents) abort() { _, _ = c.w.WriteString(brokenLine) } // the first error is the one to tell
