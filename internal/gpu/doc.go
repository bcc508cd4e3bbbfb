// Package gpu proves a machine before it is trusted: the conformance suite of the
// pool's devices and the reference engine on the device, against host memory; and
// then how fast the device's kernels are beside its own plain copy, in the same run.
package gpu
