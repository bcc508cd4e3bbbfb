package enginefake

import (
	"errors"
	"fmt"
	"strings"
)

// What the clients of scenarios find. Each is nil where it is so.

// Completion asks for n tokens after who's sentinel of prompt tokens.
func Completion(who string, prompt, n int) Call {
	return Call{Body: map[string]any{"model": "fake", "prompt": string(Sentinel(who, prompt)), "max_tokens": n}}
}

// Right is what the model says to [Completion].
func Right(who string, prompt, n int) string {
	return string(Continue(Sentinel(who, prompt), n))
}

// Is says that the client got 200 and this text: it thinks that all is well.
func (r *Reply) Is(text string) error {
	if r.Err != nil || r.Status != 200 || r.Message != "" || r.FinishFirst() != FinishLength && r.FinishFirst() != FinishStop || r.First() != text {
		return fmt.Errorf("status %d, finish %q, message %q, text %q, error %v; want 200 and %q", r.Status, r.FinishFirst(), r.Message, r.First(), r.Err, text)
	}
	return nil
}

// Foreign says that the client got 200 and the words of who.
func (r *Reply) Foreign(who string) error {
	if err := r.Is(r.First()); err != nil {
		return err
	}
	if !strings.Contains(strings.Join(r.Text, "\n"), who) {
		return fmt.Errorf("the answer %q does not name %s", r.Text, who)
	}
	return nil
}

// Wrong says that the client got 200 and not the right text.
func (r *Reply) Wrong(right string) error {
	if err := r.Is(r.First()); err != nil {
		return err
	}
	if r.First() == right || r.First() == "" {
		return errors.New("the answer is right, or empty")
	}
	return nil
}

// Equal compares a count.
func Equal(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s: %d, want %d", what, got, want)
	}
	return nil
}
