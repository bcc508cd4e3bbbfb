package gpuworker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Errors of output.
var (
	errSend   = errors.New("output could not be sent")
	errClosed = errors.New("output is closed: the request has ended")
)

// output gathers an engine's pieces into chunks. A piece goes at once where none
// went before it for flushAfter, so an engine that writes slower than that is
// never held back; one that writes faster fills chunks, up to flushBytes.
type output struct {
	send   func(events.OutputChunk) error
	digest events.Digester // owned by the caller of emit

	mu     sync.Mutex // guards the fields below
	text   []byte
	tokens int
	index  uint32
	sent   time.Time   // of the last chunk
	timer  *time.Timer // nil: none is set
	err    error       // the first one; nothing is sent after it
}

func newOutput(key []byte, send func(events.OutputChunk) error) *output {
	return &output{send: send, digest: events.NewDigester(key, events.KindOutput)}
}

// emit is the engine's.
func (o *output) emit(text []byte, tokens int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	_, _ = o.digest.Write(text) // a hash does not fail
	o.text = append(o.text, text...)
	o.tokens += tokens
	rest := flushAfter - time.Since(o.sent)
	switch {
	case len(o.text) > 0 && rest <= 0, len(o.text) >= flushBytes:
		o.flushLocked()
	case o.timer == nil:
		o.timer = time.AfterFunc(max(rest, 0), o.expire)
	}
	return o.err
}

func (o *output) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = nil
	if len(o.text) > 0 {
		o.flushLocked()
	}
}

// flush sends what is left. Afterwards all output is on its way.
func (o *output) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
	return o.err
}

// flushLocked sends one chunk. Callers hold mu.
func (o *output) flushLocked() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if o.err != nil || len(o.text) == 0 && o.tokens == 0 {
		return
	}
	// An engine's answer in one piece may be longer than a message.
	for rest, tokens := o.text, o.tokens; ; tokens = 0 {
		part := rest[:min(len(rest), events.MaxPromptChunk)]
		rest = rest[len(part):]
		if err := o.send(events.OutputChunk{Index: o.index, Tokens: uint32(tokens), Text: part}); err != nil {
			o.err = fmt.Errorf("%w: %w", errSend, err)
		}
		o.index++
		if len(rest) == 0 || o.err != nil {
			break
		}
	}
	o.sent = time.Now()
	clear(o.text)
	o.text, o.tokens = o.text[:0], 0
}

// close drops what is left; nothing is sent after it.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	clear(o.text)
	o.text, o.tokens = nil, 0
	if o.err == nil {
		o.err = errClosed
	}
}
