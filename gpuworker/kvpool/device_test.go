package kvpool_test

import "os"

// testDevice is the device that tests of whole nodes run on: the interpreter, or,
// in a build for CUDA, the one that PDGATE_TEST_DEVICE names.
var testDevice = func() string {
	if d := os.Getenv("PDGATE_TEST_DEVICE"); d != "" {
		return d
	}
	return "interpreter"
}()
