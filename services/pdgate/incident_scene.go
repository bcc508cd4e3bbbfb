package main

import (
	"fmt"
	"strings"

	"github.com/pdgate/pdgate/gpuworker/engine"
)

// scene is the public incident's cast and sizes: customers whose prompts hold
// private records, and one whose prompt is longer than prefill accepts while it
// fits the context window and decode's pool.
type scene struct {
	prefillTokens int // prefill's pool, which is also its longest input
	decodeTokens  int // decode's pool
	context       int
	victims       []customer
	intruder      customer
	maxTokens     int
}

// customer is one tenant's request.
type customer struct {
	tenant string
	prompt []byte
	most   int // tokens to generate
}

// quickScene keeps the proportions; fullScene has the public report's figures.
func quickScene() scene { return newScene(2048, 4096, 4096, 4, 1000, 3000, 120) }
func fullScene() scene {
	return newScene(681_280, 1_048_576, 1_048_576, 2, 524_200, 1_000_000, 120)
}

func newScene(prefill, decode, context, victims, victimLen, intruderLen, most int) scene {
	s := scene{prefillTokens: prefill, decodeTokens: decode, context: context, maxTokens: most}
	for i := range victims {
		s.victims = append(s.victims, customer{fmt.Sprintf("customer-%d", i+1), records(i, victimLen), 2})
	}
	const line = "please sum up my holiday notes. "
	s.intruder = customer{"customer-" + fmt.Sprint(victims+1), []byte(strings.Repeat(line, intruderLen/len(line)+1)[:intruderLen]), most}
	return s
}

var (
	firstNames = strings.Fields("Ann Bob Cem Dee Eva Fay Gus Hal Ida Jon Kim")
	lastNames  = strings.Fields("Stone Marsh Fields Brook Hill Woods Lake")
)

// records makes a prompt of invented card data, different for every customer.
func records(customer, length int) []byte {
	var b strings.Builder
	for j := 0; b.Len() < length; j++ {
		n := customer*100_000 + j
		fmt.Fprintf(&b, "%s %s: card=4111-%04d-%04d;\n", firstNames[n*7%len(firstNames)], lastNames[n*5%len(lastNames)], n*7919%10000, n*104729%10000)
	}
	return []byte(b.String()[:length])
}

// engine is the faulty engine at the scene's sizes, for prefill, decode and
// tokenizer alike.
func (s *scene) engine(threads int) engine.Config {
	return engine.Config{Name: "faulty", ContextTokens: s.context, MaxInputTokens: s.prefillTokens, Threads: threads}
}

// leak is a piece of an answer that stands in somebody else's prompt.
type leak struct {
	text   string
	victim int
	offset int // in the victim's prompt
}

// minLeak is how many bytes in a row count as somebody's text.
const minLeak = 12

// findLeak looks for the longest piece of the answer that a victim wrote and the
// intruder did not.
func (s *scene) findLeak(answer string) (leak, bool) {
	best := leak{}
	for v, c := range s.victims {
		prompt := string(c.prompt)
		for i := 0; i+minLeak <= len(answer); i++ {
			at := strings.Index(prompt, answer[i:i+minLeak])
			if at < 0 || strings.Contains(string(s.intruder.prompt[:min(len(s.intruder.prompt), 4096)]), answer[i:i+minLeak]) {
				continue
			}
			n := minLeak
			for i+n < len(answer) && at+n < len(prompt) && answer[i+n] == prompt[at+n] {
				n++
			}
			if n > len(best.text) {
				best = leak{answer[i : i+n], v, at}
			}
		}
	}
	return best, best.text != ""
}
