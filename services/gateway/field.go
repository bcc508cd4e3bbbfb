package gateway

import "strings"

// Bounds of fields. OpenAI's own, where it has one.
const (
	maxTemperature = 2
	maxStops       = 4
	maxStopBytes   = 256
	maxTokensField = 1 << 30
	maxMessages    = 4096
	maxMembers     = 4096 // of one object
	maxSalt        = 256  // bytes of a prefix cache's salt
)

// internalFields are what engines and routers pass among themselves. A client
// that could set them would name the peer to read KV from, or the room and the
// request to read. They are refused wherever in a body they stand, in any case
// of letters: what is forwarded by one component is read by another.
var internalFields = map[string]bool{
	"kv_transfer_params": true, "kv_transfer_config": true, "remote_block_ids": true, "remote_engine_id": true,
	"remote_host": true, "remote_port": true, "remote_request_id": true, "do_remote_prefill": true, "do_remote_decode": true,
	"bootstrap_host": true, "bootstrap_port": true, "bootstrap_room": true, "bootstrap_pair_key": true,
	"disagg_prefill_dp_rank": true, "routed_dp_rank": true, "data_parallel_rank": true, "ec_transfer_params": true,
	"disaggregated_params": true, "prefill_result": true, "nvext": true,
}

func internalField(name string) bool {
	return internalFields[name] || internalFields[strings.ToLower(name)]
}

// A reader takes one field's value, which is not null.
type reader func(c *cursor, r *request) error

// endpoints say where a field is known.
type endpoints uint8

const (
	inCompletion endpoints = 1 << iota
	inChat
	inBoth = inCompletion | inChat
)

type field struct {
	in   endpoints
	read reader
}

// fields are all that is known. A field that could change the answer is read or
// refused, never ignored; what is neither here nor internal is refused too.
var fields = map[string]field{
	"model":                 {inBoth, readModel},
	"prompt":                {inCompletion, readPrompt},
	"messages":              {inChat, readMessages},
	"max_tokens":            {inBoth, func(c *cursor, r *request) error { return readTokens(c, &r.maxTokens) }},
	"max_completion_tokens": {inBoth, func(c *cursor, r *request) error { return readTokens(c, &r.maxCompletionTokens) }},
	"n":                     {inBoth, readChoices},
	"stop":                  {inBoth, readStop},
	"temperature":           {inBoth, readTemperature},
	"seed":                  {inBoth, readSeed},
	"stream":                {inBoth, func(c *cursor, r *request) (err error) { r.stream, err = c.bool(); return err }},
	"stream_options":        {inBoth, readStreamOptions},

	// Recorded as a salted digest; the later name wins where both are there.
	"user":              {inBoth, func(c *cursor, r *request) error { return readPersonal(c, &r.user) }},
	"safety_identifier": {inBoth, func(c *cursor, r *request) error { return readPersonal(c, &r.safetyIdentifier) }},

	// Taken and left aside: they label, or bend the sampling of engines that have it.
	"prompt_cache_key":       {inBoth, takeString},
	"prompt_cache_retention": {inBoth, takeString},
	"service_tier":           {inBoth, takeString},
	"top_p":                  {inBoth, takeFloat(0, 1)},
	"presence_penalty":       {inBoth, takeFloat(-2, 2)},
	"frequency_penalty":      {inBoth, takeFloat(-2, 2)},
	"logit_bias":             {inBoth, takeObject},
	"metadata":               {inBoth, takeObject},
	"store":                  {inBoth, takeBool},
	"reasoning_effort":       {inChat, takeString},
	"verbosity":              {inChat, takeString},
	"parallel_tool_calls":    {inChat, takeBool},

	// Known, and refused unless they ask for nothing.
	"best_of":            {inCompletion, onlyOne},
	"echo":               {inCompletion, onlyFalse},
	"suffix":             {inCompletion, onlyEmpty},
	"logprobs":           {inBoth, onlyFalse},
	"top_logprobs":       {inChat, onlyZero},
	"tools":              {inChat, onlyEmpty},
	"functions":          {inChat, onlyEmpty},
	"tool_choice":        {inChat, onlyWord("none")},
	"function_call":      {inChat, onlyWord("none")},
	"response_format":    {inChat, onlyText},
	"modalities":         {inChat, onlyTextModality},
	"audio":              {inChat, refuse},
	"prediction":         {inChat, refuse},
	"web_search_options": {inChat, refuse},
}

const unsupported = "is not supported"

func refuse(*cursor, *request) error { return bad(unsupported) }

func takeString(c *cursor, _ *request) error { _, err := c.text(); return err }
func takeBool(c *cursor, _ *request) error   { _, err := c.bool(); return err }
func takeObject(c *cursor, _ *request) error {
	if c.kind() != '{' {
		return bad("want an object")
	}
	return c.skip()
}

func takeFloat(from, to float64) reader {
	return func(c *cursor, _ *request) error { _, err := c.float(from, to); return err }
}

func onlyOne(c *cursor, _ *request) error {
	if n, err := c.integer(1, 1<<30); err != nil || n == 1 {
		return err
	}
	return bad(unsupported + " above 1")
}

func onlyZero(c *cursor, _ *request) error {
	if n, err := c.integer(0, 1<<30); err != nil || n == 0 {
		return err
	}
	return bad(unsupported)
}

func onlyFalse(c *cursor, _ *request) error {
	if c.word("false") {
		return nil
	}
	if err := c.skip(); err != nil {
		return err
	}
	return bad(unsupported)
}

// onlyEmpty takes "" and [].
func onlyEmpty(c *cursor, _ *request) error {
	if c.kind() == '"' {
		if s, err := c.text(); err != nil || len(s) == 0 {
			return err
		}
		return bad(unsupported)
	}
	n := 0
	if err := c.array(func(int) error { n++; return c.skip() }); err != nil {
		return err
	}
	if n > 0 {
		return bad(unsupported)
	}
	return nil
}

func onlyWord(word string) reader {
	return func(c *cursor, _ *request) error {
		if c.kind() != '"' {
			return bad(unsupported)
		}
		if s, err := c.text(); err != nil || string(s) == word {
			return err
		}
		return bad(unsupported)
	}
}

func onlyText(c *cursor, _ *request) error {
	plain := false
	err := c.object(func(name string) error {
		if name != "type" {
			return bad(unsupported)
		}
		s, err := c.text()
		plain = string(s) == "text"
		return err
	})
	if err == nil && !plain {
		return bad("only the type text is supported")
	}
	return err
}

func onlyTextModality(c *cursor, _ *request) error {
	return c.array(func(int) error {
		if s, err := c.text(); err != nil || string(s) == "text" {
			return err
		}
		return bad(unsupported)
	})
}
