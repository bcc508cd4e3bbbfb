package lifecycle

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// A wheel fires what a sorted list would fire, never early and at most a tick
// late.
func TestWheelAgainstModel(t *testing.T) {
	for seed := uint64(1); seed <= 50; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(1_700_000_000, int64(rng.IntN(1e9)))
		var w wheel
		w.advance(now, func(string) { t.Fatalf("seed %d: an empty wheel fires", seed) })
		timers := map[string]*timer{}
		due := map[string]time.Time{}
		for step := range 2000 {
			switch rng.IntN(5) {
			case 0, 1:
				id := strconv.Itoa(rng.IntN(200))
				if timers[id] == nil {
					timers[id] = &timer{id: id}
				}
				at := now.Add(time.Duration(rng.Int64N(int64(3*wheelSlots*wheelTick))) - time.Second)
				w.set(timers[id], at)
				if at.Before(now) {
					at = now // over when it was set: due at once
				}
				due[id] = at
			case 2:
				id := strconv.Itoa(rng.IntN(200))
				if timers[id] != nil {
					w.remove(timers[id])
					w.remove(timers[id])
					delete(due, id)
				}
			default:
				d := time.Duration(rng.Int64N(int64(20 * wheelTick)))
				if rng.IntN(50) == 0 {
					d = time.Duration(rng.Int64N(int64(2 * wheelSlots * wheelTick)))
				}
				now = now.Add(d)
				w.advance(now, func(id string) {
					at, ok := due[id]
					if !ok {
						t.Fatalf("seed %d step %d: %s fires and is not set", seed, step, id)
					}
					if now.Before(at) {
						t.Fatalf("seed %d step %d: %s fires %s early", seed, step, id, at.Sub(now))
					}
					delete(due, id)
				})
				for id, at := range due {
					if now.Sub(at) > 2*wheelTick {
						t.Fatalf("seed %d step %d: %s is %s late", seed, step, id, now.Sub(at))
					}
				}
			}
			if w.size != len(due) {
				t.Fatalf("seed %d step %d: %d timers in the wheel, want %d", seed, step, w.size, len(due))
			}
		}
	}
}

// What fire sets or removes is neither lost nor fired twice.
func TestWheelFireSetsAndRemoves(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var w wheel
	w.advance(now, nil)
	all := make([]*timer, 10)
	for i := range all {
		all[i] = &timer{id: strconv.Itoa(i)}
		w.set(all[i], now.Add(time.Second))
	}
	fired := map[string]int{}
	fire := func(id string) {
		fired[id]++
		i, _ := strconv.Atoi(id)
		w.remove(all[(i+1)%10]) // the neighbour, whichever way the list runs
		w.remove(all[(i+9)%10])
		if fired[id] == 1 {
			w.set(all[i], now.Add(time.Second)) // over already: fires next time
		}
	}
	w.advance(now.Add(2*time.Second), fire)
	w.advance(now.Add(3*time.Second), fire)
	w.advance(now.Add(4*time.Second), fire)
	if len(fired) == 0 || w.size != 0 {
		t.Fatalf("fired %v, %d left", fired, w.size)
	}
	for id, n := range fired {
		if n > 2 {
			t.Errorf("%s fired %d times", id, n)
		}
	}
}
