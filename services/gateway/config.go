package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// Lifecycle is what a gateway asks of the lifecycle service.
type Lifecycle interface {
	// Do sends a command until it is answered or ctx ends. A denial is an answer.
	Do(ctx context.Context, c *events.Command) (*events.Answer, error)
	Get(ctx context.Context, requestID string) (*events.RequestView, error)
	History(ctx context.Context, requestID string) (*events.HistoryView, error)
	Info(ctx context.Context) (*events.InfoView, error)
}

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
}

// Tokenizer is what a model's engine says about prompts. It is called
// concurrently.
type Tokenizer interface {
	// Count is the number of tokens in the prompt, as prefill will count them.
	Count(ctx context.Context, prompt []byte) (int, error)
	// Chat renders a conversation, and names the sequences that end a turn.
	Chat(messages []Message) (prompt []byte, stop []string)
}

// Disclosures keeps the plain values of personal fields, sealed under their
// tenant's key. It is called concurrently.
type Disclosures interface {
	Put(ctx context.Context, key events.DigestKey, tenant, requestID string, fields []events.Disclosure) error
}

// Relay counts for a model whose engines read the client's body themselves: the
// gateway then understands what it must, and sends the rest on as it came. It is
// called concurrently.
type Relay interface {
	// Count is the number of tokens in a body's prompt, as the engine's own template
	// and tokenizer make them. An *events.Error is what the client gets.
	Count(ctx context.Context, body []byte) (int, error)
}

// Guards can be taken away, one at a time, so that a test sees what each one
// stops. The zero value has them all.
type Guards struct {
	NoHold   bool // send what arrives, whatever the log says
	NoOrigin bool // take output from any worker
	NoWhole  bool // do not compare what arrived with what was decoded
}

// Config is a gateway's configuration.
type Config struct {
	Name      string     // the principal; a subject token
	Conn      *nats.Conn // logged in as this gateway; the caller closes it
	Client    Lifecycle
	Tenants   *Tenants
	Models    map[string]Tokenizer
	Relays    map[string]Relay // models whose engines read the client's body; in Models or here
	Logger    *slog.Logger     // nil: none
	Now       func() time.Time // nil: time.Now
	Guards    Guards
	Limits    Limits
	Timeouts  Timeouts
	MaxTokens MaxTokens

	// DigestSecret is the cluster's, shared with lifecycle: it keys the digests of
	// prompts and outputs of tenants without a key of their own. At least 32 bytes.
	DigestSecret []byte
	TenantKeys   events.TenantKeys // of the others; nil: no tenant has one
	Disclosures  Disclosures       // nil: no personal field can be disclosed

	// Temperature of requests that name none. Zero: greedy.
	Temperature float64
}

// Limits bound what clients can make a gateway hold.
type Limits struct {
	Body     int64 // bytes of one request body; 0: 32 MiB
	Memory   int64 // bytes of bodies, prompts and waiting output, of all requests; 0: 1 GiB
	Output   int64 // bytes of output that one choice may have waiting; 0: 16 MiB
	Requests int   // open completion requests; 0: 4096
	Choices  int   // greatest n; 0: 8
}

// Timeouts bound how long things may take.
type Timeouts struct {
	Body     time.Duration // reading a request body; 0: 60 s
	Write    time.Duration // one write to a client; 0: 15 s
	Admit    time.Duration // one admission; 0: 5 s
	Disclose time.Duration // storing a request's personal fields, beside the request; 0: 2 s
	Cancel   time.Duration // the command that ends a request nobody waits for; 0: 5 s
	Poll     time.Duration // silence after which a request asks lifecycle; 0: 1 s
	Silence  time.Duration // silence, of lifecycle too, after which it is given up; 0: 15 s
	Output   time.Duration // for the last pieces of output to arrive after decoded; 0: 2 s
	Request  time.Duration // everything; 0: 15 min
	Drain    time.Duration // for open requests to end after a stop; 0: 10 s
}

// MaxTokens are the lengths of answers that name none, cut to what the model's
// context leaves.
type MaxTokens struct {
	Completion int // 0: 16
	Chat       int // 0: 256
}

func (c *Config) complete() error {
	switch {
	case !events.ValidName(c.Name):
		return fmt.Errorf("gateway: name %q is not a valid principal", c.Name)
	case c.Conn == nil:
		return errors.New("gateway: a NATS connection is needed")
	case c.Client == nil:
		return errors.New("gateway: a lifecycle client is needed")
	case c.Tenants == nil:
		return errors.New("gateway: tenants are needed")
	case len(c.DigestSecret) < 32:
		return errors.New("gateway: the digest secret has fewer than 32 bytes")
	case len(c.Models)+len(c.Relays) == 0:
		return errors.New("gateway: no model is configured")
	case c.Temperature < 0 || c.Temperature > maxTemperature:
		return fmt.Errorf("gateway: temperature %v is not within 0 and %d", c.Temperature, maxTemperature)
	}
	for name, t := range c.Models {
		if !events.ValidModel(name) || t == nil {
			return fmt.Errorf("gateway: model %q: want a valid name and a tokenizer", name)
		}
	}
	for name, r := range c.Relays {
		if !events.ValidModel(name) || r == nil || c.Models[name] != nil {
			return fmt.Errorf("gateway: model %q: want a valid name, a relay, and no tokenizer beside it", name)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	for _, l := range []struct {
		name  string
		value *int64
		zero  int64
	}{
		{"limits.body", &c.Limits.Body, 32 << 20},
		{"limits.memory", &c.Limits.Memory, 1 << 30},
		{"limits.output", &c.Limits.Output, 16 << 20},
	} {
		if err := fill(l.name, l.value, l.zero); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		name  string
		value *int
		zero  int
	}{
		{"limits.requests", &c.Limits.Requests, 4096},
		{"limits.choices", &c.Limits.Choices, 8},
		{"max_tokens.completion", &c.MaxTokens.Completion, 16},
		{"max_tokens.chat", &c.MaxTokens.Chat, 256},
	} {
		if err := fill(l.name, l.value, l.zero); err != nil {
			return err
		}
	}
	t := &c.Timeouts
	for _, l := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"timeouts.body", &t.Body, time.Minute},
		{"timeouts.write", &t.Write, 15 * time.Second},
		{"timeouts.admit", &t.Admit, 5 * time.Second},
		{"timeouts.disclose", &t.Disclose, 2 * time.Second},
		{"timeouts.cancel", &t.Cancel, 5 * time.Second},
		{"timeouts.poll", &t.Poll, time.Second},
		{"timeouts.silence", &t.Silence, 15 * time.Second},
		{"timeouts.output", &t.Output, 2 * time.Second},
		{"timeouts.request", &t.Request, 15 * time.Minute},
		{"timeouts.drain", &t.Drain, 10 * time.Second},
	} {
		if err := fill(l.name, l.value, l.zero); err != nil {
			return err
		}
	}
	if c.Limits.Body > c.Limits.Memory {
		return fmt.Errorf("gateway: limits.body %d is above limits.memory %d", c.Limits.Body, c.Limits.Memory)
	}
	return nil
}

func fill[T int | int64 | time.Duration](name string, v *T, zero T) error {
	switch {
	case *v == 0:
		*v = zero
	case *v < 0:
		return fmt.Errorf("gateway: %s is negative", name)
	}
	return nil
}
