package lifecycle

import (
	"strings"
	"sync"

	"github.com/pdgate/pdgate/events"
)

// Payloads of a request of 1,000 tokens. Generations come from the id, so that
// no two requests hold the same pages of a worker.
const (
	promptTokens = 1000
	maxTokens    = 100
)

func digestOf(s string) string { return events.Digest([]byte("test"), events.KindPrompt, []byte(s)) }

func admit() *events.Admit {
	return &events.Admit{Tenant: testTenant, Model: testModel, PromptTokens: promptTokens, MaxTokens: maxTokens, PromptDigest: digestOf("prompt")}
}

// pages is an allocation that no other request of the test has: the runs lie
// where the id's random part says, and the generation is from there as well.
type pager struct {
	mu   sync.Mutex
	next uint64
}

var pagers pager

func (p *pager) runs(tokens int) []events.PageRun {
	n := uint32((tokens + testPageTokens - 1) / testPageTokens)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return []events.PageRun{{Start: uint32(p.next*32) % (1<<20 - 64), Count: n, Generation: p.next}}
}

func (p *party) prefill() *events.Prefill {
	runs := pagers.runs(promptTokens)
	return &events.Prefill{
		WorkerEpoch: p.epoch, Tenant: testTenant, PromptTokens: promptTokens, Pages: runs, PageTokens: testPageTokens,
		Layout: testLayout, KVBytes: int64(events.Pages(runs) * testPageTokens * testTokenBytes), KVDigest: "kvsum64:" + strings.Repeat("ab", 8), LeaseMS: 60_000,
	}
}

func (p *party) grant(epoch int) *events.GrantTransfer {
	return &events.GrantTransfer{WorkerEpoch: p.epoch, GrantEpoch: epoch, Pages: pagers.runs(promptTokens + maxTokens), ReservedTokens: promptTokens + maxTokens, Layout: testLayout}
}

func (p *party) transfer(id string, of *events.Prefill, epoch int) *events.Transfer {
	return &events.Transfer{WorkerEpoch: p.epoch, GrantEpoch: epoch, KVRequest: id, KVBytes: of.KVBytes, KVDigest: of.KVDigest, DurationUS: 5}
}

func (p *party) output() *events.DecodeDone {
	return &events.DecodeDone{WorkerEpoch: p.epoch, PromptTokens: promptTokens, CompletionTokens: 10, FinishReason: events.FinishStop, OutputDigest: digestOf("output")}
}

func (p *party) release(runs []events.PageRun) *events.Release {
	return &events.Release{Worker: p.name, WorkerEpoch: p.epoch, Role: p.role, Generation: runs[0].Generation, Pages: events.Pages(runs), Drained: true, Scrubbed: true, Reason: "done"}
}
