package kvpool

import (
	"errors"
	"strings"
	"testing"
)

// An account has everything of a pool but the bytes.
func TestAccount(t *testing.T) {
	p, err := New(Config{Pages: 4, Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Alloc("a", 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc("b", 2); !errors.Is(err, ErrFull) {
		t.Errorf("over-committed: %v", err)
	}
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Scatter(0, nil); !errors.Is(err, ErrAccount) {
		t.Errorf("scatter: %v", err)
	}
	if _, err := w.Receive(strings.NewReader("x"), 1, 0, 1); !errors.Is(err, ErrAccount) {
		t.Errorf("receive: %v", err)
	}
	if len(a.Page(0)) != 0 {
		t.Error("a page has bytes")
	}
	done := p.Free(a)
	if isClosed(done) {
		t.Error("pages are free under a writer")
	}
	w.End()
	<-done
	b, err := p.Alloc("b", 4)
	if err != nil || b.Generation() <= a.Generation() {
		t.Errorf("generation %d after %d, %v", b.Generation(), a.Generation(), err)
	}
	if _, err := p.Pin("a", 1, a.Runs()); err == nil {
		t.Error("pages of another generation are pinned")
	}
	if n, err := p.Audit(); n != 0 || err != nil {
		t.Errorf("audit: %d, %v", n, err)
	}
}
