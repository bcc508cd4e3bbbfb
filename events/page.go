package events

import "encoding/json"

// PageRun is a run of neighbouring pages of one worker's pool that were
// allocated together. Its wire form is [start, count, generation]: a page list
// of a million-token request must fit one 65,535-byte log entry.
type PageRun struct {
	Start      uint32 // index of the first page
	Count      uint32 // pages in the run, at least 1
	Generation uint64 // the allocation's generation, never reused within a boot epoch
}

// MaxRuns is the most runs one event may name. A pool that would need more for
// one request is fragmented, and answers as if it were full.
const MaxRuns = 1024

// Pages is the number of pages in the runs.
func Pages(runs []PageRun) int {
	n := 0
	for _, r := range runs {
		n += int(r.Count)
	}
	return n
}

// MarshalJSON writes [start,count,generation].
func (r PageRun) MarshalJSON() ([]byte, error) {
	b, err := appendRuns(nil, []PageRun{r})
	if err != nil {
		return nil, err
	}
	return b[1 : len(b)-1], nil
}

// UnmarshalJSON reads [start,count,generation].
func (r *PageRun) UnmarshalJSON(b []byte) error {
	p := parser{b: b}
	p.space()
	run := p.run()
	p.end()
	if p.err != nil {
		return p.err
	}
	*r = run
	return nil
}

var (
	_ json.Marshaler   = PageRun{}
	_ json.Unmarshaler = (*PageRun)(nil)
)
