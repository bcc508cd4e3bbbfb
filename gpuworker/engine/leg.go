package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// Routes that a client's body may be for.
const (
	RouteCompletions = "/v1/completions"
	RouteChat        = "/v1/chat/completions"
)

// owned are the members of a body that are set here and never a client's. The
// gateway has removed or refused them; what a body still holds of them goes.
var owned = []string{
	"model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "min_tokens", "min_completion_tokens",
	"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "request_id",
}

// clientBody is the part of a body that is the client's.
func clientBody(prompt []byte) (remote.Object, error) {
	o, err := remote.ParseObject(prompt)
	if err != nil {
		return nil, events.NewError(events.CodeInvalidRequest, "the body is not a JSON object")
	}
	return o.Without(owned...), nil
}

// decodeBody is the client's body as a decode leg gets it.
func decodeBody(o remote.Object, model string, s *Sampling) remote.Object {
	o = slices.Clone(o).Set("model", remote.Text(model)).Set("max_tokens", remote.Int(int64(s.MaxTokens)))
	if s.MinTokens > 0 {
		o = o.Set("min_tokens", remote.Int(int64(s.MinTokens)))
	}
	if s.Seeded {
		o = o.Without("seed").Set("seed", remote.Int(s.Seed))
	}
	if !s.Stream {
		return o.Set("stream", []byte("false"))
	}
	// Usage with each event where the engine has it: the count of the prompt is then
	// known before anything is shown.
	return o.Set("stream", []byte("true")).Set("stream_options", []byte(`{"include_usage":true,"continuous_usage_stats":true}`))
}

// prefillBody is the client's body as a prefill leg gets it: one token, in one
// piece.
func prefillBody(o remote.Object, model string, s *Sampling) remote.Object {
	o = slices.Clone(o).Set("model", remote.Text(model)).Set("max_tokens", []byte("1")).Set("stream", []byte("false"))
	if s.Seeded {
		o = o.Without("seed").Set("seed", remote.Int(s.Seed))
	}
	return o
}

func validRoute(r string) error {
	if r != RouteCompletions && r != RouteChat {
		return events.NewError(events.CodeInvalidRequest, "the route is none that the engine serves")
	}
	return nil
}

// maxHeld bounds the output that waits for its proof, bytes.
const maxHeld = 16 << 20

// output follows a decode leg's answer.
type output struct {
	job      DecodeJob
	emit     Emit
	noCount  bool                        // do not compare prompt_tokens
	wait     bool                        // nothing is shown before prompt_tokens is known
	prove    func(context.Context) error // called once, before anything is shown; nil: nothing
	limit    int                         // of prompt and completion at the node
	complete func(p *events.Piece) bool  // fills in an output that is empty; nil: nothing
	done     Decoded
	counted  bool // the engine has said what it counted
	proven   bool
	shown    int // tokens
	held     []byte
	contents bool // some piece showed something
	filled   bool // by complete
}

var errCount = errors.New("decode counts another number of prompt tokens")

// read follows the answer to its end.
func (o *output) read(ctx context.Context, resp *http.Response) (Decoded, error) {
	if o.job.Sampling.Stream {
		return o.done, o.stream(ctx, remote.NewStream(resp.Body))
	}
	b, err := remote.ReadAll(resp.Body)
	if err != nil {
		return o.done, fmt.Errorf("read answer: %w", err)
	}
	if err := o.take(ctx, b, true); err != nil {
		return o.done, err
	}
	return o.done, o.end(ctx)
}

func (o *output) stream(ctx context.Context, s *remote.Stream) error {
	for {
		data, err := s.Next()
		if errors.Is(err, io.EOF) {
			return o.end(ctx)
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if err := o.take(ctx, data, false); err != nil {
			return err
		}
	}
}

// take reads one event, or a whole answer.
func (o *output) take(ctx context.Context, data []byte, whole bool) error {
	a, err := parseAnswer(data, o.job.Prompt, events.CodeDecodeFailed)
	if err != nil {
		return err
	}
	if a.Usage != nil {
		if err := o.count(a.Usage); err != nil {
			return err
		}
	}
	if len(a.Choices) == 0 {
		return nil
	}
	p := &a.Choices[0].Piece
	if o.done.FinishReason != "" && !empty(p) {
		return fmt.Errorf("%w: it goes on after its end", errAnswer)
	}
	if p.FinishReason != nil {
		end, ok := finished(*p.FinishReason)
		if !ok {
			return remote.Inband(0, "", nil, events.CodeDecodeFailed)
		}
		o.done.FinishReason = end
		if o.complete != nil && !o.contents && !shows(p) && (o.job.Sampling.MaxTokens == 1 || end == events.FinishStop) {
			o.filled = o.complete(p)
		}
	}
	if whole && p.FinishReason == nil {
		return fmt.Errorf("%w: it has no finish reason", errAnswer)
	}
	if empty(p) {
		return nil
	}
	o.contents = o.contents || shows(p)
	if o.held, err = events.AppendPiece(o.held, p); err != nil {
		return err
	}
	if len(o.held) > maxHeld {
		return fmt.Errorf("output before the engine's count: %w", remote.ErrTooLong)
	}
	return o.show(ctx)
}

// count compares what the engine counted with what was admitted.
func (o *output) count(u *usage) error {
	if u.PromptTokens != o.job.PromptTokens && !o.noCount {
		return fmt.Errorf("%w: %w", errCount, events.NewError(events.CodeDecodeFailed,
			"decode counts "+strconv.Itoa(u.PromptTokens)+" prompt tokens, "+strconv.Itoa(o.job.PromptTokens)+" were admitted"))
	}
	o.counted = true
	o.done.PromptTokens, o.done.CompletionTokens = u.PromptTokens, u.CompletionTokens
	return nil
}

// show emits what may be shown.
func (o *output) show(ctx context.Context) error {
	if len(o.held) == 0 || o.wait && !o.counted {
		return nil
	}
	if !o.proven {
		o.proven = true
		if o.prove != nil {
			if err := o.prove(ctx); err != nil {
				return err
			}
		}
	}
	tokens := max(0, o.done.CompletionTokens-o.shown)
	o.shown += tokens
	err := o.emit(o.held, tokens)
	clear(o.held)
	o.held = o.held[:0]
	return err
}

// edge is how close to a node's limit an output may end for length before its
// max_tokens: engines keep a few tokens back.
const edge = 16

// end judges a stream that says it is complete.
func (o *output) end(ctx context.Context) error {
	switch {
	case o.done.FinishReason == "":
		return fmt.Errorf("%w: it ends without a finish reason", errAnswer)
	case !o.counted:
		return fmt.Errorf("%w: it ends without usage", errAnswer)
	}
	if o.filled {
		o.done.CompletionTokens = max(1, o.done.CompletionTokens)
	}
	if n := o.done.CompletionTokens; o.done.FinishReason == events.FinishLength && n < o.job.Sampling.MaxTokens && o.done.PromptTokens+n+edge < o.limit {
		// An engine's abort has gone by this name.
		return fmt.Errorf("decode: %w", events.NewError(events.CodeDecodeFailed,
			"the engine ended for length after "+strconv.Itoa(n)+" of "+strconv.Itoa(o.job.Sampling.MaxTokens)+" tokens"))
	}
	if err := o.show(ctx); err != nil {
		return err
	}
	if rest := o.done.CompletionTokens - o.shown; rest > 0 {
		o.shown += rest
		return o.emit(nil, rest)
	}
	return nil
}

// server is what the external engines have in common: one node, and its life.
type server struct {
	cfg  Remote
	node *remote.Node
	life *life
}

// unreachable is an error of the transport.
func (s *server) unreachable(ctx context.Context, leg string, err error, code events.Code) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", leg, ctx.Err())
	}
	s.life.suspect()
	s.cfg.Logger.Warn("engine does not answer", "url", s.node.URL(), "leg", leg, "error", err)
	return fmt.Errorf("%s: %w", leg, events.NewError(code, "the "+leg+" engine did not answer, or not to the end"))
}

// broken is the end of a decode answer that is not a good one.
func (s *server) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("decode: %w", ctx.Err())
	}
	if _, ours := errors.AsType[*events.Error](err); !ours {
		s.life.suspect()
	}
	if errors.Is(err, remote.ErrCut) || errors.Is(err, errAnswer) {
		return fmt.Errorf("decode: %w: %w", events.NewError(events.CodeDecodeFailed, "the engine's answer ended early, or is not one"), err)
	}
	return fmt.Errorf("decode: %w", err)
}

// refused reads an answer whose status is not 200.
func refused(resp *http.Response, prompt []byte, fallback events.Code) *events.Error {
	return remote.Failure(resp.StatusCode, remote.ReadFailed(resp.Body), prompt, fallback)
}

// refusal says whether an error of a prefill leg is the engine's no to the
// request, before any KV existed, and not its failure.
func refusal(e *events.Error) bool {
	return e.Code == events.CodeContextLength || e.Code == events.CodeEngineRefused || e.Code == events.CodeOverloaded
}
