package gateway

import (
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// request is a body that was understood.
type request struct {
	chat     bool
	model    string
	prompt   []byte    // of a completion; aliases the body
	messages []Message // of a chat

	maxTokens           int // 0: not named
	maxCompletionTokens int
	n                   int
	stop                []string
	temperature         float64
	hasTemperature      bool
	seed                int64
	hasSeed             bool
	stream, usage       bool
	hasStreamOptions    bool
	user                string // the client's name for its user
	safetyIdentifier    string // the same, by its later name

	relay     bool // prompt is the client's body, without what is the gateway's
	minTokens int
	salt      string // the client's own, of a prefix cache
}

// parseRequest reads a body, which it consumes. An error is a *bodyError.
func parseRequest(body []byte, chat bool, choices int) (*request, error) {
	c, err := newCursor(body)
	if err != nil {
		return nil, err
	}
	r := &request{chat: chat, n: 1}
	here := inCompletion
	if chat {
		here = inChat
	}
	err = c.object(func(name string) error {
		f, known := fields[name]
		switch {
		case !known || f.in&here == 0:
			// Read it first: an internal field or broken JSON inside is the graver fault.
			if err := c.skip(); err != nil {
				return err
			}
			return bad("is not known here")
		case c.null():
			return nil
		}
		return f.read(c, r)
	})
	if err == nil {
		err = c.end()
	}
	if err == nil {
		err = r.check(choices)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// check is what no field can say alone.
func (r *request) check(choices int) error {
	switch {
	case r.model == "":
		return within("model", bad("is required"))
	case !r.chat && len(r.prompt) == 0 && !r.relay:
		return within("prompt", bad("is required, and must not be empty"))
	case r.chat && len(r.messages) == 0 && !r.relay:
		return within("messages", bad("is required, and must not be empty"))
	case r.n < 1 || r.n > choices:
		return within("n", bad("want an integer from 1 to "+strconv.Itoa(choices)))
	case r.hasStreamOptions && !r.stream:
		return within("stream_options", bad("is only allowed with stream"))
	case r.maxTokens != 0 && r.maxCompletionTokens != 0 && r.maxTokens != r.maxCompletionTokens:
		return within("max_completion_tokens", bad("differs from max_tokens"))
	case r.maxTokens == 0:
		r.maxTokens = r.maxCompletionTokens
	}
	if r.safetyIdentifier != "" {
		r.user = r.safetyIdentifier
	}
	return nil
}

func readModel(c *cursor, r *request) error {
	s, err := c.text()
	if err != nil {
		return err
	}
	if r.model = string(s); !events.ValidModel(r.model) {
		return bad("is not a valid name")
	}
	return nil
}

// readPrompt takes a string, or an array of one: batches and token ids are
// refused.
func readPrompt(c *cursor, r *request) (err error) {
	if c.kind() != '[' {
		r.prompt, err = c.text()
		return err
	}
	return c.array(func(i int) error {
		if i > 0 || c.kind() != '"' {
			return bad("only one prompt, as a string, is supported")
		}
		r.prompt, err = c.text()
		return err
	})
}

func readMessages(c *cursor, r *request) error {
	return c.array(func(i int) error {
		if i == maxMessages {
			return bad("is one more than the limit of " + strconv.Itoa(maxMessages) + " messages")
		}
		var m Message
		content := false
		err := c.object(func(name string) error {
			if name != "role" && c.null() {
				return nil
			}
			switch name {
			case "role":
				s, err := c.text()
				if err != nil {
					return err
				}
				switch m.Role = string(s); m.Role {
				case "system", "developer", "user", "assistant":
					return nil
				}
				return bad("want system, developer, user or assistant")
			case "content":
				content = true
				return readContent(c, &m.Content)
			case "name":
				return takeString(c, r)
			case "tool_calls", "annotations", "refusal": // what an answer that is sent back may hold
				return onlyEmpty(c, r)
			}
			if err := c.skip(); err != nil {
				return err
			}
			return bad(unsupported)
		})
		switch {
		case err != nil:
			return err
		case m.Role == "":
			return within("role", bad("is required"))
		case !content:
			return within("content", bad("is required"))
		}
		r.messages = append(r.messages, m)
		return nil
	})
}

// readContent takes a string, or an array of text parts.
func readContent(c *cursor, content *string) error {
	if c.kind() != '[' {
		s, err := c.text()
		*content = string(s)
		return err
	}
	var all []byte // a string that grows part by part would be copied once for each
	err := c.array(func(int) error {
		var kind, text []byte
		err := c.object(func(name string) (err error) {
			switch name {
			case "type":
				kind, err = c.text()
				if err == nil && string(kind) != "text" {
					err = bad("only the type text is supported")
				}
			case "text":
				text, err = c.text()
			default:
				if err = c.skip(); err == nil {
					err = bad(unsupported)
				}
			}
			return err
		})
		if err == nil && (kind == nil || text == nil) {
			err = bad("want a type and a text")
		}
		all = append(all, text...)
		return err
	})
	*content = string(all)
	return err
}

// readPersonal takes a client's word about a person.
func readPersonal(c *cursor, v *string) error {
	s, err := c.text()
	if err == nil && len(s) > events.MaxField {
		err = bad("want at most " + strconv.Itoa(events.MaxField) + " bytes")
	}
	*v = string(s)
	return err
}

func readTokens(c *cursor, v *int) error {
	n, err := c.integer(1, maxTokensField)
	*v = int(n)
	return err
}

func readChoices(c *cursor, r *request) error {
	n, err := c.integer(0, 1<<20)
	r.n = int(n)
	return err
}

func readStop(c *cursor, r *request) error {
	one := func() error {
		s, err := c.text()
		switch {
		case err != nil:
			return err
		case len(s) == 0 || len(s) > maxStopBytes:
			return bad("want 1 to " + strconv.Itoa(maxStopBytes) + " bytes")
		}
		r.stop = append(r.stop, string(s))
		return nil
	}
	if c.kind() != '[' {
		return one()
	}
	return c.array(func(i int) error {
		if i == maxStops {
			return bad("is one more than the limit of " + strconv.Itoa(maxStops) + " sequences")
		}
		return one()
	})
}

func readTemperature(c *cursor, r *request) (err error) {
	r.temperature, err = c.float(0, maxTemperature)
	r.hasTemperature = true
	return err
}

func readSeed(c *cursor, r *request) (err error) {
	r.seed, err = c.integer(-1<<63, 1<<63-1)
	r.hasSeed = true
	return err
}

func readStreamOptions(c *cursor, r *request) error {
	r.hasStreamOptions = true
	return c.object(func(name string) (err error) {
		if c.null() {
			return nil
		}
		switch name {
		case "include_usage":
			r.usage, err = c.bool()
			return err
		case "include_obfuscation":
			return takeBool(c, r)
		}
		return bad("is not known here")
	})
}
