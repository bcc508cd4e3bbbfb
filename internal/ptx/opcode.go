package ptx

// form is how an instruction's operands are written.
type form uint8

const (
	formNone    form = iota // ret
	formLabel               // bra $L
	formUnary               // d, a
	formBinary              // d, a, b
	formTernary             // d, a, b, c
	formParam               // d, [name]
	formLoad                // d, [a+off]
	formLoad2               // {d, d2}, [a+off]
	formStore               // [a+off], b
	formStore2              // [a+off], {b, c}
	formShuffle             // d, a, b, 31, mask of all lanes
	formMove                // unary, or a pair on one side
)

type opcode uint8

const (
	opRet opcode = iota
	opBranch
	opMove
	opMove32
	opPack
	opUnpack
	opAdd
	opAdd32
	opSub
	opSub32
	opMul
	opMulWide
	opAnd
	opOr
	opXor
	opShl
	opShl32
	opShr
	opShr32
	opMax32
	opPopc
	opSelect
	opEq
	opEq32
	opNe
	opNe32
	opLt
	opLt32
	opLe
	opGt
	opGt32
	opGe
	opParam
	opLoad
	opLoad8
	opLoad2
	opStore
	opStore2
	opRedOr
	opRedAdd
	opRedMax
	opShuffle
)

// opcodes are all that is understood. Registers hold 64 bits, and values of 32
// bits are kept zero-extended.
var opcodes = map[string]struct {
	op   opcode
	form form
}{
	"ret": {opRet, formNone}, "bra": {opBranch, formLabel}, "bra.uni": {opBranch, formLabel},

	"mov.b64": {opMove, formMove}, "mov.u64": {opMove, formMove},
	"cvta.to.global.u64": {opMove, formUnary}, "cvta.global.u64": {opMove, formUnary},
	"mov.u32": {opMove32, formUnary}, "mov.b32": {opMove32, formUnary},
	"cvt.u64.u32": {opMove32, formUnary}, "cvt.u32.u64": {opMove32, formUnary},

	"add.s64": {opAdd, formBinary}, "add.s32": {opAdd32, formBinary},
	"sub.s64": {opSub, formBinary}, "sub.s32": {opSub32, formBinary},
	"mul.lo.s64": {opMul, formBinary}, "mul.wide.u32": {opMulWide, formBinary},
	"and.b64": {opAnd, formBinary}, "and.b32": {opAnd, formBinary}, "and.pred": {opAnd, formBinary},
	"or.b64": {opOr, formBinary}, "or.b32": {opOr, formBinary}, "or.pred": {opOr, formBinary},
	"xor.b64": {opXor, formBinary}, "xor.b32": {opXor, formBinary},
	"shl.b64": {opShl, formBinary}, "shl.b32": {opShl32, formBinary},
	"shr.u64": {opShr, formBinary}, "shr.u32": {opShr32, formBinary},
	"max.u32": {opMax32, formBinary}, "popc.b64": {opPopc, formUnary},

	"selp.u64": {opSelect, formTernary}, "selp.b64": {opSelect, formTernary},
	"selp.u32": {opSelect, formTernary}, "selp.b32": {opSelect, formTernary},
	"setp.eq.s64": {opEq, formBinary}, "setp.ne.s64": {opNe, formBinary},
	"setp.eq.s32": {opEq32, formBinary}, "setp.ne.s32": {opNe32, formBinary},
	"setp.lt.u64": {opLt, formBinary}, "setp.lt.u32": {opLt32, formBinary},
	"setp.le.u64": {opLe, formBinary}, "setp.gt.u64": {opGt, formBinary},
	"setp.gt.u32": {opGt32, formBinary}, "setp.ge.u64": {opGe, formBinary},

	"ld.param.u64":  {opParam, formParam},
	"ld.global.u64": {opLoad, formLoad}, "ld.global.u8": {opLoad8, formLoad},
	"ld.global.L1::no_allocate.v2.u64": {opLoad2, formLoad2}, "ld.relaxed.gpu.global.v2.u64": {opLoad2, formLoad2},
	"st.global.u64": {opStore, formStore}, "st.global.cs.v2.u64": {opStore2, formStore2},
	"red.global.or.b64": {opRedOr, formStore}, "red.global.add.u64": {opRedAdd, formStore},
	"red.global.max.u64": {opRedMax, formStore},
	"shfl.sync.down.b32": {opShuffle, formShuffle},
}
