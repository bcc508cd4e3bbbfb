package kvpool

import "fmt"

// CheckPages is [Pin.Check] for pages [from, to) of the pin: a long copy that
// goes out in chunks verifies each one after its copy, and all of them at the
// end.
func (pin *Pin) CheckPages(from, to int) error {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	if from == to {
		return fmt.Errorf("kvpool: a check of no pages")
	}
	runs, err := pin.part(from, to)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	pin.pool.mu.Lock()
	defer pin.pool.mu.Unlock()
	if err := pin.pool.verifyAgain(pin.owner, pin.epoch, runs); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}
