package lifecycle

import "sync"

// counts are sums over all partitions that admissions look at. A decided
// admission counts from the decision on: it holds a reservation until the log
// settles its envelope, so that admissions of one tenant that are decided at the
// same moment, in one partition or in several, see each other.
//
// Other replicas' decisions count once they are folded. A limit can therefore be
// passed by what two replicas decide within one round trip; the facts in the
// event show what was known.
type counts struct {
	mu     sync.Mutex
	tenant map[string]int // open requests; guarded by mu
	model  map[string]int // open requests; guarded by mu
	queue  map[string]int // by model: requests in admitted; guarded by mu
}

func newCounts() *counts {
	return &counts{tenant: map[string]int{}, model: map[string]int{}, queue: map[string]int{}}
}

func add(m map[string]int, key string, n int) {
	if v := m[key] + n; v == 0 {
		delete(m, key)
	} else {
		m[key] = v
	}
}

// add changes a tenant's and a model's open requests, and the model's waiting ones.
func (c *counts) add(tenant string, open int, model string, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(c.tenant, tenant, open)
	add(c.model, model, open)
	add(c.queue, model, waiting)
}

func (c *counts) of(tenant, model string) (open, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tenant[tenant], c.queue[model]
}

func (c *counts) open(model string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.model[model]
}

func (c *counts) waiting() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[string]int, len(c.queue))
	for k, v := range c.queue {
		m[k] = v
	}
	return m
}
