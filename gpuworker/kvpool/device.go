package kvpool

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// Device is the memory behind a pool. It keeps a tag beside each page and looks
// at it inside the copy, so that a copy is refused where the page table and the
// memory disagree about whose a page is. The pool has verified and fenced before
// it calls; the device is the second who knows.
//
// Runs are pages of the pool, in the order of the copy, with the generation that
// each must carry; owner must be their tag's too. Byte slices hold exactly those
// pages. The sum is the partial [Sum] under key of the copy's bytes, the first of
// which is word number word. Where a call fails, dst is wiped. Calls on different
// pages may be concurrent. Everything a call stores is visible to every later one.
type Device interface {
	// Gather copies pages out.
	Gather(dst []byte, runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error)
	// Scatter copies pages in.
	Scatter(runs []events.PageRun, src []byte, owner Owner, key, word uint64) (sum uint64, err error)
	// Sum is Gather's without the copy.
	Sum(runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error)
	// Scrub overwrites pages that nobody owns with the pattern.
	Scrub(runs []events.PageRun, pattern uint64) error
	// Audit counts the words that differ from the pattern, whoever owns the pages.
	Audit(runs []events.PageRun, pattern uint64) (int, error)
	// Retag gives pages that carry from the tag to. The runs' generations are not
	// looked at.
	Retag(runs []events.PageRun, from, to Tag) error
}

// ErrDevice is what every failure of a device is: not a page that was refused, but
// a call that did not come to its end. The device's memory is not to be trusted
// any more.
var ErrDevice = errors.New("kvpool: the device failed")

// Owner stands for a request and a boot epoch in the tag of a page. 0 is nobody.
type Owner uint64

// Tag is what a device keeps beside each page. The zero tag is that of a page
// that nobody owns.
type Tag struct {
	Owner      Owner
	Generation uint64
}

// ownerOf shortens a page's owner to what a kernel compares.
func ownerOf(owner string, epoch uint64) Owner {
	b := binary.LittleEndian.AppendUint64(nil, epoch)
	h := sha256.Sum256(append(b, owner...))
	return max(1, Owner(binary.LittleEndian.Uint64(h[:])))
}

// refusal is the error of a page whose tag is not the wanted one. status holds
// bits of [kernels].
func refusal(page uint32, status uint64) error {
	code, message := events.CodeInternal, fmt.Sprintf("the device refuses the page: status %d", status)
	switch {
	case status&kernels.StatusTorn != 0:
		code, message = events.CodePageGeneration, "page changed hands during the copy"
	case status&kernels.StatusGeneration != 0:
		code, message = events.CodePageGeneration, "page carries another generation"
	case status&kernels.StatusOwner != 0:
		code, message = events.CodePageOwner, "page carries another owner"
	}
	return pageError(page, code, message)
}

// pagesIn is the number of pages in runs.
func pagesIn(runs []events.PageRun) (n int) {
	for _, r := range runs {
		n += int(r.Count)
	}
	return n
}

// checkSize refuses bytes that are not exactly the runs' pages.
func checkSize(bytes int, runs []events.PageRun, pageBytes int) error {
	if n := pagesIn(runs); bytes != n*pageBytes {
		return fmt.Errorf("kvpool: a copy of %d bytes for %d pages", bytes, n)
	}
	return nil
}
