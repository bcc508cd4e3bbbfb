package preflight

import (
	"encoding/json"
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// Engines that preflight can tell apart from outside. A worker of pdgate's own
// names its engine itself.
const (
	engineSGLang = "sglang"
	engineVLLM   = "vllm"
)

// Count is a number that a node told; the zero value is one that it did not.
type Count struct {
	n     int64
	known bool
}

// maxCount is above any pool there is, and keeps products far from overflow.
const maxCount = 1 << 40

func count(n int64) Count { return Count{n, true} }

// Known says whether the node told it.
func (c Count) Known() bool { return c.known }

// Int is the number, 0 if it is not known.
func (c Count) Int() int64 { return c.n }

// String implements fmt.Stringer: the number with its thousands apart, or "unknown".
func (c Count) String() string {
	if !c.known {
		return "unknown"
	}
	s := strconv.FormatInt(c.n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// MarshalJSON writes the number, or null.
func (c Count) MarshalJSON() ([]byte, error) {
	if !c.known {
		return []byte("null"), nil
	}
	return json.Marshal(c.n)
}

// least is the smallest of what is known; unknown if any is not.
func least(cs ...Count) Count {
	out := Count{}
	for i, c := range cs {
		if !c.known {
			return Count{}
		}
		if i == 0 || c.n < out.n {
			out = c
		}
	}
	return out
}

// Facts are what is kept of a node.
type Facts struct {
	Node         string      `json:"node"` // its URL, or a worker's name
	Role         events.Role `json:"role,omitempty"`
	Engine       string      `json:"engine,omitempty"`
	Version      string      `json:"version,omitempty"`
	Mode         string      `json:"mode,omitempty"`    // what the engine says of its own role
	PoolTokens   Count       `json:"pool_tokens"`       // what one request can have
	Context      Count       `json:"context_tokens"`    // prompt and completion together
	LongestInput Count       `json:"max_prompt_tokens"` // the longest prompt that is accepted
	PageTokens   Count       `json:"page_tokens"`
	KVDtype      string      `json:"kv_dtype,omitempty"`
	TP           Count       `json:"tp_size"`
	DP           Count       `json:"dp_size"`
	Truncates    bool        `json:"auto_truncate,omitempty"`
	Why          []string    `json:"unknown,omitempty"` // why something is not known
	Problem      string      `json:"problem,omitempty"` // why nothing is
	Fix          string      `json:"-"`                 // of the problem
}

func (f *Facts) unknown(why string) { f.Why = append(f.Why, why) }

// disaggregated says whether the node computes one half only.
func (f *Facts) disaggregated() bool {
	return f.Role == events.RolePrefill || f.Role == events.RoleDecode || f.Mode == "prefill" || f.Mode == "decode"
}
