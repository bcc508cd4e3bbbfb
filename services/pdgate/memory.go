package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Go's default lets a heap grow to twice what lives in it before it collects
// garbage. What lives here is small beside what a loaded service allocates each
// second, so a heap gets heapRoom of garbage where it may still be within
// mostPercent; one that is larger than heapRoom gets the default.
const (
	heapRoom     = 128 << 20 // bytes
	leastPercent = 100
	mostPercent  = 400
)

// gcPercent is the setting, as GOGC, for a heap in which so many bytes live.
func gcPercent(live uint64) int {
	return int(min(max(100*heapRoom/max(live, 1), leastPercent), mostPercent))
}

// tuneGC sets the percentage for the heap as it is, now and after each
// collection. GOMEMLIMIT counts all the same.
func tuneGC() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	set := 0
	tune := func() {
		metrics.Read(live)
		// Setting it stops the world for a moment: small changes are not worth that.
		if p := gcPercent(live[0].Value.Uint64()); p-set >= 20 || set-p >= 20 {
			set = p
			debug.SetGCPercent(p)
		}
	}
	type sentinel struct{ _ *byte } // with a pointer, it shares its place with nothing
	var collected func(*sentinel)
	collected = func(s *sentinel) {
		tune()
		runtime.SetFinalizer(s, collected)
	}
	tune()
	runtime.SetFinalizer(new(sentinel), collected)
}
