//go:build !cuda

package kvpool

import "errors"

func openCUDA(int) (Driver, error) {
	return nil, errors.New("device cuda: this binary is built without CUDA (docs/gpu.md says how to build the one with it)")
}
