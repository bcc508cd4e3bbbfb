package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Config names the nodes that are to serve one model together.
type Config struct {
	Prefill, Decode []string      // base URLs
	Timeout         time.Duration // of one node, all that is asked of it; 0: DefaultTimeout
}

// Fleet reads all nodes at once and judges them. It takes as long as the slowest
// one, and at most Timeout.
func Fleet(ctx context.Context, cfg Config) (Report, error) {
	timeout := cfg.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	nodes := make([]Facts, len(cfg.Prefill)+len(cfg.Decode))
	var wg sync.WaitGroup
	for i, url := range slices.Concat(cfg.Prefill, cfg.Decode) {
		if err := CheckURL(url); err != nil {
			wg.Wait()
			return Report{}, err
		}
		role := events.RolePrefill
		if i >= len(cfg.Prefill) {
			role = events.RoleDecode
		}
		wg.Go(func() { nodes[i] = read(ctx, url, role, timeout) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return judge(nodes), nil
}

// Node judges one node alone: whether it answers, its version, and whether its
// pool holds its context. It is what a worker asks about the engine that it
// fronts. An error means that url is none, or that ctx ended.
func Node(ctx context.Context, url string) (Report, error) {
	if err := CheckURL(url); err != nil {
		return Report{}, fmt.Errorf("engine: %w", err)
	}
	f := read(ctx, url, "", DefaultTimeout)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	f.Role = events.Role(f.Mode)
	if f.Role != events.RolePrefill && f.Role != events.RoleDecode {
		f.Role = ""
	}
	r := Report{Nodes: []Facts{f}, Findings: judgeNode(&f)}
	r.Sort()
	return r, nil
}

// Workers judges the workers that are registered and alive, model by model.
func Workers(all []events.WorkerView) Report {
	models := map[string][]Facts{}
	for _, w := range all {
		if w.Live {
			models[w.Model] = append(models[w.Model], OfWorker(&w.WorkerJoined))
		}
	}
	var r Report
	for _, nodes := range byName(models) {
		r.Add(judge(nodes))
	}
	r.Sort()
	return r
}

// Worker judges one registered worker against those of the other role that serve
// the same model and are alive.
func Worker(name string, all []events.WorkerView) Report {
	var nodes []Facts
	i := slices.IndexFunc(all, func(w events.WorkerView) bool { return w.Worker == name })
	if i < 0 {
		return Report{}
	}
	self := &all[i]
	nodes = append(nodes, OfWorker(&self.WorkerJoined))
	for _, w := range all {
		if w.Live && w.Model == self.Model && w.Role != self.Role {
			nodes = append(nodes, OfWorker(&w.WorkerJoined))
		}
	}
	return judge(nodes)
}

func byName(m map[string][]Facts) [][]Facts {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	out := make([][]Facts, len(names))
	for i, n := range names {
		slices.SortFunc(m[n], func(a, b Facts) int { return strings.Compare(a.Node, b.Node) })
		out[i] = m[n]
	}
	return out
}
