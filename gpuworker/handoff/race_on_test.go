//go:build race

package handoff

const sweepStep = 7
