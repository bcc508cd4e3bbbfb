package traffic

import "math/rand/v2"

var words = [...]string{"the", "a", "of", "and", "to", "in", "is", "page", "cache", "token", "key", "value",
	"model", "server", "request", "answer", "prompt", "decode", "prefill", "block", "pool", "lease", "grant",
	"epoch", "owner", "state", "queue", "worker", "error", "batch", "router", "stream"}

// Prompt makes a text of exactly a.PromptTokens bytes, one byte a token, in
// place of the text that the trace leaves out. Blocks with equal ids are equal,
// as in the traffic itself; without ids the line is the seed.
func (a *Arrival) Prompt() []byte {
	out := make([]byte, 0, a.PromptTokens+16)
	for i := 0; len(out) < a.PromptTokens; i++ {
		seed := uint64(a.Line)<<20 + uint64(i)
		if i < len(a.Blocks) {
			seed = uint64(a.Blocks[i]) + 1<<60
		}
		end := min(len(out)+BlockTokens, a.PromptTokens)
		r := rand.New(rand.NewPCG(seed, 0))
		for len(out) < end {
			out = append(out, words[r.IntN(len(words))]...)
			out = append(out, ' ')
		}
		out = out[:end]
	}
	return out
}
