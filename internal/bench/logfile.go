package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pdgate/pdgate/events"
)

// A log file holds envelopes one after the other: a line of JSON that says what
// the stream says of it, and then its event lines, byte for byte as stored.

// envelopeHead is an envelope's first line.
type envelopeHead struct {
	Seq       uint64 `json:"seq"`
	Partition int    `json:"partition"` // -1: operations
	Expected  uint64 `json:"expected"`
	ID        string `json:"id"`
	MAC       string `json:"mac"`
	Bytes     int    `json:"bytes"` // of the lines
}

// maxLines bounds what a head may claim.
const maxLines = 64 << 20

func writeEnvelope(w io.Writer, env *events.Envelope) error {
	head, err := json.Marshal(envelopeHead{env.Seq, env.Partition, env.Expected, env.ID, env.MAC, len(env.Lines)})
	if err == nil {
		_, err = w.Write(append(head, '\n'))
	}
	if err == nil {
		_, err = w.Write(env.Lines)
	}
	if err != nil {
		return fmt.Errorf("write log file: %w", err)
	}
	return nil
}

// readEnvelopes hands over every envelope of a log file. Its lines are valid
// until the next one.
func readEnvelopes(r *bufio.Reader, f func(*events.Envelope) error) error {
	var lines []byte
	for {
		b, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(b) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log file: %w", err)
		}
		var head envelopeHead
		if err := json.Unmarshal(b, &head); err != nil {
			return fmt.Errorf("read log file: %w", err)
		}
		if head.Bytes < 1 || head.Bytes > maxLines {
			return fmt.Errorf("read log file: envelope %d of %d bytes", head.Seq, head.Bytes)
		}
		if cap(lines) < head.Bytes {
			lines = make([]byte, head.Bytes)
		}
		lines = lines[:head.Bytes]
		if _, err := io.ReadFull(r, lines); err != nil {
			return fmt.Errorf("read log file: envelope %d: %w", head.Seq, err)
		}
		env := &events.Envelope{Partition: head.Partition, Seq: head.Seq, Expected: head.Expected, ID: head.ID, MAC: head.MAC, Lines: lines}
		if err := f(env); err != nil {
			return err
		}
	}
}
