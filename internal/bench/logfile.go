package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// A log file holds envelopes one after the other: a line of words that says what
// the stream says of it, and then its event lines, byte for byte as stored.
//
//	envelope SEQ PARTITION EXPECTED BYTES MAC ID

const headWord = "envelope "

// maxLines bounds what a head may claim.
const maxLines = 64 << 20

var errHead = errors.New("want a line of: envelope SEQ PARTITION EXPECTED BYTES MAC ID")

func writeEnvelope(w io.Writer, env *events.Envelope) error {
	if bytes.ContainsAny([]byte(env.ID+env.MAC), " \n") {
		return fmt.Errorf("write log file: envelope %d: %w", env.Seq, errHead)
	}
	_, err := fmt.Fprintf(w, headWord+"%d %d %d %d %s %s\n", env.Seq, env.Partition, env.Expected, len(env.Lines), env.MAC, env.ID)
	if err == nil {
		_, err = w.Write(env.Lines)
	}
	if err != nil {
		return fmt.Errorf("write log file: %w", err)
	}
	return nil
}

// parseHead reads an envelope's first line, and the length of its lines.
func parseHead(line []byte) (env events.Envelope, length int, err error) {
	rest, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte(headWord))
	word := func() string {
		var w []byte
		var more bool
		w, rest, more = bytes.Cut(rest, []byte(" "))
		ok = ok && more
		return string(w)
	}
	var err1, err2, err3, err4 error
	env.Seq, err1 = strconv.ParseUint(word(), 10, 64)
	env.Partition, err2 = strconv.Atoi(word())
	env.Expected, err3 = strconv.ParseUint(word(), 10, 64)
	length, err4 = strconv.Atoi(word())
	env.MAC = word()
	env.ID = string(rest)
	if !ok || errors.Join(err1, err2, err3, err4) != nil || length < 1 || length > maxLines {
		return env, 0, errHead
	}
	return env, length, nil
}

// readEnvelopes hands over every envelope of a log file. It and its lines are
// valid until the next one.
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
		env, length, err := parseHead(b)
		if err != nil {
			return fmt.Errorf("read log file: %w", err)
		}
		if cap(lines) < length {
			lines = make([]byte, length)
		}
		env.Lines = lines[:length]
		if _, err := io.ReadFull(r, env.Lines); err != nil {
			return fmt.Errorf("read log file: envelope %d: %w", env.Seq, err)
		}
		if err := f(&env); err != nil {
			return err
		}
	}
}
