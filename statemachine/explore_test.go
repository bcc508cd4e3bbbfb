package statemachine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// The explorer walks every state that two requests, one prefill worker with room
// for one of them, and two decode workers can reach, breadth first, over the real
// Decide and Fold. The data plane is gullible on purpose: pages are not scrubbed,
// their owner checks nothing, engines may lie. Only the machine stands between a
// request and another's bytes, and taking a guard away must show it.

// plane is a state of everything beside the two requests.
type plane struct {
	a, b   int      // interned requests
	t      uint8    // time, in units of a lease
	epoch  uint8    // of the prefill worker
	allocs uint8    // so far
	holder uint8    // of the page: 0 nobody, 1 a, 2 b
	gen    uint8    // of the present allocation
	bytes  uint8    // whose bytes lie in the page; 0: poison
	pulled [2]pulls // what the decode workers copied for each request
}

type pulls [2]uint8 // per worker: 0 nothing, 1 a's, 2 b's, 3 poison

const maxAllocs, maxTime = 2, 1

type explorer struct {
	guards   Guards
	m        *Machine
	requests []*Request
	known    map[string]int
	done     map[ask]int // what a command makes of a request
	ids      [2]string
	workers  map[string]*events.WorkerJoined
	found    string
}

// ask is everything that a decision depends on: the request, the facts (time and
// epoch), the sender, and what tells apart two commands of one kind.
type ask struct {
	request     int
	i, t, epoch uint8
	cmd         events.CommandType
	who         string
	x, y        uint8
}

func newExplorer(g Guards) *explorer {
	x := &explorer{guards: g, m: NewMachine(g), known: map[string]int{}, done: map[ask]int{}, ids: [2]string{id1, id2}, workers: map[string]*events.WorkerJoined{}}
	for name, role := range map[string]events.Role{"p1": events.RolePrefill, "d1": events.RoleDecode, "d2": events.RoleDecode} {
		x.workers[name] = &events.WorkerJoined{Worker: name, Role: role, Model: model, Epoch: 1, ContextTokens: 64, PoolPages: 8, PageTokens: 16, TokenBytes: 4, Layout: layout}
	}
	return x
}

// intern numbers a request by everything that a decision can depend on.
func (x *explorer) intern(r *Request) int {
	r.Recorded, r.Hash, r.UpdatedAt, r.Traceparent = nil, "", time.Time{}, ""
	if r.N > 1 {
		r.N, r.Pos = 1, events.Position{Seq: 1}
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	n, ok := x.known[string(b)]
	if !ok {
		n = len(x.requests)
		x.known[string(b)] = n
		x.requests = append(x.requests, r)
	}
	return n
}

// send decides a command of request i and folds the event; once for each ask.
func (x *explorer) send(s *plane, i int, role events.Role, who string, cmd events.CommandType, px, py uint8, data func(r *Request) events.CommandData) {
	p := &s.a
	if i == 1 {
		p = &s.b
	}
	key := ask{*p, uint8(i), s.t, s.epoch, cmd, who, px, py}
	if n, ok := x.done[key]; ok {
		*p = n
		return
	}
	r := x.requests[*p].Clone()
	d := data(r)
	c := &events.Command{Type: cmd, Subject: x.ids[i], Role: role, Principal: who, Data: d}
	owner := *x.workers["p1"]
	owner.Epoch += uint64(s.epoch)
	sender := x.workers[who]
	if who == "p1" {
		sender = &owner
	}
	f := &Facts{
		Now: start.Add(time.Duration(s.t) * 10 * time.Second), Known: true, Sender: sender, Owner: &owner,
		Admission: events.AdmissionFacts{ContextTokens: 64, MaxInputTokens: 16, MaxDecodeTokens: 64, PrefillNodes: 1, DecodeNodes: 2},
	}
	met := r.current()
	out := x.m.Decide(r, c, f)
	e := &events.Event{Subject: x.ids[i], N: r.N + 1, Prev: r.Pos, Tenant: tenant, Time: f.Now, Type: out.EventType(), Data: out}
	err := Fold(r, e, events.Position{Seq: r.Pos.Seq + 1}, "")
	x.invariants(met, r, out, f.Now, err)
	n := x.intern(r)
	x.done[key] = n
	*p = n
}

// invariants are said of each recorded event, without help of the table.
func (x *explorer) invariants(met events.State, r *Request, out events.Data, now time.Time, err error) {
	bad := met == events.Rejected || met == events.Failed || met == events.Cancelled
	say := func(what string) {
		if x.found == "" {
			x.found = what
		}
	}
	if met.Final() && r.State != met {
		say("S3: " + string(met) + " became " + string(r.State))
	}
	switch d := out.(type) {
	case *events.RequestAdmitted:
		if d.PromptTokens > 16 {
			say("admitted: a prompt that no prefill worker can hold")
		}
	case *events.TransferGranted:
		if bad {
			say("S1: a grant for a request that was " + string(met))
		} else if !now.Before(d.Lease) {
			say("S2: granted after the lease")
		}
	case *events.RequestTransferred:
		if bad {
			say("S1: a transfer of a request that was " + string(met))
		} else if !now.Before(r.Prefill.Lease) {
			say("S2: transferred after the lease")
		}
	case *events.RequestDecoded:
		if bad {
			say("S1: an output of a request that was " + string(met))
		}
	}
	if err != nil {
		say("the machine decided what the fold refuses: " + err.Error())
	}
}

// next lists every step from s.
func (x *explorer) next(s plane, emit func(plane)) {
	for i := range 2 {
		x.nextOf(s, i, emit)
	}
	if s.t < maxTime {
		n := s
		n.t++
		emit(n)
	}
	if s.epoch == 0 {
		n := s // a restart: the pool is new, its memory is not
		n.epoch, n.holder = 1, 0
		emit(n)
	}
}

// nextOf lists the steps that concern request i.
func (x *explorer) nextOf(s plane, i int, emit func(plane)) {
	me := uint8(i + 1)
	r := x.requests[s.a]
	if i == 1 {
		r = x.requests[s.b]
	}
	state := r.current()
	if state == events.New {
		for _, prompt := range []uint8{16, 17} {
			n := s
			x.send(&n, i, events.RoleGateway, "gw1", events.CmdAdmit, prompt, 0, func(*Request) events.CommandData {
				return &events.Admit{Tenant: tenant, Model: model, PromptTokens: int(prompt), MaxTokens: 8, PromptDigest: digest("a")}
			})
			emit(n)
		}
		return
	}
	// Prefill: the page is allocated, written and reported. A faulty engine
	// rejects inside, writes nothing, and reports its placeholder's one token.
	report := func(n plane, tokens int) {
		x.send(&n, i, events.RolePrefill, "p1", events.CmdPrefilled, uint8(tokens), n.gen<<4|n.bytes, func(*Request) events.CommandData {
			return &events.Prefill{
				WorkerEpoch: uint64(1 + n.epoch), Tenant: tenant, PromptTokens: tokens, Pages: runs(0, 1, uint64(n.gen)),
				PageTokens: 16, Layout: layout, KVBytes: 64, KVDigest: digestOf(n.bytes), LeaseMS: 10_000,
			}
		})
		emit(n)
	}
	if s.holder == 0 && s.allocs < maxAllocs && state == events.Admitted {
		n := s
		n.holder, n.allocs = me, s.allocs+1
		n.gen = n.allocs
		report(n, 1)
		n.bytes = me
		report(n, r.PromptTokens)
		emit(n) // the report is lost
	}
	// The page comes back once nobody needs it. Its bytes stay.
	if s.holder == me && (state.Final() || s.t > 0) {
		n := s
		n.holder = 0
		x.send(&n, i, events.RolePrefill, "p1", events.CmdReleased, s.gen, 0, func(*Request) events.CommandData {
			return &events.Release{Worker: "p1", WorkerEpoch: uint64(1 + s.epoch), Role: events.RolePrefill, Generation: uint64(s.gen), Pages: 1, Drained: true}
		})
		emit(n)
	}
	x.decodeSide(s, i, r, emit)
	n := s
	x.send(&n, i, events.RolePrefill, "p1", events.CmdReject, 0, 0, func(*Request) events.CommandData {
		return &events.Reject{WorkerEpoch: uint64(1 + s.epoch), Error: *events.NewError(events.CodeEngineRefused, "no")}
	})
	emit(n)
	n = s
	x.send(&n, i, events.RoleLifecycle, "lc1", events.CmdFail, 0, 0, func(*Request) events.CommandData { return &events.Fail{Stage: "deadline"} })
	emit(n)
}

func digestOf(bytes uint8) string { return digest(fmt.Sprintf("%x", bytes)) }

// decodeSide lists the steps of both decode workers for request i.
func (x *explorer) decodeSide(s plane, i int, r *Request, emit func(plane)) {
	last := 0
	if r.Grant != nil {
		last = r.Grant.GrantEpoch
	}
	for d, who := range []string{"d1", "d2"} {
		if last < 2 {
			n := s
			x.send(&n, i, events.RoleDecode, who, events.CmdGrant, 0, 0, func(*Request) events.CommandData {
				return &events.GrantTransfer{WorkerEpoch: 1, GrantEpoch: last + 1, Pages: runs(uint32(2*i), 2, uint64(i+1)), ReservedTokens: 32, Layout: layout}
			})
			emit(n)
		}
		got := s.pulled[i][d]
		// Whoever was granted the KV copies what lies there. The owner of the
		// pages looks at nothing.
		if last > 0 && r.Grant.Worker == who && got == 0 {
			n := s
			if n.pulled[i][d] = s.bytes; s.bytes == 0 {
				n.pulled[i][d] = 3
			}
			emit(n)
		}
		if got == 0 && !r.current().Final() {
			continue
		}
		n := s
		x.send(&n, i, events.RoleDecode, who, events.CmdTransferred, got, 0, func(*Request) events.CommandData {
			return &events.Transfer{WorkerEpoch: 1, GrantEpoch: last, KVRequest: x.ids[i], KVBytes: 64, KVDigest: digestOf(got % 3)}
		})
		emit(n)
		n = s
		x.send(&n, i, events.RoleDecode, who, events.CmdDecoded, 0, 0, func(r *Request) events.CommandData {
			return &events.DecodeDone{WorkerEpoch: 1, PromptTokens: r.PromptTokens, CompletionTokens: 1, FinishReason: events.FinishStop}
		})
		if n != s && got != uint8(i+1) && x.found == "" {
			x.found = fmt.Sprintf("S2: the output of request %d is made of %s", i+1, [...]string{"nothing", "a's bytes", "b's bytes", "poison"}[got])
		}
		emit(n)
	}
}

// explore walks until nothing is new, or something is found.
func (x *explorer) explore() (states, depth int) {
	s := plane{a: x.intern(&Request{ID: id1, State: events.New}), b: x.intern(&Request{ID: id2, State: events.New})}
	seen := map[plane]struct{}{s: {}}
	for front := []plane{s}; len(front) > 0 && x.found == ""; depth++ {
		var ahead []plane
		for _, s := range front {
			x.next(s, func(n plane) {
				// What was copied for a request that ended makes no difference: its
				// commands are sent all the same.
				for i, r := range []*Request{x.requests[n.a], x.requests[n.b]} {
					if r.State.Final() {
						n.pulled[i] = pulls{}
					}
				}
				if _, ok := seen[n]; !ok {
					seen[n] = struct{}{}
					ahead = append(ahead, n)
				}
			})
			if x.found != "" {
				break
			}
		}
		front = ahead
	}
	return len(seen), depth
}

func TestExplore(t *testing.T) {
	for _, c := range []struct {
		name   string
		guards Guards
		want   string // how what is found begins; "": nothing
	}{
		{"no admission limit", Guards{NoAdmissionLimit: true}, "admitted:"},
		{"no token count: the public bug", Guards{NoTokenCount: true}, "S2: the output"},
		{"no grant state", Guards{NoGrantState: true, NoLease: true, NoWorker: true}, "S"},
		{"no digest", Guards{NoDigest: true}, "S2: the output"},
		{"no lease", Guards{NoLease: true}, "S2: "},
		{"no worker", Guards{NoWorker: true}, "S2: the output"},
		{"all guards", Guards{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newExplorer(c.guards)
			states, depth := x.explore()
			t.Logf("%d states, %d requests, %d decisions, depth %d: %q", states, len(x.requests), len(x.done), depth, x.found)
			if c.want == "" && x.found != "" || !strings.HasPrefix(x.found, c.want) {
				t.Errorf("found %q, want %q", x.found, c.want)
			}
			if c.want == "" && states < 10_000 {
				t.Errorf("only %d states were reached", states)
			}
		})
	}
}
