package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/pdgate/pdgate/statemachine/replay"
)

// File is an input that was opened: its format is known, and nothing is read yet.
type File struct {
	Input *replay.Input
	r     *bufio.Reader
	raw   *counting
	plain *counting
}

// peekSize is how much of a file tells its format.
const peekSize = 64 << 10

// maxWindow bounds what a zstd frame may make the decoder hold.
const maxWindow = 256 << 20

// Open tells what an input is. A zip file is [replay.FormatBundle], which needs
// more than a reader: its content is not looked at.
func Open(name string, r io.Reader) (*File, error) {
	raw := &counting{r: r, h: sha256.New()}
	f := &File{Input: &replay.Input{Name: name}, raw: raw}
	b := bufio.NewReaderSize(raw, peekSize)
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	plain := io.Reader(b)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		f.Input.Compression = "gzip"
		if plain, err = gzip.NewReader(b); err != nil {
			return nil, fmt.Errorf("%s: gzip: %w", name, err)
		}
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		f.Input.Compression = "zstd"
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, fmt.Errorf("%s: zstd: %w", name, err)
		}
		plain = z
	}
	f.plain = &counting{r: plain}
	f.r = bufio.NewReaderSize(f.plain, peekSize)
	text, err := f.r.Peek(peekSize)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: %w: the file is empty", name, replay.ErrUnreadable)
	}
	if f.Input.Format = detect(text); f.Input.Format == "" {
		return nil, fmt.Errorf("%s: %w: want a pdgate trace, event lines, an audit bundle, OTLP, Tempo, Jaeger or Perfetto JSON, or a log of SGLang or vLLM", name, replay.ErrUnreadable)
	}
	if f.Input.Format == replay.FormatTrace {
		raw.h = nil // a trace has a digest of its own: its bytes are not hashed twice
	}
	return f, nil
}

// detect tells a format by its beginning.
func detect(b []byte) replay.Format {
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n")
	has := func(s string) bool { return bytes.Contains(b, []byte(s)) }
	switch {
	case bytes.HasPrefix(b, []byte("PK\x03\x04")):
		return replay.FormatBundle
	case bytes.HasPrefix(b, []byte("pdgate-trace ")):
		return replay.FormatTrace
	case bytes.IndexByte(b, 0) >= 0:
		return ""
	case bytes.HasPrefix(b, []byte(`{"specversion"`)), bytes.HasPrefix(b, []byte(`{"pdgate_`)):
		return replay.FormatEvents
	case bytes.HasPrefix(b, []byte("{")) && has(`"resourceSpans"`):
		return replay.FormatOTLP
	case bytes.HasPrefix(b, []byte("{")) && has(`"batches"`):
		return replay.FormatTempo
	case bytes.HasPrefix(b, []byte("{")) && has(`"traceEvents"`):
		return replay.FormatPerfetto
	case bytes.HasPrefix(b, []byte("{")) && has(`"request_parameters"`):
		return replay.FormatSGLangMetrics
	case bytes.HasPrefix(b, []byte("{")) && has(`"data"`) && (has(`"traceID"`) || has(`"spans"`)):
		return replay.FormatJaeger
	case has("KV blocks for "):
		return replay.FormatVLLM
	case has("ReqTimeStats("):
		return replay.FormatSGLangTimes
	case has(`"event": "request.`), has(`"event":"request.`):
		return replay.FormatSGLangRequests
	case bytes.HasPrefix(b, []byte(`{"`)) && has(`"specversion"`):
		return replay.FormatEvents // not in canonical form: each line says so
	case logLike(b):
		return replay.FormatVLLM // a server's log: its lines are told one by one
	}
	return ""
}

// logLike says whether a text looks like a server's log, which may begin with
// pages of what is of no interest.
func logLike(b []byte) bool {
	line, _, ok := bytes.Cut(b, []byte{'\n'})
	for _, c := range line {
		if c < ' ' && c != '\t' && c != '\r' && c != 0x1b || c == 0x7f {
			return false
		}
	}
	for _, w := range []string{"INFO", "WARNING", "ERROR", "DEBUG"} {
		if bytes.Contains(b, []byte(w)) {
			return ok
		}
	}
	return false
}

// Close sums up what was read.
func (f *File) Close() {
	if f.raw.h != nil {
		_, _ = io.Copy(io.Discard, f.raw) // what the format did not ask for is a part of the file
		f.Input.SHA256 = hex.EncodeToString(f.raw.h.Sum(nil))
	}
	f.Input.Bytes = f.raw.n
}

// Read is how many bytes of the file were read.
func (f *File) Read() int64 { return f.raw.n }

// counting counts and sums what is read through it.
type counting struct {
	r io.Reader
	n int64
	h hash.Hash
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.h != nil {
		c.h.Write(p[:n])
	}
	return n, err
}
