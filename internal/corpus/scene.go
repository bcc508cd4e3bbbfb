package corpus

import (
	"fmt"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// scene is a small cluster: one prefill worker of 100 pages, one decode worker of
// 100, pages of 16 tokens, and requests of 100 tokens.
type scene struct {
	*Log
	at   time.Time
	envs []*events.Envelope
}

var sceneStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newScene() *scene {
	s := &scene{at: sceneStart}
	s.Log = NewLog(func(env *events.Envelope) error {
		c := *env
		c.Lines = append([]byte(nil), env.Lines...)
		s.envs = append(s.envs, &c)
		return nil
	})
	s.join("p1", events.RolePrefill, 11)
	s.join("d1", events.RoleDecode, 21)
	return s
}

func (s *scene) join(name string, role events.Role, epoch uint64) {
	s.PutOps(s.at, name, &events.WorkerJoined{Worker: name, Role: role, Model: "ref", Epoch: epoch, PublicKey: strings.Repeat("A", 43) + "=", Address: "tcp://127.0.0.1:7001",
		Engine: "ref", Version: "1", ContextTokens: 1000, MaxInputTokens: 600, PoolPages: 100, PageTokens: 16, TokenBytes: 4, Layout: "ref.v1:16:4"})
}

// id is the nth request's.
func (s *scene) id(n int) string {
	ms := fmt.Sprintf("%012x", sceneStart.UnixMilli())
	return fmt.Sprintf("%s-%s-7000-8000-%012x", ms[:8], ms[8:], n)
}

func digest(c string) string { return "hmac-sha256:" + strings.Repeat(c, 64) }

func tenantOf(n int) string { return []string{"acme", "umbrella", "initech"}[n%3] }

// put appends an event a millisecond after the one before.
func (s *scene) put(n int, d events.Data) {
	s.at = s.at.Add(time.Millisecond)
	s.Put(s.at, s.id(n), tenantOf(n), d)
}

func (s *scene) facts() events.AdmissionFacts {
	return events.AdmissionFacts{ContextTokens: 1000, MaxInputTokens: 600, MaxDecodeTokens: 1600, PrefillNodes: 1, DecodeNodes: 1, Policy: "gate"}
}

func (s *scene) admitted() *events.RequestAdmitted {
	return &events.RequestAdmitted{Model: "ref", Gateway: "gw1", PromptTokens: 100, MaxTokens: 20, PromptDigest: digest("a"), PrefillBy: s.at.Add(time.Minute), Deadline: s.at.Add(10 * time.Minute), Facts: s.facts()}
}

// runs are the nth request's pages; no two requests share one.
func runs(n, count int) []events.PageRun {
	return []events.PageRun{{Start: uint32(10 * n), Count: uint32(count), Generation: uint64(n)}}
}

func (s *scene) prefilled(n int) *events.RequestPrefilled {
	return &events.RequestPrefilled{Worker: "p1", WorkerEpoch: 11, PromptTokens: 100, Pages: runs(n, 7), PageTokens: 16, Layout: "ref.v1:16:4", KVBytes: 448, KVDigest: digest("b"), Lease: sceneStart.Add(30 * time.Second)}
}

func (s *scene) granted(n int) *events.TransferGranted {
	return &events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 11, Worker: "d1", WorkerEpoch: 21, Pages: runs(n, 8), ReservedTokens: 120, Lease: sceneStart.Add(30 * time.Second)}
}

func (s *scene) transferred() *events.RequestTransferred {
	return &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 21, KVBytes: 448, KVDigest: digest("b"), DurationUS: 5, DecodeBy: s.at.Add(time.Minute)}
}

func (s *scene) decoded() *events.RequestDecoded {
	return &events.RequestDecoded{Worker: "d1", WorkerEpoch: 21, PromptTokens: 100, CompletionTokens: 20, FinishReason: events.FinishLength, OutputDigest: digest("d")}
}

func (s *scene) released(n int, role events.Role) *events.RequestReleased {
	if role == events.RolePrefill {
		return &events.RequestReleased{Worker: "p1", WorkerEpoch: 11, Role: role, Generation: uint64(n), Pages: 7, Drained: true, Scrubbed: true, Reason: "done"}
	}
	return &events.RequestReleased{Worker: "d1", WorkerEpoch: 21, Role: role, Generation: uint64(n), Pages: 8, Drained: true, Scrubbed: true, Reason: "done"}
}

func (s *scene) failed(from events.State) *events.RequestFailed {
	return &events.RequestFailed{Error: *events.NewError(events.CodeTransferFailed, "the puller is gone"), From: from, Stage: "transfer", Worker: "d1"}
}

func (s *scene) rejected() *events.RequestRejected {
	return &events.RequestRejected{Error: *events.ContextExceeded("Input length", 100, 50), Stage: "engine", Model: "ref", PromptTokens: 100, MaxTokens: 20, Worker: "p1"}
}

// Steps of a life that ends well.
const (
	admit = iota + 1
	prefill
	grant
	transfer
	decode
	giveBack
)

// live takes the nth request through its life up to a step.
func (s *scene) live(n, to int) {
	for step := admit; step <= to; step++ {
		switch step {
		case admit:
			s.put(n, s.admitted())
		case prefill:
			s.put(n, s.prefilled(n))
		case grant:
			s.put(n, s.granted(n))
		case transfer:
			s.put(n, s.transferred())
		case decode:
			s.put(n, s.decoded())
		case giveBack:
			s.put(n, s.released(n, events.RolePrefill))
			s.put(n, s.released(n, events.RoleDecode))
		}
	}
}

// change takes the nth request up to a step, and the step itself changed.
func change[T events.Data](s *scene, n, before int, d T, edit func(T)) {
	s.live(n, before)
	edit(d)
	s.put(n, d)
}
