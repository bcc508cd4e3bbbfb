package kvpool

import (
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// CheckPages is [Pin.Check] for pages [from, to) of the pin: a long copy that
// goes out in chunks verifies each one after its copy, and all of them at the
// end.
func (pin *Pin) CheckPages(from, to int) error {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	switch {
	case pin.released:
		return fmt.Errorf("check: %w", ErrReleased)
	case from < 0 || to <= from || to > pin.Pages():
		return fmt.Errorf("kvpool: pages [%d,%d) of a pin of %d", from, to, pin.Pages())
	}
	pin.pool.mu.Lock()
	defer pin.pool.mu.Unlock()
	for r, end := range pin.ends {
		run := pin.runs[r]
		first := end - int(run.Count)
		lo, hi := max(from, first), min(to, end)
		if lo >= hi {
			continue
		}
		part := events.PageRun{Start: run.Start + uint32(lo-first), Count: uint32(hi - lo), Generation: run.Generation}
		if err := pin.pool.verifyAgain(pin.owner, pin.epoch, []events.PageRun{part}); err != nil {
			return fmt.Errorf("check: %w", err)
		}
	}
	return nil
}
