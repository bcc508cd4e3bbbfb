package ptx

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Module is parsed PTX.
type Module struct{ kernels map[string]*kernel }

// instruction has its operands as indices into a thread's registers.
type instruction struct {
	op      opcode
	guard   int32 // predicate; -1: none
	unless  bool  // the guard is negated
	d, d2   int32
	a, b, c int32
	off     uint64 // added to an address; a parameter's index; a branch's target
	line    int32
}

// kernel is one entry point. Constants and special registers have registers of
// their own, which every thread starts with.
type kernel struct {
	params  int
	code    []instruction
	initial []uint64        // registers of a thread before its first instruction
	special [specials]int32 // registers of the special registers; -1: not used
}

const specials = 3

var specialNames = [specials]string{"%tid.x", "%ctaid.x", "%ctaid.y"}

// Parse reads a module.
func Parse(src string) (*Module, error) {
	m := &Module{kernels: map[string]*kernel{}}
	var p *parser
	for i, line := range strings.Split(src, "\n") {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if e := entry.FindStringSubmatch(line); e != nil {
			if p != nil {
				return nil, fmt.Errorf("ptx: line %d: a kernel within another", i+1)
			}
			p = newParser()
			m.kernels[e[1]] = p.k
			continue
		}
		if p == nil {
			if !strings.HasPrefix(line, ".version") && !strings.HasPrefix(line, ".target") && !strings.HasPrefix(line, ".address_size 64") {
				return nil, fmt.Errorf("ptx: line %d: %q outside a kernel", i+1, line)
			}
			continue
		}
		end, err := p.line(line, i+1)
		if err != nil {
			return nil, fmt.Errorf("ptx: line %d: %w", i+1, err)
		}
		if end {
			p = nil
		}
	}
	if p != nil || len(m.kernels) == 0 {
		return nil, fmt.Errorf("ptx: the source holds no kernel, or half of one")
	}
	return m, nil
}

// Params is the number of a kernel's parameters; false: there is no such kernel.
func (m *Module) Params(name string) (int, bool) {
	k, ok := m.kernels[name]
	if !ok {
		return 0, false
	}
	return k.params, true
}

// Kernels lists the entry points.
func (m *Module) Kernels() (names []string) {
	for n := range m.kernels {
		names = append(names, n)
	}
	return names
}

var entry = regexp.MustCompile(`\.entry\s+(\w+)\s*\(`)

type parser struct {
	k      *kernel
	params map[string]int
	regs   map[string]int32
	labels map[string]uint64
	jumps  map[int]string // instruction to label
	body   bool
}

func newParser() *parser {
	return &parser{
		k: &kernel{special: [specials]int32{-1, -1, -1}}, params: map[string]int{}, regs: map[string]int32{},
		labels: map[string]uint64{}, jumps: map[int]string{},
	}
}

// line takes one line of a kernel; true: it was the last.
func (p *parser) line(s string, n int) (bool, error) {
	switch {
	case strings.HasPrefix(s, ".param"):
		f := strings.Fields(strings.TrimRight(s, ","))
		if len(f) != 3 || f[1] != ".u64" {
			return false, fmt.Errorf("parameter %q is not .u64", s)
		}
		p.params[f[2]] = p.k.params
		p.k.params++
		return false, nil
	case s == ")" || strings.HasPrefix(s, ".reg") || strings.HasPrefix(s, ".maxntid") || strings.HasPrefix(s, ".pragma"):
		return false, nil
	case s == "{":
		p.body = true
		return false, nil
	case s == "}":
		return true, p.resolve()
	case !p.body:
		return false, fmt.Errorf("%q before the body", s)
	case strings.HasSuffix(s, ":"):
		p.labels[s[:len(s)-1]] = uint64(len(p.k.code))
		return false, nil
	}
	in, err := p.instruction(strings.TrimSuffix(s, ";"))
	if err != nil {
		return false, err
	}
	in.line = int32(n)
	p.k.code = append(p.k.code, in)
	return false, nil
}

// resolve turns labels into targets.
func (p *parser) resolve() error {
	for at, label := range p.jumps {
		target, ok := p.labels[label]
		if !ok || target >= uint64(len(p.k.code)) {
			return fmt.Errorf("no instruction at label %s", label)
		}
		p.k.code[at].off = target
	}
	if n := len(p.k.code); n == 0 || p.k.code[n-1].op != opRet && p.k.code[n-1].op != opBranch {
		return fmt.Errorf("the kernel runs past its end")
	}
	return nil
}

func (p *parser) instruction(s string) (in instruction, err error) {
	in.guard = -1
	if strings.HasPrefix(s, "@") {
		g, rest, ok := strings.Cut(s[1:], " ")
		if !ok {
			return in, fmt.Errorf("guard without an instruction")
		}
		g, in.unless = strings.CutPrefix(g, "!")
		in.guard, s = p.register(g), strings.TrimSpace(rest)
	}
	name, rest := s, ""
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		name, rest = s[:i], s[i:]
	}
	o, ok := opcodes[name]
	if !ok {
		return in, fmt.Errorf("unknown instruction %s", name)
	}
	in.op = o.op
	return in, p.operands(&in, o.form, name, split(rest))
}

// operands reads them by the instruction's form.
func (p *parser) operands(in *instruction, f form, name string, args []string) (err error) {
	want := [...]int{formNone: 0, formLabel: 1, formUnary: 2, formBinary: 3, formTernary: 4, formParam: 2, formLoad: 2, formLoad2: 2, formStore: 2, formStore2: 2, formShuffle: 5, formMove: 2}[f]
	if len(args) != want {
		return fmt.Errorf("%s with %d operands", name, len(args))
	}
	get := func(dst *int32, s string) {
		if err == nil {
			*dst, err = p.value(s)
		}
	}
	pair := func(x, y *int32, s string) {
		v := split(strings.Trim(s, "{}"))
		if len(v) != 2 {
			err = fmt.Errorf("%s: %q is not a pair", name, s)
			return
		}
		get(x, v[0])
		get(y, v[1])
	}
	address := func(s string) {
		base, off, _ := strings.Cut(strings.Trim(s, "[]"), "+")
		if off != "" && err == nil {
			var n int64
			n, err = strconv.ParseInt(off, 0, 64)
			in.off = uint64(n)
		}
		get(&in.a, base)
	}
	switch f {
	case formLabel:
		p.jumps[len(p.k.code)] = args[0]
	case formUnary, formBinary, formTernary:
		get(&in.d, args[0])
		for i, dst := range []*int32{&in.a, &in.b, &in.c}[:len(args)-1] {
			get(dst, args[i+1])
		}
	case formMove:
		switch {
		case args[0][0] == '{':
			in.op = opUnpack
			pair(&in.d, &in.d2, args[0])
			get(&in.a, args[1])
		case args[1][0] == '{':
			in.op = opPack
			get(&in.d, args[0])
			pair(&in.a, &in.b, args[1])
		default:
			get(&in.d, args[0])
			get(&in.a, args[1])
		}
	case formParam:
		get(&in.d, args[0])
		n, ok := p.params[strings.Trim(args[1], "[]")]
		if !ok && err == nil {
			err = fmt.Errorf("no parameter %s", args[1])
		}
		in.off = uint64(n)
	case formLoad:
		get(&in.d, args[0])
		address(args[1])
	case formLoad2:
		pair(&in.d, &in.d2, args[0])
		address(args[1])
	case formStore:
		address(args[0])
		get(&in.b, args[1])
	case formStore2:
		address(args[0])
		pair(&in.b, &in.c, args[1])
	case formShuffle:
		get(&in.d, args[0])
		get(&in.a, args[1])
		get(&in.b, args[2])
		if args[3] != "31" || args[4] != "-1" && args[4] != "0xffffffff" {
			err = fmt.Errorf("%s over part of a warp", name)
		}
	}
	return err
}

// value is the register that holds an operand: a register, a constant or a
// special register.
func (p *parser) value(s string) (int32, error) {
	switch {
	case s == "":
		return 0, fmt.Errorf("empty operand")
	case s[0] == '%':
		r := p.register(s)
		if i := slices.Index(specialNames[:], s); i >= 0 {
			p.k.special[i] = r
		} else if strings.Contains(s, ".") {
			return 0, fmt.Errorf("unknown special register %s", s)
		}
		return r, nil
	}
	n, err := strconv.ParseInt(s, 0, 64)
	v := uint64(n)
	if err != nil {
		if v, err = strconv.ParseUint(s, 0, 64); err != nil {
			return 0, fmt.Errorf("operand %q", s)
		}
	}
	r := p.register(s)
	p.k.initial[r] = v
	return r, nil
}

func (p *parser) register(name string) int32 {
	r, ok := p.regs[name]
	if !ok {
		r = int32(len(p.regs))
		p.regs[name] = r
		p.k.initial = append(p.k.initial, 0)
	}
	return r
}

// split cuts operands at the commas outside brackets.
func split(s string) (out []string) {
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if t := strings.TrimSpace(s[from:]); t != "" || len(out) > 0 {
		out = append(out, t)
	}
	return out
}
