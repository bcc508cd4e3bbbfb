package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pdgate/pdgate/events"
)

// MaxLeaf is the longest leaf in bytes: an entry's length stands in two bytes.
const MaxLeaf = 65_535

// MaxChains is the most chains that one epoch leaf names. More are continued in
// the next leaf; a leaf that is not full is the epoch's last.
const MaxChains = 512

// ErrLeaf is what every malformed leaf is.
var ErrLeaf = errors.New("leaf is not in canonical form")

// Leaf is one leaf, read: exactly one member is set.
type Leaf struct {
	Event   *events.Event
	Gap     *Gap
	Foreign *Foreign
	Epoch   *Epoch
}

// Gap says that the stream has none of the sequences From to To.
type Gap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// Foreign stands for a stored message whose MAC is missing or wrong, or whose
// lines do not decode.
type Foreign struct {
	Seq    uint64 `json:"seq"`
	SHA256 string `json:"sha256"` // of subject, '\n' and payload, in hex
}

// Epoch says where the tenant's chains end just before it in the log: directly
// after the event at Seq.Line, which asked for it.
type Epoch struct {
	Seq    uint64 `json:"seq"`
	Line   int    `json:"line"`
	Tenant string `json:"tenant"`
	Chains []Head `json:"chains"` // by ascending partition, MaxChains at most
}

// Head is the end of a tenant's chain in one partition.
type Head struct {
	Partition int    `json:"partition"` // events.OpsPartition for operations
	Seq       uint64 `json:"seq"`       // tenantseq of the chain's last event
	Hash      string `json:"head"`      // events.Hash of that event
}

// marker is what a leaf that is no event is written from.
type marker struct {
	Gap     *Gap     `json:"pdgate_gap,omitempty"`
	Foreign *Foreign `json:"pdgate_foreign,omitempty"`
	Epoch   *Epoch   `json:"pdgate_epoch,omitempty"`
}

// NewForeign makes the marker of a message that is not the log's own.
func NewForeign(seq uint64, subject string, payload []byte) *Foreign {
	h := sha256.New()
	h.Write([]byte(subject))
	h.Write([]byte{'\n'})
	h.Write(payload)
	return &Foreign{Seq: seq, SHA256: hex.EncodeToString(h.Sum(nil))}
}

// NewEpochs makes the leaves that follow an event at pos: one, or more where the
// tenant has MaxChains chains or more. A tenant of no events gets one without
// chains; a name that no tenant can have gets none.
func NewEpochs(pos events.Position, tenant string, chains []Head) []*Epoch {
	if !events.ValidName(tenant) {
		return nil
	}
	chains = slices.Clone(chains)
	slices.SortFunc(chains, func(a, b Head) int { return a.Partition - b.Partition })
	var out []*Epoch
	for {
		n := min(len(chains), MaxChains)
		out = append(out, &Epoch{Seq: pos.Seq, Line: pos.Line, Tenant: tenant, Chains: append([]Head{}, chains[:n]...)})
		if n < MaxChains {
			return out
		}
		chains = chains[n:]
	}
}

// Append appends the leaf's bytes.
func (g *Gap) Append(b []byte) []byte { return appendMarker(b, &marker{Gap: g}) }

// Append appends the leaf's bytes.
func (f *Foreign) Append(b []byte) []byte { return appendMarker(b, &marker{Foreign: f}) }

// Append appends the leaf's bytes.
func (e *Epoch) Append(b []byte) []byte { return appendMarker(b, &marker{Epoch: e}) }

func appendMarker(b []byte, m *marker) []byte {
	j, err := json.Marshal(m)
	if err != nil {
		panic(err) // numbers and strings always marshal
	}
	return append(b, j...)
}

// ParseLeaf reads a leaf in canonical form and no other. An event of a type that
// this build does not know is [events.ErrUnknownType].
func ParseLeaf(b []byte) (*Leaf, error) {
	if len(b) > MaxLeaf {
		return nil, fmt.Errorf("leaf of %d bytes: want %d at most", len(b), MaxLeaf)
	}
	if !bytes.HasPrefix(b, []byte(`{"pdgate_`)) {
		e, err := events.Decode(b)
		if err != nil {
			return nil, fmt.Errorf("leaf: %w", err)
		}
		return &Leaf{Event: e}, nil
	}
	var m marker
	// Whatever the decoder lets pass, two spellings of a name or a doubled one, the
	// encoder writes in one form: only that form is a leaf.
	if err := json.Unmarshal(b, &m); err != nil || !bytes.Equal(appendMarker(nil, &m), b) {
		return nil, ErrLeaf
	}
	set := 0
	for _, there := range []bool{m.Gap != nil, m.Foreign != nil, m.Epoch != nil} {
		if there {
			set++
		}
	}
	if set != 1 {
		return nil, ErrLeaf
	}
	return &Leaf{Gap: m.Gap, Foreign: m.Foreign, Epoch: m.Epoch}, m.check()
}

func (m *marker) check() error {
	switch {
	case m.Gap != nil && (m.Gap.From == 0 || m.Gap.To < m.Gap.From):
		return fmt.Errorf("gap %d to %d: want ascending sequences from 1: %w", m.Gap.From, m.Gap.To, ErrLeaf)
	case m.Foreign != nil:
		sum, err := hex.DecodeString(m.Foreign.SHA256)
		if m.Foreign.Seq == 0 || err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != m.Foreign.SHA256 {
			return fmt.Errorf("foreign: want a sequence and 64 hex digits in lower case: %w", ErrLeaf)
		}
	case m.Epoch != nil:
		return m.Epoch.check()
	}
	return nil
}

func (e *Epoch) check() error {
	if e.Seq == 0 || e.Line < 0 || !events.ValidName(e.Tenant) {
		return fmt.Errorf("epoch: want a position and a tenant's name: %w", ErrLeaf)
	}
	if e.Chains == nil || len(e.Chains) > MaxChains {
		return fmt.Errorf("epoch: want %d chains at most: %w", MaxChains, ErrLeaf)
	}
	return checkHeads("epoch", e.Chains)
}

// checkHeads wants whole heads in ascending order of partitions.
func checkHeads(what string, heads []Head) error {
	for i, h := range heads {
		if h.Partition < events.OpsPartition || h.Seq == 0 || !validHash(h.Hash) || i > 0 && h.Partition <= heads[i-1].Partition {
			return fmt.Errorf("%s: chains[%d]: want whole heads by ascending partition: %w", what, i, ErrLeaf)
		}
	}
	return nil
}
