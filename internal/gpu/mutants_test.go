package gpu

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// Mutants of the embedded kernels: one instruction of the PTX is changed, and the
// suite must notice. testdata/mutants.txt lists a sample with what became of each;
// this test tries a part of it again, and with -mutants all of it, and writes the
// list. Survivors are argued for in testdata/survivors.txt.

var writeMutants = flag.Bool("mutants", false, "try every listed mutant, and write the list")

const (
	mutantsFile   = "testdata/mutants.txt"
	survivorsFile = "testdata/survivors.txt"
	sampleSize    = 160
)

// mutant is one change of one line.
type mutant struct {
	line int // of the PTX, from 1
	what string
	text string // in the line's place
}

var (
	swaps = map[string]string{
		"add.s64": "sub.s64", "sub.s64": "add.s64", "sub.s32": "add.s32", "mul.lo.s64": "add.s64", "mul.wide.u32": "shr.u64",
		"and.b64": "or.b64", "and.b32": "or.b32", "or.b64": "and.b64", "xor.b64": "or.b64", "shl.b64": "shr.u64", "shr.u64": "shl.b64",
		"or.pred": "and.pred", "and.pred": "or.pred", "setp.ge.u64": "setp.gt.u64", "setp.lt.u64": "setp.le.u64", "setp.gt.u64": "setp.ge.u64",
		"setp.lt.u32": "setp.gt.u32", "setp.ne.s64": "setp.eq.s64", "setp.eq.s64": "setp.ne.s64", "setp.ne.s32": "setp.eq.s32", "setp.eq.s32": "setp.ne.s32",
		"red.global.or.b64": "red.global.add.u64", "red.global.add.u64": "red.global.or.b64", "red.global.max.u64": "red.global.add.u64", "max.u32": "sub.s32",
	}
	number    = regexp.MustCompile(`(, |\+)(-?\d+)(\]|;|,)`)
	selection = regexp.MustCompile(`^(\s*selp\.\w+\s+\S+ )(\S+), (\S+), (%p\d+;)`)
	special   = regexp.MustCompile(`%ctaid\.[xy]|%tid\.x`)
)

// mutants are all changes that are made to any line, in order.
func mutants() (all []mutant) {
	entry := false
	for i, line := range strings.Split(kernels.PTX, "\n") {
		code, _, _ := strings.Cut(line, "//")
		trimmed := strings.TrimSpace(code)
		if trimmed == "{" {
			entry = true
		}
		if !entry || trimmed == "" || strings.HasPrefix(trimmed, ".") || strings.HasPrefix(trimmed, "$") || len(trimmed) < 4 {
			continue
		}
		add := func(what, text string) {
			if text != code {
				all = append(all, mutant{i + 1, what, text})
			}
		}
		name := strings.Fields(strings.TrimPrefix(trimmed, "@"))[0]
		if to, ok := swaps[name]; ok {
			add(name+" becomes "+to, strings.Replace(code, name, to, 1))
		}
		if m := number.FindStringSubmatchIndex(code); m != nil && !strings.HasPrefix(name, "shfl") {
			n, err := strconv.ParseInt(code[m[4]:m[5]], 10, 64)
			if err == nil {
				add("constant + 1", code[:m[4]]+strconv.FormatInt(n+1, 10)+code[m[5]:])
			}
		}
		if m := selection.FindStringSubmatch(code); m != nil {
			add("selects the other", m[1]+m[3]+", "+m[2]+", "+m[4])
		}
		switch {
		case strings.HasPrefix(trimmed, "@!"):
			add("guard is turned", strings.Replace(code, "@!", "@", 1))
			add("never", "")
		case strings.HasPrefix(trimmed, "@"):
			add("guard is turned", strings.Replace(code, "@", "@!", 1))
			add("always", code[strings.Index(code, "bra"):])
			add("never", "")
		case strings.HasPrefix(name, "st.") || strings.HasPrefix(name, "red."):
			add("removed", "")
		}
		if s := special.FindString(code); s != "" {
			add("another index", strings.Replace(code, s, map[string]string{"%ctaid.x": "%ctaid.y", "%ctaid.y": "%ctaid.x", "%tid.x": "%ctaid.x"}[s], 1))
		}
	}
	return all
}

func (m mutant) source() string {
	lines := strings.Split(kernels.PTX, "\n")
	lines[m.line-1] = m.text
	return strings.Join(lines, "\n")
}

// kernel is the name of the kernel that the line is in.
func (m mutant) kernel() string {
	lines := strings.Split(kernels.PTX, "\n")
	for i := m.line - 1; i >= 0; i-- {
		if _, rest, ok := strings.Cut(lines[i], ".entry "); ok {
			return strings.TrimSuffix(rest, "(")
		}
	}
	return "?"
}

// String is the mutant's line in the list, without the verdict.
func (m mutant) String() string {
	return fmt.Sprintf("%s line %d: %s: %s", m.kernel(), m.line, m.what, strings.Join(strings.Fields(strings.Split(kernels.PTX, "\n")[m.line-1]), " "))
}

// suite is what a mutant has to get past: the first part that notices it.
func suite(ctx context.Context, source string) (string, error) {
	drv, err := kvpool.Interpret(source)
	if err != nil {
		return "load", err
	}
	for _, size := range []int{4096, 12_288, 40 << 10, 8192, 16 << 10, 20 << 10, 24 << 10, 28 << 10, 32 << 10, 16} {
		if err := Device(drv, size); err != nil {
			return "device", err
		}
	}
	eng, err := engine.New(engine.Config{})
	if err != nil {
		return "engine", err
	}
	for seed := range uint64(2) {
		if err := Engine(ctx, drv, eng, seed); err != nil {
			return "engine", err
		}
	}
	if _, err := kvpool.Measure(drv, 60<<10, 5*60<<10, 1); err != nil {
		return "measure", err
	}
	return "", nil
}

// sample is which of the mutants are listed: the same for the same PTX.
func sample() []mutant {
	all := mutants()
	r := rand.New(rand.NewPCG(2026, 11))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(sampleSize, len(all))]
}

func TestMutants(t *testing.T) {
	head := fmt.Sprintf("# %d of %d mutants of kernels.ptx, SHA-256 %x\n", sampleSize, len(mutants()), sha256.Sum256([]byte(kernels.PTX)))
	list := sample()
	if *writeMutants {
		verdicts := try(t, list)
		var b strings.Builder
		b.WriteString(head)
		for i, m := range list {
			fmt.Fprintf(&b, "%s | %s\n", verdicts[i], m)
		}
		if err := os.WriteFile(mutantsFile, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(mutantsFile)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(string(b), head)
	if !ok {
		t.Fatal("the list is of other kernels: run this test with -mutants and look at what survives")
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(list) {
		t.Fatalf("%d lines, want %d", len(lines), len(list))
	}
	argued, err := os.ReadFile(survivorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var again []mutant
	for i, m := range list {
		verdict, what, _ := strings.Cut(lines[i], " | ")
		switch {
		case what != m.String():
			t.Fatalf("line %d is %q, want %q", i+2, what, m)
		case verdict == "survives" && !strings.Contains(string(argued), m.String()):
			t.Errorf("nothing is said of the survivor %s", m)
		case verdict != "survives" && i%16 == 0:
			again = append(again, m)
		}
	}
	if *writeMutants || testing.Short() {
		return
	}
	for i, v := range try(t, again) {
		if v == "survives" {
			t.Errorf("not noticed any more: %s", again[i])
		}
	}
}

// try says what became of each.
func try(t *testing.T, list []mutant) []string {
	t.Helper()
	if part, err := suite(t.Context(), kernels.PTX); err != nil {
		t.Fatalf("the kernels themselves: %s: %v", part, err)
	}
	verdicts := make([]string, len(list))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				verdicts[i] = "survives"
				if part, err := suite(t.Context(), list[i].source()); err != nil {
					verdicts[i] = "killed by " + part
				}
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	wg.Wait()
	return verdicts
}
