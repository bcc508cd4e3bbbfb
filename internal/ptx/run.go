package ptx

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	warpSize = 32
	maxSteps = 1 << 20 // of one thread: more is a loop without an end
)

// Launch describes one kernel launch. Blocks have Threads×1×1 threads, whole
// warps of them.
type Launch struct {
	Kernel  string
	GridX   uint32
	GridY   uint32
	Threads uint32
	Args    []uint64
}

// run is a launch in progress.
type run struct {
	k      *kernel
	mem    *Memory
	args   []uint64
	lanes  [warpSize]thread
	blockX uint32
	blockY uint32
}

type thread struct {
	regs  []uint64
	at    int
	steps int
	done  bool
	wait  bool // at a shuffle
}

// Run runs a launch to its end. Where it fails, memory may be changed in part.
func (m *Module) Run(mem *Memory, l Launch) error {
	k, ok := m.kernels[l.Kernel]
	switch {
	case !ok:
		return fmt.Errorf("ptx: no kernel %s", l.Kernel)
	case len(l.Args) != k.params:
		return fmt.Errorf("ptx: %s: %d arguments, want %d", l.Kernel, len(l.Args), k.params)
	case l.GridX < 1 || l.GridY < 1 || l.GridY > 65535 || l.Threads < 1 || l.Threads > 1024 || l.Threads%warpSize != 0:
		return fmt.Errorf("ptx: %s: a grid of %d×%d blocks of %d threads", l.Kernel, l.GridX, l.GridY, l.Threads)
	}
	x := &run{k: k, mem: mem, args: l.Args}
	for i := range x.lanes {
		x.lanes[i].regs = make([]uint64, len(k.initial))
	}
	for x.blockY = 0; x.blockY < l.GridY; x.blockY++ {
		for x.blockX = 0; x.blockX < l.GridX; x.blockX++ {
			for first := uint32(0); first < l.Threads; first += warpSize {
				if err := x.warp(first); err != nil {
					return fmt.Errorf("ptx: %s: block %d,%d: %w", l.Kernel, x.blockX, x.blockY, err)
				}
			}
		}
	}
	return nil
}

// warp runs the lanes whose first thread is given.
func (x *run) warp(first uint32) error {
	for i := range x.lanes {
		t := &x.lanes[i]
		copy(t.regs, x.k.initial)
		t.at, t.steps, t.done, t.wait = 0, 0, false, false
		for s, v := range [specials]uint32{first + uint32(i), x.blockX, x.blockY} {
			if r := x.k.special[s]; r >= 0 {
				t.regs[r] = uint64(v)
			}
		}
	}
	for {
		waiting := 0
		for i := range x.lanes {
			t := &x.lanes[i]
			if err := x.step(t); err != nil {
				return fmt.Errorf("thread %d: line %d: %w", first+uint32(i), x.k.code[t.at].line, err)
			}
			if t.wait {
				waiting++
			}
		}
		switch waiting {
		case 0:
			return nil
		case warpSize:
			if err := x.shuffle(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a shuffle that %d of %d lanes reach: a GPU hangs", waiting, warpSize)
		}
	}
}

// shuffle is one shfl.sync.down of all lanes.
func (x *run) shuffle() error {
	var vals [warpSize]uint64
	for i := range x.lanes {
		t := &x.lanes[i]
		if t.at != x.lanes[0].at {
			return fmt.Errorf("lanes meet at different shuffles")
		}
		vals[i] = t.regs[x.k.code[t.at].a]
	}
	for i := range x.lanes {
		t := &x.lanes[i]
		in := &x.k.code[t.at]
		from := i
		if by := t.regs[in.b]; by < uint64(warpSize-i) {
			from += int(by)
		}
		t.regs[in.d] = vals[from]
		t.wait = false
		t.at++
	}
	return nil
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// step runs a thread until it waits at a shuffle or has ended.
func (x *run) step(t *thread) error {
	code, r := x.k.code, t.regs
	for !t.done {
		in := &code[t.at]
		if t.steps++; t.steps > maxSteps {
			return fmt.Errorf("the kernel does not end")
		}
		if in.guard >= 0 && (r[in.guard] != 0) == in.unless {
			t.at++
			continue
		}
		switch in.op {
		case opRet:
			t.done = true
			return nil
		case opBranch:
			t.at = int(in.off)
			continue
		case opShuffle:
			t.wait = true
			return nil
		case opParam:
			r[in.d] = x.args[in.off]
		case opLoad, opLoad8, opLoad2, opStore, opStore2, opRedOr, opRedAdd, opRedMax:
			if err := x.memory(in, r); err != nil {
				return err
			}
		case opUnpack:
			v := r[in.a]
			r[in.d], r[in.d2] = v&0xffffffff, v>>32
		default:
			r[in.d] = in.compute(r)
		}
		t.at++
	}
	return nil
}

// compute is an instruction that only computes. Shifts beyond the width give 0,
// as the hardware's do.
func (in *instruction) compute(r []uint64) uint64 {
	a, b := r[in.a], r[in.b]
	switch in.op {
	case opMove:
		return a
	case opMove32:
		return uint64(uint32(a))
	case opPack:
		return a&0xffffffff | b<<32
	case opAdd:
		return a + b
	case opAdd32:
		return uint64(uint32(a + b))
	case opSub:
		return a - b
	case opSub32:
		return uint64(uint32(a - b))
	case opMul:
		return a * b
	case opMulWide:
		return uint64(uint32(a)) * uint64(uint32(b))
	case opAnd:
		return a & b
	case opOr:
		return a | b
	case opXor:
		return a ^ b
	case opShl:
		return a << min(b&0xffffffff, 64)
	case opShl32:
		return uint64(uint32(a) << min(b&0xffffffff, 32))
	case opShr:
		return a >> min(b&0xffffffff, 64)
	case opShr32:
		return uint64(uint32(a) >> min(b&0xffffffff, 32))
	case opMax32:
		return uint64(max(uint32(a), uint32(b)))
	case opPopc:
		return uint64(bits.OnesCount64(a))
	case opSelect:
		if r[in.c] != 0 {
			return a
		}
		return b
	case opEq:
		return bit(a == b)
	case opEq32:
		return bit(uint32(a) == uint32(b))
	case opNe:
		return bit(a != b)
	case opNe32:
		return bit(uint32(a) != uint32(b))
	case opLt:
		return bit(a < b)
	case opLt32:
		return bit(uint32(a) < uint32(b))
	case opLe:
		return bit(a <= b)
	case opGt:
		return bit(a > b)
	case opGt32:
		return bit(uint32(a) > uint32(b))
	case opGe:
		return bit(a >= b)
	}
	panic(fmt.Sprintf("ptx: opcode %d computes nothing", in.op))
}

// memory is an instruction that reads or writes memory.
func (x *run) memory(in *instruction, r []uint64) error {
	size := 8
	switch in.op {
	case opLoad8:
		size = 1
	case opLoad2, opStore2:
		size = 16
	}
	b, err := x.mem.access(r[in.a]+in.off, size)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch in.op {
	case opLoad:
		r[in.d] = le.Uint64(b)
	case opLoad8:
		r[in.d] = uint64(b[0])
	case opLoad2:
		r[in.d], r[in.d2] = le.Uint64(b), le.Uint64(b[8:])
	case opStore:
		le.PutUint64(b, r[in.b])
	case opStore2:
		le.PutUint64(b, r[in.b])
		le.PutUint64(b[8:], r[in.c])
	case opRedOr:
		le.PutUint64(b, le.Uint64(b)|r[in.b])
	case opRedAdd:
		le.PutUint64(b, le.Uint64(b)+r[in.b])
	case opRedMax:
		le.PutUint64(b, max(le.Uint64(b), r[in.b]))
	}
	return nil
}
