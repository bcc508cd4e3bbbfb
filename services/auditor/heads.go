package auditor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// headsFile holds the chain heads as of some committed size. It is a cache: what it
// lacks is read from the tiles, and without it everything is.
const headsFile = "heads"

// heads are the ends of all tenants' chains in the tree: one for each tenant and
// partition, whatever the log's length.
type heads struct {
	tenants map[string]map[int]audit.Head
	count   int
	saved   int64 // size of the tree at the last save
}

func newHeads() *heads { return &heads{tenants: map[string]map[int]audit.Head{}} }

func (h *heads) set(tenant string, end audit.Head) {
	chains := h.tenants[tenant]
	if chains == nil {
		chains = map[int]audit.Head{}
		h.tenants[tenant] = chains
	}
	if _, ok := chains[end.Partition]; !ok {
		h.count++
	}
	chains[end.Partition] = end
}

// of lists the tenant's heads.
func (h *heads) of(tenant string) []audit.Head {
	var out []audit.Head
	for _, end := range h.tenants[tenant] {
		out = append(out, end)
	}
	return out
}

// mark is what an event does beside being a leaf: it ends its tenant's chain, or
// asks for a tenant's epoch leaves behind it.
type mark struct {
	line   int // of the message
	tenant string
	head   audit.Head // zero Seq: the event asks
}

// markOf is the mark of an event, if it has one. Strings of e are copied.
func markOf(e *events.Event, line []byte, at, partitions int) (mark, bool) {
	if d, ok := e.Data.(*events.AuditRead); ok && d.Kind == events.ReadExport && d.Tenant != "" {
		return mark{line: at, tenant: strings.Clone(d.Tenant)}, true
	}
	if e.TenantSeq == 0 || !events.ValidName(e.Tenant) {
		return mark{}, false
	}
	// The partition is the request's, and not the one of the subject that the message
	// came on: the tree alone gives the same.
	return mark{line: at, tenant: strings.Clone(e.Tenant), head: audit.Head{
		Partition: events.PartitionOf(e.Subject, partitions), Seq: e.TenantSeq, Hash: events.Hash(line),
	}}, true
}

// headsHead is the first line of the file; the heads follow, a line each.
type headsHead struct {
	Size   int64     `json:"size"`
	Root   tlog.Hash `json:"root"`   // of the tree of that size
	SHA256 string    `json:"sha256"` // of what follows, in hex
}

// headsAfter is the least number of leaves between two saves.
const headsAfter = 65_536

// enough says whether so much has come since the last save that another one is
// due, which is at least so many leaves. The work of saving stays in proportion to that of building.
func (h *heads) enough(size, least int64) bool { return size-h.saved >= max(least, 4*int64(h.count)) }

// save writes the heads of a committed tree.
func (h *heads) save(s *store, st *state) error {
	var body bytes.Buffer
	for tenant, chains := range h.tenants {
		for _, end := range chains {
			fmt.Fprintf(&body, "%s %d %d %s\n", tenant, end.Partition, end.Seq, end.Hash)
		}
	}
	sum := sha256.Sum256(body.Bytes())
	first, err := json.Marshal(headsHead{Size: st.Size, Root: st.Root, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return fmt.Errorf("encode chain heads: %w", err)
	}
	if err := s.put(headsFile, append(append(first, '\n'), body.Bytes()...)); err != nil {
		return err
	}
	h.saved = st.Size
	return nil
}

// loadHeads makes the heads of the committed tree from the file and the leaves that
// came after it. Why the file was of no use is the second result.
func loadHeads(s *store, st *state, partitions int) (h *heads, useless, err error) {
	h, useless = readHeads(s, st)
	if useless != nil {
		h = newHeads()
	}
	var d events.Decoder
	for leaf, err := range s.tiles.Leaves(h.saved, st.Size, st.Size) {
		if err != nil {
			return nil, useless, s.bad("tile/entries", "%w; %s", err, restore)
		}
		if !isEvent(leaf) {
			continue
		}
		e, err := d.Decode(leaf)
		if err != nil {
			return nil, useless, s.bad("tile/entries", "%w; %s", err, restore)
		}
		if m, ok := markOf(e, leaf, 0, partitions); ok && m.head.Seq > 0 {
			h.set(m.tenant, m.head)
		}
	}
	return h, useless, nil
}

func readHeads(s *store, st *state) (*heads, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, headsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return newHeads(), nil
	}
	if err != nil {
		return nil, err
	}
	first, body, _ := bytes.Cut(b, []byte("\n"))
	var head headsHead
	if err := json.Unmarshal(first, &head); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	switch {
	case head.Size < 0 || head.Size > st.Size:
		return nil, fmt.Errorf("they are of %d leaves, and the tree has %d", head.Size, st.Size)
	case head.SHA256 != hex.EncodeToString(sum[:]):
		return nil, errors.New("the file is damaged")
	}
	root := audit.NewTree(nil).Root()
	if head.Size > 0 {
		if root, err = tlog.TreeHash(head.Size, s.tiles.Hashes(st.head())); err != nil {
			return nil, err
		}
	}
	if root != head.Root {
		return nil, errors.New("they are another tree's")
	}
	h := newHeads()
	h.saved = head.Size
	for line := range strings.Lines(string(body)) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, errors.New("the file is damaged")
		}
		partition, err1 := strconv.Atoi(f[1])
		seq, err2 := strconv.ParseUint(f[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		h.set(f[0], audit.Head{Partition: partition, Seq: seq, Hash: f[3]})
	}
	return h, nil
}
