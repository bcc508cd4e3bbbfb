// Package layers holds the import rules of the module as a test.
package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pdgate/pdgate"

// A rule bans imports from a subtree of the module. Patterns are path prefixes
// at an element boundary; test files are not asked unless the rule says so.
type rule struct {
	packages string   // subtree, relative to the module
	except   []string // subtrees the rule leaves alone
	deny     []string // what they must not import, directly
	deep     bool     // nor through others
	support  bool     // packages named …test are left alone: they are test support
	why      string
}

var rules = []rule{
	{packages: "events", except: []string{"events/journal", "events/audit"}, deny: []string{"!std"},
		why: "the vocabulary is read by verifiers and importers that want no dependency"},
	{packages: "events", except: []string{"events/journal", "events/audit", "events/internal"}, deny: []string{"net", "os", "time/tzdata"},
		why: "the vocabulary does no I/O"},
	{packages: "events", deny: []string{module + "/statemachine", module + "/gpuworker", module + "/services", module + "/schemas"},
		why: "imports point down: services → gpuworker, statemachine → events"},
	{packages: "statemachine", except: []string{"statemachine/projection"}, deny: []string{"net", "os", "io/fs", "database/sql", "github.com/nats-io"},
		why: "decisions and folds are pure: a replay must come to the same verdict anywhere"},
	{packages: "statemachine", deny: []string{module + "/gpuworker", module + "/services", "github.com/nats-io"},
		why: "imports point down"},
	{packages: "", except: []string{"statemachine"}, deny: []string{"github.com/looplab/fsm"},
		why: "only the state machine knows its driver"},
	{packages: "", except: []string{"events/journal", "services", "internal"}, deny: []string{"github.com/nats-io"},
		why: "only the journal, the services and test support know NATS"},
	{packages: "", except: []string{"gpuworker/kvpool"}, deny: []string{"gorgonia.org/cu"},
		why: "only the pool knows the device"},
	{packages: "", deny: []string{"gorgonia.org/cu"}, deep: true,
		why: "the default build links no CUDA: only the tag cuda does"},
	{packages: "", except: []string{"statemachine/replay/importer"}, deny: []string{"go.opentelemetry.io/collector", "github.com/klauspost"},
		why: "only the importer reads what others write"},
	{packages: "services/gateway", deny: []string{module + "/events/journal"}, why: "a gateway asks the lifecycle service, it never writes"},
	{packages: "services/console", deny: []string{module + "/events/journal"}, why: "the console reads projections"},
	{packages: "gpuworker", deny: []string{module + "/events/journal", module + "/services", module + "/statemachine"},
		why: "a worker knows commands and grants, not how they are decided or stored"},
	{packages: "gpuworker/engine", deny: []string{module + "/gpuworker/kvpool", module + "/gpuworker/handoff"},
		why: "an engine is gullible: the guards are the pool's and the hand-off's"},
	{packages: "services/auditor", deny: []string{module + "/gpuworker", module + "/statemachine", module + "/services"},
		why: "the auditor keeps what is in the log, and judges none of it"},
	{packages: "services/verify", deny: []string{module + "/events/journal", module + "/internal", module + "/statemachine"},
		why: "whoever verifies reads the events and the audit package, and nothing else of ours"},
	{packages: "services/lifecycle", except: []string{"services/lifecycle/client"}, deny: []string{module + "/gpuworker", module + "/services/gateway"},
		why: "the lifecycle service serves workers and gateways and knows neither"},
	{packages: "services/lifecycle/client", deny: []string{module + "/events/journal", module + "/services/lifecycle/partition", module + "/statemachine"},
		why: "other teams import the client and want nothing but NATS"},
	{packages: "", except: []string{"internal"}, deny: []string{"testing", "go.uber.org/goleak", "pgregory.net/rapid"}, support: true,
		why: "test support stays out of the binary"},
	{packages: "services/pdgate", deny: []string{"runtime/cgo", "gorgonia.org/cu"}, deep: true,
		why: "the default build is static and needs no compiler but Go's"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,Standard", module+"/...")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ps []pkg
	d := json.NewDecoder(out)
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return ps
}

// under says whether path is prefix or below it.
func under(path, prefix string) bool {
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// broken returns the imports of p that the rule bans.
func (r rule) broken(p pkg) []string {
	rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
	if !under(rel, r.packages) || slices.ContainsFunc(r.except, func(e string) bool { return under(rel, e) }) {
		return nil
	}
	if r.support && strings.HasSuffix(rel, "test") {
		return nil
	}
	imports := p.Imports
	if r.deep {
		imports = p.Deps
	}
	var bad []string
	for _, imp := range imports {
		for _, d := range r.deny {
			if d == "!std" && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !under(imp, module+"/"+r.packages) || under(imp, d) {
				bad = append(bad, imp)
			}
		}
	}
	return bad
}

func TestLayers(t *testing.T) {
	ps := list(t)
	if len(ps) < 5 {
		t.Fatalf("go list found %d packages", len(ps))
	}
	for _, p := range ps {
		for _, r := range rules {
			for _, b := range r.broken(p) {
				t.Errorf("%s imports %s: %s", p.ImportPath, b, r.why)
			}
		}
	}
}

// Every rule finds what it bans.
func TestRulesBite(t *testing.T) {
	for i, r := range rules {
		imp := r.deny[0]
		if imp == "!std" {
			imp = "github.com/nats-io/nats.go"
		}
		at := r.packages
		if at == "" {
			at = "somewhere"
		}
		p := pkg{ImportPath: module + "/" + at, Imports: []string{imp + "/x"}, Deps: []string{imp + "/x"}}
		if len(r.broken(p)) == 0 {
			t.Errorf("rule %d (%s) does not see %s", i, r.why, imp)
		}
		for _, e := range r.except {
			if p := (pkg{ImportPath: module + "/" + e, Imports: p.Imports, Deps: p.Deps}); len(r.broken(p)) != 0 {
				t.Errorf("rule %d bites its exception %s", i, e)
			}
		}
	}
}

// The build tag for CUDA stands in the pool alone.
func TestCUDATag(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "grep", "-lE", "^//go:build .*cuda", "--", "*.go").Output()
	if err != nil {
		t.Skipf("not a checkout: %v", err)
	}
	files := strings.Fields(string(out))
	for _, f := range files {
		if !strings.HasPrefix(f, "gpuworker/kvpool/") {
			t.Errorf("%s has the tag cuda", f)
		}
	}
	if len(files) < 2 || len(files) > 6 {
		t.Errorf("the tag stands in %v", files)
	}
}
