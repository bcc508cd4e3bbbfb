package ptx

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// module wraps instructions into a kernel k(dst, n).
func module(body string) string {
	return ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1\n)\n{\n.reg .b64 %rd<9>;\n" + body + "\n}\n"
}

const start = "ld.param.u64 %rd1, [k_param_0];\nld.param.u64 %rd2, [k_param_1];\n"

func execute(t *testing.T, body string, n uint64, threads uint32) ([]byte, error) {
	t.Helper()
	m, err := Parse(module(body))
	if err != nil {
		t.Fatal(err)
	}
	var mem Memory
	p, err := mem.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	b, err := mem.Bytes(p, 512)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	return b, m.Run(&mem, Launch{Kernel: "k", GridX: 1, GridY: 1, Threads: threads, Args: []uint64{p, n}})
}

// Every computing instruction, on values whose halves differ.
func TestInstructions(t *testing.T) {
	const a, b = 0xfedcba98_80000003, 0x00000007_00000005
	for text, want := range map[string]uint64{
		"add.s64 %rd5, %rd3, %rd4": 0xfedcba9f_80000008, "sub.s64 %rd5, %rd3, %rd4": 0xfedcba91_7ffffffe,
		"add.s32 %rd5, %rd3, %rd4": 0x80000008, "sub.s32 %rd5, %rd4, %rd3": 0x80000002,
		"mul.lo.s64 %rd5, %rd4, %rd4": 0x00000046_00000019, "mul.wide.u32 %rd5, %rd3, %rd4": 0x2_8000000f,
		"and.b64 %rd5, %rd3, %rd4": 0x1, "or.b64 %rd5, %rd3, %rd4": 0xfedcba9f_80000007, "xor.b64 %rd5, %rd3, %rd4": 0xfedcba9f_80000006,
		"shl.b64 %rd5, %rd3, 4": 0xedcba988_00000030, "shl.b64 %rd5, %rd3, 64": 0, "shl.b32 %rd5, %rd3, 1": 0x6,
		"shr.u64 %rd5, %rd3, 60": 0xf, "shr.u64 %rd5, %rd3, 65": 0, "shr.u32 %rd5, %rd3, 31": 1,
		"max.u32 %rd5, %rd3, %rd4": 0x80000003, "popc.b64 %rd5, %rd4": 5, "mov.u32 %rd5, %rd4": 5, "cvt.u64.u32 %rd5, %rd3": 0x80000003,
		"mov.b64 %rd5, {%rd3, %rd4}":                             0x00000005_80000003,
		"mov.b64 {%rd6, %rd5}, %rd3":                             0xfedcba98,
		"setp.lt.u64 %p1, %rd4, %rd3;\nselp.b64 %rd5, 1, 2, %p1": 1, "setp.gt.u64 %p1, %rd4, %rd3;\nselp.b64 %rd5, 1, 2, %p1": 2,
		"setp.ge.u64 %p1, %rd4, %rd4;\nselp.b64 %rd5, 1, 2, %p1": 1, "setp.le.u64 %p1, %rd3, %rd4;\nselp.b64 %rd5, 1, 2, %p1": 2,
		"setp.lt.u32 %p1, %rd4, %rd3;\nselp.b64 %rd5, 1, 2, %p1": 1, "setp.gt.u32 %p1, %rd4, %rd3;\nselp.b64 %rd5, 1, 2, %p1": 2,
		"setp.eq.s64 %p1, %rd4, 5;\nselp.b64 %rd5, 1, 2, %p1": 2, "setp.eq.s32 %p1, %rd4, 5;\nselp.b64 %rd5, 1, 2, %p1": 1,
		"setp.ne.s64 %p1, %rd4, 5;\nselp.b64 %rd5, 1, 2, %p1": 1, "setp.ne.s32 %p1, %rd4, 5;\nselp.b64 %rd5, 1, 2, %p1": 2,
		"mov.u64 %rd5, 1;\nsetp.ne.s64 %p1, %rd3, 0;\n@%p1 mov.u64 %rd5, 2;\n@!%p1 mov.u64 %rd5, 3": 2,
		"mov.u64 %rd5, 1;\nbra $L;\nmov.u64 %rd5, 2;\n$L:\nadd.s64 %rd5, %rd5, 6":                   7,
		"red.global.add.u64 [%rd1+8], %rd4;\nld.global.u64 %rd5, [%rd1+8]":                          32 * b & (1<<64 - 1),
		"red.global.or.b64 [%rd1+8], %rd4;\nld.global.u64 %rd5, [%rd1+8]":                           b,
		"red.global.max.u64 [%rd1+8], %rd3;\nld.global.u64 %rd5, [%rd1+8]":                          a,
		"st.global.u64 [%rd1+8], %rd3;\nld.global.u8 %rd5, [%rd1+11]":                               0x80,
	} {
		out, err := execute(t, start+"mov.u64 %rd3, 0xfedcba9880000003;\nmov.u64 %rd4, 30064771077;\n"+text+";\nst.global.u64 [%rd1], %rd5;\nret;", 0, 32)
		if got := binary.LittleEndian.Uint64(out); err != nil || got != want {
			t.Errorf("%s: %#x, want %#x, %v", text, got, want, err)
		}
	}
}

// A shuffle takes the value of the lane that is so much further, its own at the end.
func TestShuffle(t *testing.T) {
	out, err := execute(t, start+"mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 8;\nadd.s64 %rd4, %rd1, %rd3;\n"+
		"shfl.sync.down.b32 %r2, %r1, 5, 31, -1;\ncvt.u64.u32 %rd5, %r2;\nst.global.u64 [%rd4], %rd5;\nret;", 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		want := i + 5
		if want > 31 {
			want = i
		}
		if got := binary.LittleEndian.Uint64(out[8*i:]); got != uint64(want) {
			t.Errorf("lane %d: %d, want %d", i, got, want)
		}
	}
}

// What a GPU would do something with, or hang on, ends the launch.
func TestFaults(t *testing.T) {
	odd := "mov.u32 %r1, %tid.x;\nand.b32 %r2, %r1, 1;\nsetp.ne.s32 %p1, %r2, 0;\n"
	for name, c := range map[string]struct{ body, want string }{
		"beyond":          {"ld.global.u64 %rd3, [%rd1+512];\nret;", "illegal address"},
		"across the end":  {"ld.global.L1::no_allocate.v2.u64 {%rd3, %rd4}, [%rd1+504];\nret;", "misaligned"},
		"before":          {"add.s64 %rd1, %rd1, -8;\nst.global.u64 [%rd1], %rd2;\nret;", "illegal address"},
		"misaligned":      {"red.global.add.u64 [%rd1+4], %rd2;\nret;", "misaligned"},
		"misaligned pair": {"st.global.cs.v2.u64 [%rd1+8], {%rd2, %rd2};\nret;", "misaligned"},
		"no end":          {"$L:\nadd.s64 %rd3, %rd3, 1;\nbra $L;\nret;", "does not end"},
		"half a warp":     {odd + "@%p1 bra $E;\nshfl.sync.down.b32 %r3, %r1, 1, 31, -1;\n$E:\nret;", "16 of 32 lanes"},
		"two shuffles":    {odd + "@%p1 bra $E;\nshfl.sync.down.b32 %r3, %r1, 1, 31, -1;\nret;\n$E:\nshfl.sync.down.b32 %r3, %r1, 1, 31, -1;\nret;", "different shuffles"},
	} {
		if _, err := execute(t, start+c.body, 0, 32); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, src := range map[string]string{
		"unknown instruction": module("add.f64 %fd1, %fd2, %fd3;\nret;"), "unknown special register": module("mov.u32 %r1, %laneid.x;\nret;"),
		"missing label": module("bra $L;\nret;"), "missing operand": module("add.s64 %rd1, %rd2;\nret;"),
		"runs past its end": module("mov.u64 %rd1, 1;"), "empty": "", "no body end": strings.TrimSuffix(module("ret;"), "}\n"),
		"narrow parameter":  strings.Replace(module("ret;"), ".param .u64 k_param_1", ".param .u32 k_param_1", 1),
		"no such parameter": module("ld.param.u64 %rd1, [k_param_7];\nret;"), "part of a warp": module("shfl.sync.down.b32 %r3, %r1, 1, 31, 15;\nret;"),
		"global data": ".version 7.8\n.global .u64 x;\n",
	} {
		if _, err := Parse(src); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLaunchRefuses(t *testing.T) {
	m, err := Parse(module("ret;"))
	if err != nil {
		t.Fatal(err)
	}
	ok := Launch{Kernel: "k", GridX: 1, GridY: 1, Threads: 32, Args: []uint64{0, 0}}
	for name, change := range map[string]func(*Launch){
		"kernel": func(l *Launch) { l.Kernel = "j" }, "arguments": func(l *Launch) { l.Args = l.Args[:1] },
		"threads": func(l *Launch) { l.Threads = 33 }, "no threads": func(l *Launch) { l.Threads = 0 },
		"grid": func(l *Launch) { l.GridX = 0 }, "grid.y": func(l *Launch) { l.GridY = 65536 },
	} {
		l := ok
		change(&l)
		if err := m.Run(new(Memory), l); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := m.Run(new(Memory), ok); err != nil {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	var m Memory
	a, err := m.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := m.Bytes(a, 100); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0xcd}, 100)) {
		t.Errorf("fresh memory: %x, %v", got, err)
	}
	for _, c := range []struct {
		at uint64
		n  int
	}{{a - 1, 1}, {a, 101}, {a + 100, 1}, {a, int(b - a)}, {0, 1}, {b, -1}, {1<<64 - 1, 2}} {
		if _, err := m.Bytes(c.at, c.n); err == nil {
			t.Errorf("%#x+%d is legal", c.at, c.n)
		}
	}
	if m.Free(a+8) == nil || m.Free(a) != nil || m.Free(a) == nil || m.Allocations() != 1 {
		t.Error("free")
	}
	if _, err := m.Bytes(a, 8); err == nil {
		t.Error("memory after its free")
	}
	if _, err := m.Alloc(0); err == nil {
		t.Error("an empty allocation")
	}
}
