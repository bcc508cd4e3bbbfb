package gateway

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// backend is what stands behind a gateway: a lifecycle service in memory, which
// keeps the order of states and publishes what it records, and workers that act
// on it over NATS, with the permissions of real ones. A test replaces the
// script to make them misbehave.
type backend struct {
	t       testing.TB
	gateway string
	bus     *nats.Conn
	prefill *client.Client
	decode  *client.Client // d1, the worker that is granted
	rogue   *client.Client // d2, which never is
	runs    sync.WaitGroup

	mu       sync.Mutex
	seq      uint64
	records  map[string]*record
	order    []*record
	commands []*events.Command
	script   func(*record)
	refuse   func(*events.Admit) *events.Error // rejects at admission
	lose     func(events.Type) bool            // notifications that never arrive
	down     bool                              // nobody answers
	deny     bool                              // admissions are denied
	denyAs   *events.Denial                    // and this is what they get
	models   []events.ModelView
	landed   chan string // ids of requests as they end
}

// record is one request as the log has it.
type record struct {
	b     *backend
	id    string
	admit *events.Admit
	key   []byte

	state     events.State
	lines     [][]byte
	positions []string
	ended     chan struct{}
}

var testSecret = bytes.Repeat([]byte{7}, 32)

func newBackend(t testing.TB, gateway string) *backend {
	b := &backend{
		t: t, gateway: gateway, records: make(map[string]*record), landed: make(chan string, 256),
		models: []events.ModelView{{Model: "ref", ContextTokens: 2_000_000, MaxInputTokens: 1_900_000, PrefillNodes: 1, DecodeNodes: 1}},
	}
	b.script = (*record).wholeWalk
	b.bus = testConn(t, keyring.LifecycleBus)
	worker := func(role events.Role, name string) *client.Client {
		c, err := client.New(t.Context(), client.Config{Conn: testConn(t, keyring.Worker(role, name)), Role: role, Principal: name, Partitions: 8, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	b.prefill, b.decode, b.rogue = worker(events.RolePrefill, "p1"), worker(events.RoleDecode, "d1"), worker(events.RoleDecode, "d2")
	return b
}

var errDown = events.NewError(events.CodeUnavailable, "nobody is there")

// Do decides and records, as lifecycle does.
func (b *backend) Do(ctx context.Context, c *events.Command) (*events.Answer, error) {
	payload, err := events.AppendCommand(nil, c)
	if err != nil {
		return nil, err
	}
	if c, err = events.DecodeCommand(c.Type, payload); err != nil {
		b.t.Errorf("the gateway sent a malformed command: %v", err)
		return nil, events.NewError(events.CodeMalformed, "malformed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if b.down {
		b.mu.Unlock()
		<-ctx.Done()
		return nil, errors.Join(errDown, ctx.Err())
	}
	defer b.mu.Unlock()
	b.commands = append(b.commands, c)
	r := b.records[c.Subject]
	switch d := c.Data.(type) {
	case *events.Admit:
		if b.denyAs != nil {
			return &events.Answer{Subject: c.Subject, Type: events.TypeDenied, Position: "9.0", Hash: "denied", Denied: b.denyAs}, nil
		}
		if b.deny {
			return &events.Answer{Subject: c.Subject, Type: events.TypeDenied, Position: "9.0", Hash: "denied",
				Denied: &events.Denial{Code: events.CodeStaleRequestID, Message: "stale"}}, nil
		}
		r = &record{b: b, id: c.Subject, admit: d, key: events.RequestKey(testSecret, c.Subject), state: events.New, ended: make(chan struct{})}
		b.records[r.id] = r
		b.order = append(b.order, r)
		if b.refuse != nil {
			if e := b.refuse(d); e != nil {
				a := r.commit(&events.RequestRejected{Error: *e, Stage: "admission", Model: d.Model, PromptTokens: d.PromptTokens, MaxTokens: d.MaxTokens})
				return a, nil
			}
		}
		a := r.commit(&events.RequestAdmitted{Model: d.Model, Gateway: b.gateway, PromptTokens: d.PromptTokens, MaxTokens: d.MaxTokens,
			PromptDigest: d.PromptDigest, Stream: d.Stream, Group: d.Group, Choice: d.Choice, Label: d.Label})
		script := b.script
		b.runs.Go(func() { script(r) })
		return a, nil
	case *events.Cancel:
		return r.end(c, &events.RequestCancelled{Reason: d.Reason, From: stateOf(r)}), nil
	case *events.Fail:
		return r.end(c, &events.RequestFailed{Error: d.Error, From: stateOf(r), Stage: d.Stage}), nil
	}
	b.t.Errorf("the gateway sent %s", c.Type)
	return nil, events.NewError(events.CodeForbidden, "not a gateway's")
}

func stateOf(r *record) events.State {
	if r == nil {
		return events.New
	}
	return r.state
}

// end records an end that the gateway asked for; the lock is held.
func (r *record) end(c *events.Command, d events.Data) *events.Answer {
	if a := r.commitLocked(d); a != nil {
		return a
	}
	return &events.Answer{Subject: c.Subject, State: stateOf(r), Type: events.TypeDenied, Position: "9.0", Hash: "denied",
		Denied: &events.Denial{Code: events.CodeIllegalState, Message: "not legal", State: stateOf(r)}}
}

func (r *record) commit(d events.Data) *events.Answer { return r.commitLocked(d) }

// commitLocked appends and notifies; nil if the state does not allow it.
func (r *record) commitLocked(d events.Data) *events.Answer {
	if r == nil {
		return nil
	}
	from := map[events.Type][]events.State{
		events.TypeAdmitted: {events.New}, events.TypeRejected: {events.New, events.Admitted}, events.TypePrefilled: {events.Admitted},
		events.TypeTransferGranted: {events.Prefilled}, events.TypeTransferred: {events.Prefilled}, events.TypeDecoded: {events.Transferred},
		events.TypeFailed:    {events.Admitted, events.Prefilled, events.Transferred},
		events.TypeCancelled: {events.Admitted, events.Prefilled, events.Transferred},
	}
	to := map[events.Type]events.State{
		events.TypeAdmitted: events.Admitted, events.TypeRejected: events.Rejected, events.TypePrefilled: events.Prefilled,
		events.TypeTransferGranted: events.Prefilled, events.TypeTransferred: events.Transferred, events.TypeDecoded: events.Decoded,
		events.TypeFailed: events.Failed, events.TypeCancelled: events.Cancelled,
	}
	legal := false
	for _, s := range from[d.EventType()] {
		legal = legal || s == r.state
	}
	if !legal {
		return nil
	}
	b := r.b
	b.seq++
	n := len(r.lines) + 1
	e := &events.Event{ID: r.id + "." + strconv.Itoa(n), Source: "/pdgate/lifecycle/fake", Type: d.EventType(), Subject: r.id,
		Time: time.UnixMicro(int64(b.seq)).UTC(), N: n, Tenant: r.admit.Tenant, Data: d}
	raw, err := events.Append(nil, e)
	if err != nil {
		b.t.Errorf("fake event: %v", err)
		return nil
	}
	r.state = to[d.EventType()]
	position := events.Position{Seq: b.seq}.String()
	r.lines, r.positions = append(r.lines, raw), append(r.positions, position)
	if b.lose == nil || !b.lose(e.Type) {
		m := nats.NewMsg(events.NotifySubject(r.admit.Model, 0))
		m.Header.Set(events.HeaderPosition, position)
		m.Data = append(slices.Clone(raw), '\n')
		if err := b.bus.PublishMsg(m); err != nil {
			b.t.Logf("notify: %v", err)
		}
	}
	if r.state.Final() {
		close(r.ended)
		b.landed <- r.id
	}
	a := &events.Answer{Subject: r.id, State: r.state, Type: e.Type, ID: e.ID, Position: position, Hash: events.Hash(raw)}
	switch d := d.(type) {
	case *events.RequestRejected:
		a.Error = &d.Error
	case *events.RequestFailed:
		a.Error = &d.Error
	}
	return a
}

// Get answers from memory.
func (b *backend) Get(ctx context.Context, id string) (*events.RequestView, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[id]
	switch {
	case b.down:
		return nil, errDown
	case r == nil:
		return nil, events.NewError(events.CodeNotFound, "unknown")
	}
	return &events.RequestView{RequestID: id, State: r.state, Events: len(r.lines)}, nil
}

// History answers from memory.
func (b *backend) History(ctx context.Context, id string) (*events.HistoryView, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[id]
	if b.down || r == nil {
		return nil, errDown
	}
	h := &events.HistoryView{RequestID: id, Positions: r.positions}
	for _, l := range r.lines {
		h.Events = append(h.Events, json.RawMessage(l))
	}
	return h, nil
}

// Info names the models.
func (b *backend) Info(context.Context) (*events.InfoView, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errDown
	}
	return &events.InfoView{Partitions: 8, Models: b.models}, nil
}

func (b *backend) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// record waits for nothing: the request was admitted.
func (b *backend) record(i int) *record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i >= len(b.order) {
		b.t.Fatalf("%d requests were admitted, want more than %d", len(b.order), i)
	}
	return b.order[i]
}

func (b *backend) sent(t events.CommandType) (out []*events.Command) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.commands {
		if c.Type == t {
			out = append(out, c)
		}
	}
	return out
}

func (r *record) append(d events.Data) bool {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.commitLocked(d) != nil
}

func (r *record) last() (state events.State, receipt string) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	n := len(r.lines) - 1
	return r.state, r.positions[n] + ";" + events.Hash(r.lines[n])
}

func (r *record) work(role events.Role) *events.Work {
	return &events.Work{RequestID: r.id, Role: role, Model: r.admit.Model, Tenant: r.admit.Tenant, Gateway: r.b.gateway,
		PromptTokens: r.admit.PromptTokens, MaxTokens: r.admit.MaxTokens, PromptDigest: r.admit.PromptDigest, DigestKey: hex.EncodeToString(r.key)}
}

// fetch gets the prompt as the prefill worker does.
func (r *record) fetch() ([]byte, error) {
	return r.b.prefill.FetchPrompt(r.b.t.Context(), r.work(events.RolePrefill), events.PartPrompt)
}

func (r *record) sampling() (*events.Sampling, error) {
	b, err := r.b.decode.FetchPrompt(r.b.t.Context(), r.work(events.RoleDecode), events.PartSampling)
	if err != nil {
		return nil, err
	}
	return events.DecodeSampling(b)
}

func (r *record) prefilled() bool {
	return r.append(&events.RequestPrefilled{Worker: "p1", WorkerEpoch: 1, PromptTokens: r.admit.PromptTokens})
}

func (r *record) transferred() bool {
	return r.append(&events.TransferGranted{GrantEpoch: 1, Owner: "p1", Worker: "d1"}) &&
		r.append(&events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1})
}

// walk goes to transferred, and gives the prompt.
func (r *record) walk() []byte {
	prompt, err := r.fetch()
	if err != nil {
		r.b.t.Logf("fetch prompt: %v", err)
		return nil
	}
	if !r.prefilled() || !r.transferred() {
		return nil
	}
	return prompt
}

// send is one piece of output by a worker.
func (r *record) send(w *client.Client, index int, text string) {
	if err := w.SendOutput(r.work(events.RoleDecode), events.OutputChunk{Index: uint32(index), Tokens: uint32(len(text)), Text: []byte(text)}); err != nil {
		r.b.t.Logf("send output: %v", err)
	}
}

func (r *record) sendAll(w *client.Client, pieces ...string) {
	for i, p := range pieces {
		r.send(w, i, p)
	}
}

func (r *record) decoded(text string, finish events.FinishReason) bool {
	return r.append(&events.RequestDecoded{Worker: "d1", WorkerEpoch: 1, PromptTokens: r.admit.PromptTokens, CompletionTokens: len(text),
		FinishReason: finish, OutputDigest: events.Digest(r.key, events.KindOutput, []byte(text))})
}

// answerTo is the text that the fake model continues a prompt with.
func answerTo(prompt []byte, most int, choice int) string {
	s := strings.ToUpper(string(prompt[max(0, len(prompt)-40):]))
	if choice > 0 {
		s = strconv.Itoa(choice) + s
	}
	return s[:min(most, len(s))]
}

// wholeWalk is what happens to a request when nothing goes wrong.
func (r *record) wholeWalk() {
	prompt := r.walk()
	if prompt == nil {
		return
	}
	s, err := r.sampling()
	if err != nil {
		r.b.t.Errorf("fetch sampling: %v", err)
		return
	}
	text := answerTo(prompt, s.MaxTokens, r.admit.Choice)
	i := 0
	for rest := text; rest != ""; i++ {
		n := min(7, len(rest))
		r.send(r.b.decode, i, rest[:n])
		rest = rest[n:]
	}
	r.decoded(text, events.FinishLength)
}
