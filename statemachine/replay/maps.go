package replay

import (
	"strings"
	"time"

	"github.com/pdgate/pdgate/statemachine"
)

// PageMap is one worker's pool at the moment of an affected response: whose KV every
// page holds.
type PageMap struct {
	Worker   string
	Time     time.Time
	Position string
	Reader   string
	Tenant   string // of the reader
	Pages    uint64 // of the pool, as far as it was ever used
	Read     []Piece
	Pieces   []Piece
}

// Piece is neighbouring pages with the same KV.
type Piece struct {
	First, Count uint64
	Generation   uint64
	Tenant       string // "" where scrubbed
	Request      string
}

// maxMaps bounds what is drawn.
const maxMaps = 60

// snapshot takes the pool's contents while the response is made.
func (p *pageLog) snapshot(l *life, a *allocation, prompt int, o *statemachine.Observation) {
	if len(p.maps) >= maxMaps || len(a.runs) == 0 || p.shadow {
		return
	}
	m := PageMap{Worker: strings.Clone(a.worker), Time: o.Event.Time, Position: o.Position.String(), Reader: l.owner.request, Tenant: l.owner.tenant}
	for _, h := range p.pools.of(a.worker, a.epoch).spans {
		m.Pages = max(m.Pages, h.end)
		piece := Piece{First: h.start, Count: h.end - h.start, Generation: h.generation}
		if h.owner != nil {
			piece.Tenant, piece.Request = h.owner.tenant, h.owner.request
		}
		m.Pieces = append(m.Pieces, piece)
	}
	prefix(a.runs, 0, pagesFor(prompt, a.tokens), func(from, to, gen uint64) {
		m.Read = append(m.Read, Piece{First: from, Count: to - from, Generation: gen})
		m.Pages = max(m.Pages, to)
	})
	p.maps = append(p.maps, m)
}
