//go:build cuda

// Package cudadriver holds what package cu has no binding for. Header, library and
// current context are the same: handles are interchangeable with cu's.
//
// It also starts the CUDA driver before cu does, whose own start ends the process
// with a line that names no cure where there is no GPU. Go starts packages in the
// order of their import paths, each once what it imports is started: this one comes
// before gorgonia.org/cu and imports nothing that cu does not.
package cudadriver

/*
#cgo LDFLAGS: -lcuda
#include <cuda.h>
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func init() {
	if r := C.cuInit(0); r != C.CUDA_SUCCESS {
		fmt.Fprintf(os.Stderr, "pdgate: this build needs an NVIDIA GPU and its driver: cuInit: %s\n", ErrorName(int(r)))
		os.Exit(1)
	}
}

// ErrorName is the name of a CUDA error in its documentation.
func ErrorName(code int) string {
	var s *C.char
	if C.cuGetErrorName(C.CUresult(code), &s) != C.CUDA_SUCCESS {
		return fmt.Sprintf("error %d", code)
	}
	return C.GoString(s)
}

// HostAlloc gives page-locked memory, outside Go's heap, or the number of an error.
func HostAlloc(n int) ([]byte, int) {
	var p unsafe.Pointer
	if r := C.cuMemHostAlloc(&p, C.size_t(n), 0); r != C.CUDA_SUCCESS {
		return nil, int(r)
	}
	return unsafe.Slice((*byte)(p), n), 0
}
