package statemachine

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/looplab/fsm"

	"github.com/pdgate/pdgate/events"
)

var update = flag.Bool("update", false, "write golden files")

// TestMain keeps rapid from leaving files: a failure prints its seed.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// golden compares got with the file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s is out of date: run go test -run %s -update, and read the difference (-file +code):\n%s", path, t.Name(), d)
	}
}

func TestStatesAreTheVocabularys(t *testing.T) {
	if d := cmp.Diff(events.AllStates(), States()); d != "" {
		t.Error(d)
	}
	seen := map[Row]bool{}
	for _, r := range Table() {
		key := Row{Event: r.Event, From: r.From}
		if seen[key] {
			t.Errorf("%s in %s stands twice: looplab takes the last row without a word", r.Event, r.From)
		}
		seen[key] = true
	}
}

// TestLooplabIsTheTable drives looplab and the compiled table over every pair of
// state and event.
func TestLooplabIsTheTable(t *testing.T) {
	f := newFSM(Guards{}, nil)
	for _, s := range States() {
		for _, e := range events.AllTypes() {
			f.SetState(string(s))
			err := f.Event(t.Context(), string(e))
			var same fsm.NoTransitionError
			legal := err == nil || errors.As(err, &same) && same.Err == nil
			to, want := Next(s, e)
			if legal != want {
				t.Errorf("%s in %s: looplab says %v (%v), the table %v", e, s, legal, err, want)
				continue
			}
			if got := events.State(f.Current()); legal && got != to {
				t.Errorf("%s in %s: looplab goes to %s, the table to %s", e, s, got, to)
			}
			if !legal && f.Current() != string(s) {
				t.Errorf("%s in %s: a refused event moved looplab to %s", e, s, f.Current())
			}
		}
	}
}

// TestEveryPair says for every pair of state and event what must be so whatever
// the table says.
func TestEveryPair(t *testing.T) {
	for _, s := range States() {
		for _, e := range events.AllTypes() {
			to, legal := Next(s, e)
			switch {
			case e == events.TypeDenied && (!legal || to != s):
				t.Errorf("a denial in %s must be legal and change nothing", s)
			case s.Final() && legal && (to != s || e != events.TypeDenied && e != events.TypeReleased):
				t.Errorf("%s leads out of the final state %s", e, s)
			case legal && e == events.TypeTransferred && s != events.Prefilled,
				legal && e == events.TypeTransferGranted && s != events.Prefilled,
				legal && e == events.TypeDecoded && s != events.Transferred:
				t.Errorf("%s must not be legal in %s", e, s)
			case legal && e == events.TypeReleased && to != s:
				t.Errorf("a release in %s changes the state", s)
			}
		}
	}
}

// TestCommandTable checks the commands against the subjects' permissions: the
// service's own commands are the only ones that no principal may send.
func TestCommandTable(t *testing.T) {
	for _, c := range events.AllCommandTypes() {
		row := commandRows[c]
		if row == nil {
			t.Errorf("%s has no row", c)
			continue
		}
		for _, r := range events.AllRoles() {
			if has := slices.Contains(row.Roles, r); has != r.May(c) && r != events.RoleLifecycle {
				t.Errorf("%s may send %s: the table says %v, the subjects %v", r, c, has, r.May(c))
			}
		}
		for _, e := range row.Events {
			if !slices.Contains(events.AllTypes(), e) {
				t.Errorf("%s leads to %s, which is no event", c, e)
			}
		}
	}
}

// situations are the states as a command can meet them.
var situations = []struct {
	name  string
	steps []events.CommandType
}{
	{"new", nil},
	{"admitted", whole[:1]},
	{"rejected", []events.CommandType{events.CmdAdmit, events.CmdReject}},
	{"prefilled", whole[:2]},
	{"prefilled, granted", whole[:3]},
	{"transferred", whole[:4]},
	{"decoded", whole},
	{"failed", append(slices.Clone(whole[:3]), events.CmdFail)},
	{"cancelled", append(slices.Clone(whole[:3]), events.CmdCancel)},
}

// TestEveryTriple sends every command in every situation in every role, with the
// most rightful content there is, and writes down the answer.
func TestEveryTriple(t *testing.T) {
	var b strings.Builder
	b.WriteString("# situation | command | role -> event, state after\n")
	names := map[events.Role]string{
		events.RoleGateway: "gw1", events.RolePrefill: "p1", events.RoleDecode: "d1",
		events.RoleOperator: "alice", events.RoleAuditor: "audit", events.RoleLifecycle: "lc1",
	}
	for _, s := range situations {
		for _, c := range events.AllCommandTypes() {
			for _, role := range events.AllRoles() {
				w := newWorld(t, Guards{})
				w.must(id1, s.steps...)
				r := w.requests[id1]
				cmd := command(id1, role, names[role], w.payload(c, role))
				out := w.m.Decide(r, cmd, w.gather(r, cmd))
				to, legal := Next(r.current(), out.EventType())
				if !legal {
					t.Errorf("%s | %s | %s: %s, which the table does not allow", s.name, c, role, out.EventType())
				}
				answer := string(out.EventType())
				if d, ok := out.(*events.CommandDenied); ok {
					answer = "denied: " + string(d.Code)
					if d.State != r.current() || d.Command != c {
						t.Errorf("%s | %s | %s: the denial names %s in %s", s.name, c, role, d.Command, d.State)
					}
				}
				fmt.Fprintf(&b, "%s | %s | %s -> %s, %s\n", s.name, c, role, answer, to)
			}
		}
	}
	golden(t, "testdata/triples.txt", b.String())
}

func (w *world) payload(c events.CommandType, role events.Role) events.CommandData {
	switch c {
	case events.CmdAdmit:
		return w.admitData()
	case events.CmdReject:
		return &events.Reject{WorkerEpoch: 11, Error: *events.NewError(events.CodeEngineRefused, "no")}
	case events.CmdPrefilled:
		return w.prefillData()
	case events.CmdGrant:
		return w.grantData()
	case events.CmdTransferred:
		return w.transferData(id1)
	case events.CmdDecoded:
		return w.decodeData()
	case events.CmdFail:
		switch role {
		case events.RolePrefill:
			return failData(11)
		case events.RoleDecode:
			return failData(21)
		}
		return failData(0)
	case events.CmdCancel:
		return &events.Cancel{Reason: events.CodeCancelled}
	case events.CmdReleased:
		if role == events.RoleDecode {
			return releaseData(role)
		}
		return releaseData(events.RolePrefill)
	case events.CmdRegister:
		return &events.Register{}
	case events.CmdLeave:
		return &events.Leave{}
	case events.CmdQuarantine:
		return &events.Quarantine{}
	case events.CmdRestore:
		return &events.Restore{}
	case events.CmdErase:
		return &events.Erase{TenantKey: "0123456789abcdef"}
	case events.CmdCanary:
		return &events.Canary{}
	case events.CmdNotify:
		return &events.Notify{}
	case events.CmdAudit:
		return &events.Audit{}
	case events.CmdTrim:
		return &events.Trim{}
	}
	return nil
}
