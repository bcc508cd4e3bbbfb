// Package ptx runs PTX, the assembly that a GPU's driver translates, on the CPU:
// the part of it that this module's kernels are compiled to. It lets the embedded
// kernels themselves, not a copy of their source, run in ordinary tests.
//
// It is strict where a GPU is not: an unknown instruction is an error when the
// module is parsed; an access outside every allocation, one that is not naturally
// aligned and a shuffle that not all lanes of a warp reach end the launch.
//
// Blocks run one after the other, and so do the lanes of a warp between two
// shuffles. It therefore finds no data races.
package ptx
