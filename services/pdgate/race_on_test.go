//go:build race

package main

// underRace says that the race detector slows every memory access down: tests
// then send less, since what they look for is not found by size.
const underRace = true
