package enginefake

import (
	"context"
	"sync"
)

// Stage is a place in a request where a test can hold it.
type Stage string

// The stages. Not every engine has all of them.
const (
	AtPrefill  Stage = "prefill"  // before the prompt's KV is written
	AtAnswer   Stage = "answer"   // before prefill's answer is sent
	AtTransfer Stage = "transfer" // before KV moves between the nodes
	AtDecode   Stage = "decode"   // before the first token is computed
)

// Gates hold requests at stages. The zero value holds nothing.
type Gates struct {
	mu     sync.Mutex
	stages map[Stage]*stage // under mu
}

type stage struct {
	held   int             // how many holds there are
	queue  []chan struct{} // those that wait, the first to come first
	passed int
}

// at returns the state of a stage. The caller has g.mu.
func (g *Gates) at(s Stage) *stage {
	if g.stages == nil {
		g.stages = map[Stage]*stage{}
	}
	if g.stages[s] == nil {
		g.stages[s] = &stage{}
	}
	return g.stages[s]
}

// Hold makes all requests wait at the stage until the returned function is
// called.
func (g *Gates) Hold(s Stage) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at(s).held++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		st := g.at(s)
		if st.held--; st.held > 0 {
			return
		}
		for _, ch := range st.queue {
			close(ch)
		}
		st.queue = nil
	})
}

// Let lets one request through that waits at the stage: 0 is the one that came
// first.
func (g *Gates) Let(s Stage, i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if st := g.at(s); i < len(st.queue) {
		close(st.queue[i])
		st.queue = append(st.queue[:i:i], st.queue[i+1:]...)
	}
}

// Pass waits while the stage is held.
func (g *Gates) Pass(ctx context.Context, s Stage) error {
	g.mu.Lock()
	st := g.at(s)
	ch := make(chan struct{})
	if st.held > 0 {
		st.queue = append(st.queue, ch)
	} else {
		close(ch)
	}
	g.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-ch:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range st.queue {
		if c == ch {
			st.queue = append(st.queue[:i:i], st.queue[i+1:]...)
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	st.passed++
	return nil
}

// Waiting is how many requests are held at the stage.
func (g *Gates) Waiting(s Stage) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.at(s).queue)
}

// Passed is how many requests have passed the stage.
func (g *Gates) Passed(s Stage) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at(s).passed
}
