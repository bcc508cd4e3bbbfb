package enginetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// Nodes are the two legs of one external engine under test.
type Nodes struct {
	Prefill, Decode engine.Engine
	Now             func() time.Time
}

// External is an external engine under test. Its server answers with what the
// prompt leads to, one token a byte.
type External struct {
	// New starts nodes with a context of 512 tokens, and ends them with the test.
	New func(t *testing.T) Nodes
	// Prompt is a body for a prompt of so many tokens that names who.
	Prompt func(who string, tokens int) []byte
	// Right is what the model says to it.
	Right func(who string, tokens, most int) string
}

// RunExternal runs every check of an engine that keeps its KV.
func RunExternal(t *testing.T, x External) {
	for _, c := range []struct {
		name string
		run  func(context.Context, External, Nodes) error
	}{
		{"info", externalInfo}, {"answers in one piece and in pieces", externalAnswers}, {"count equals prefill", externalCount},
		{"max tokens", externalMax}, {"cancel", externalCancel}, {"emit error", externalEmitError}, {"refuses oversize", externalOversize},
		{"a reference is used once", externalOnce}, {"a lease that is over", externalLease}, {"other prompt tokens", externalTokens}, {"concurrent", externalConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(t.Context(), x, x.New(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

var requests struct {
	sync.Mutex
	n int
}

// requestID is one that no other check used.
func requestID() string {
	requests.Lock()
	defer requests.Unlock()
	requests.n++
	return fmt.Sprintf("01890000-0000-7000-8000-%012d", requests.n)
}

// both is one request over both legs.
type both struct {
	id     string
	job    engine.PrefillJob
	pre    engine.Prefilled
	pieces []*events.Piece
	tokens int
}

func (n Nodes) prefill(ctx context.Context, x External, who string, tokens, most int, stream bool) (*both, error) {
	b := &both{id: requestID()}
	b.job = engine.PrefillJob{
		RequestID: b.id, Prompt: x.Prompt(who, tokens), PromptTokens: tokens,
		Sampling: engine.Sampling{MaxTokens: most, Route: engine.RouteCompletions, Stream: stream},
	}
	var err error
	b.pre, err = n.Prefill.Prefill(ctx, b.job)
	return b, err
}

func (b *both) decodeJob() engine.DecodeJob {
	return engine.DecodeJob{
		RequestID: b.id, PromptTokens: b.pre.PromptTokens, Sampling: b.job.Sampling, Reference: b.pre.Reference,
		Prompt: b.job.Prompt, Owner: "p1", Lease: b.pre.Lease,
	}
}

// emit takes whole lines.
func (b *both) emit(text []byte, tokens int) error {
	b.tokens += tokens
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			return errors.New("half a piece")
		}
		p, err := events.DecodePiece([]byte(line))
		if err != nil {
			return err
		}
		b.pieces = append(b.pieces, p)
	}
	return nil
}

func (b *both) text() string {
	var s strings.Builder
	for _, p := range b.pieces {
		s.WriteString(strings.Trim(string(p.Text), `"`))
	}
	return s.String()
}

func externalInfo(_ context.Context, _ External, n Nodes) error {
	for _, e := range []engine.Engine{n.Prefill, n.Decode} {
		i := e.Info()
		if !i.External || i.TokenBytes != 0 || i.PageBytes() != 0 || !events.External(i.Layout) || i.PageTokens < 1 ||
			i.Name == "" || i.Version == "" || i.Model == "" || i.ContextTokens != 512 || i.MaxInputTokens < 1 || i.MaxInputTokens >= 512 {
			return fmt.Errorf("info: %+v", i)
		}
	}
	if a, b := n.Prefill.Info().Layout, n.Decode.Info().Layout; a != b {
		return fmt.Errorf("layouts %q and %q", a, b)
	}
	return nil
}

func externalAnswers(ctx context.Context, x External, n Nodes) error {
	for _, stream := range []bool{false, true} {
		b, err := n.prefill(ctx, x, "alice", 200, 24, stream)
		if err != nil || b.pre.Refused != nil || b.pre.PromptTokens != 200 || len(b.pre.Reference) == 0 || !b.pre.Lease.After(n.Now()) {
			return fmt.Errorf("prefill: %+v, %v", b.pre, err)
		}
		dec, err := n.Decode.Decode(ctx, b.decodeJob(), b.emit)
		want := engine.Decoded{PromptTokens: 200, CompletionTokens: 24, FinishReason: events.FinishLength}
		if err != nil || dec != want || b.tokens != 24 || b.text() != x.Right("alice", 200, 24) {
			return fmt.Errorf("stream %v: %+v, %d tokens, %q, error %v; want %q", stream, dec, b.tokens, b.text(), err, x.Right("alice", 200, 24))
		}
		if last := b.pieces[len(b.pieces)-1]; last.FinishReason == nil || *last.FinishReason != "length" || stream != (len(b.pieces) > 1) {
			return fmt.Errorf("stream %v: %d pieces, the last %+v", stream, len(b.pieces), last)
		}
	}
	return nil
}

func externalCount(ctx context.Context, x External, n Nodes) error {
	for _, tokens := range []int{1, 15, 16, 17, 300} {
		b, err := n.prefill(ctx, x, "a", tokens, 1, false)
		if err != nil {
			return err
		}
		if c, err := n.Prefill.Count(ctx, b.job.Prompt); err != nil || c != b.pre.PromptTokens || c != tokens {
			return fmt.Errorf("%d tokens: count %d, prefill %d, error %v", tokens, c, b.pre.PromptTokens, err)
		}
	}
	return nil
}

func externalMax(ctx context.Context, x External, n Nodes) error {
	for _, most := range []int{1, 2, 24} {
		b, err := n.prefill(ctx, x, "alice", 200, most, false)
		if err != nil {
			return err
		}
		dec, err := n.Decode.Decode(ctx, b.decodeJob(), b.emit)
		if err != nil || dec.CompletionTokens != most || b.tokens != most || b.text() != x.Right("alice", 200, most) {
			return fmt.Errorf("%d tokens: %+v, %q, %v", most, dec, b.text(), err)
		}
	}
	return nil
}

// externalCancel cancels before, and from within an emit.
func externalCancel(ctx context.Context, x External, n Nodes) error {
	b, err := n.prefill(ctx, x, "alice", 200, 200, true)
	if err != nil {
		return err
	}
	cctx, stop := context.WithCancel(ctx)
	defer stop()
	emits := 0
	dec, err := n.Decode.Decode(cctx, b.decodeJob(), func([]byte, int) error {
		emits++
		stop()
		return cctx.Err()
	})
	if !errors.Is(err, context.Canceled) || emits != 1 || dec.FinishReason.Real() {
		return fmt.Errorf("decode: %d emits, %+v, %v", emits, dec, err)
	}
	if _, err := n.prefill(cctx, x, "alice", 200, 1, false); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("prefill after cancel: %v", err)
	}
	return nil
}

func externalEmitError(ctx context.Context, x External, n Nodes) error {
	b, err := n.prefill(ctx, x, "alice", 200, 24, true)
	if err != nil {
		return err
	}
	broken, emits := errors.New("client gone"), 0
	_, err = n.Decode.Decode(ctx, b.decodeJob(), func([]byte, int) error { emits++; return broken })
	if !errors.Is(err, broken) || emits != 1 {
		return fmt.Errorf("%d emits, %v", emits, err)
	}
	return nil
}

// externalOversize: the engine's own no has its figures, and nothing of the
// prompt.
func externalOversize(ctx context.Context, x External, n Nodes) error {
	b, err := n.prefill(ctx, x, "alice", 600, 1, false)
	if err != nil || b.pre.Refused == nil || b.pre.Refused.HTTPStatus() != 400 || b.pre.PromptTokens != 0 || len(b.pre.Reference) != 0 {
		return fmt.Errorf("600 tokens: %+v, %v", b.pre, err)
	}
	if strings.Contains(b.pre.Refused.Message, "alice") {
		return fmt.Errorf("the refusal repeats the prompt: %q", b.pre.Refused.Message)
	}
	return nil
}

func externalOnce(ctx context.Context, x External, n Nodes) error {
	b, err := n.prefill(ctx, x, "alice", 200, 24, false)
	if err != nil {
		return err
	}
	if _, err := n.Decode.Decode(ctx, b.decodeJob(), b.emit); err != nil {
		return err
	}
	emits := 0
	_, err = n.Decode.Decode(ctx, b.decodeJob(), func([]byte, int) error { emits++; return nil })
	if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodeGrantUsed || emits != 0 {
		return fmt.Errorf("again: %d emits, %v", emits, err)
	}
	return nil
}

func externalLease(ctx context.Context, x External, n Nodes) error {
	b, err := n.prefill(ctx, x, "alice", 200, 24, false)
	if err != nil {
		return err
	}
	job := b.decodeJob()
	job.Lease = n.Now()
	emits := 0
	_, err = n.Decode.Decode(ctx, job, func([]byte, int) error { emits++; return nil })
	if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodeLeaseOver || emits != 0 {
		return fmt.Errorf("%d emits, %v", emits, err)
	}
	return nil
}

// externalTokens: decode counts another prompt than the one that was admitted,
// and nothing is shown.
func externalTokens(ctx context.Context, x External, n Nodes) error {
	for _, stream := range []bool{false, true} {
		b, err := n.prefill(ctx, x, "alice", 200, 24, stream)
		if err != nil {
			return err
		}
		job := b.decodeJob()
		job.PromptTokens = 199
		emits := 0
		_, err = n.Decode.Decode(ctx, job, func([]byte, int) error { emits++; return nil })
		if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodeDecodeFailed || emits != 0 {
			return fmt.Errorf("stream %v: %d emits, %v", stream, emits, err)
		}
	}
	return nil
}

func externalConcurrent(ctx context.Context, x External, n Nodes) error {
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			who := fmt.Sprintf("user%d", i)
			b, err := n.prefill(ctx, x, who, 60, 12, i%2 == 0)
			if err == nil {
				_, err = n.Decode.Decode(ctx, b.decodeJob(), b.emit)
			}
			if err != nil || b.text() != x.Right(who, 60, 12) {
				errs[i] = fmt.Errorf("%s: %q, %v", who, b.text(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
