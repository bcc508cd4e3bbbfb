package enginefake

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Outcome is what a client got, in the order of how bad it is.
type Outcome string

// The outcomes.
const (
	WasRight   Outcome = "right"   // 200, complete, the model's own answer
	WasRefused Outcome = "refused" // an error, in the status or in the stream
	WasBroken  Outcome = "broken"  // the connection broke, or the answer is incomplete and says so by that
	WasWrong   Outcome = "wrong"   // 200, and text that is not the answer's
)

// Judge compares a reply with the right text. Text that is not a beginning of it
// is wrong, whatever came after.
func (r *Reply) Judge(right string) Outcome {
	for _, text := range r.Text {
		if len(text) > len(right) || right[:len(text)] != text {
			return WasWrong
		}
	}
	stream := r.Header.Get("Content-Type") != "application/json"
	switch {
	case r.Status != 0 && r.Status != 200 || r.Message != "" || r.FinishFirst() == FinishAbort || r.FinishFirst() == FinishError:
		return WasRefused
	case r.Err != nil || r.Status == 0 || r.FinishFirst() == "" || stream && !r.Done:
		return WasBroken
	case r.First() != right:
		return WasWrong
	}
	return WasRight
}

// Storm starts n calls at once and leaves each of them at a random moment: before
// its answer, in it, or after it. It returns once all have ended.
func Storm(ctx context.Context, base string, seed uint64, n int, call func(i int) Call) []*Reply {
	random := rand.New(rand.NewPCG(seed, 2))
	out := make([]*Reply, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		stay := time.Duration(random.ExpFloat64() * float64(20*time.Millisecond))
		wg.Go(func() {
			<-start
			ctx, leave := context.WithTimeout(ctx, stay)
			defer leave()
			r := Do(ctx, base, call(i))
			out[i] = &r
		})
	}
	close(start)
	wg.Wait()
	return out
}

// Soak sends n calls, some of them together, and counts their outcomes. ask gives
// a call and the right text for it.
func Soak(ctx context.Context, base string, n, together int, ask func(i int) (c Call, right string)) map[Outcome]int {
	got := map[Outcome]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c, right := ask(i)
			r := Do(ctx, base, c)
			mu.Lock()
			defer mu.Unlock()
			got[r.Judge(right)]++
		})
	}
	wg.Wait()
	return got
}
