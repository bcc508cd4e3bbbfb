package handoff

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/events"
)

func TestTransfer(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		for _, pages := range []int{1, 2, 21, 100} {
			r := newRig(t, network, 100, 4096, func(c *Config, _ *PullerConfig) { c.ChunkBytes = 10 * 4096 })
			o, want := r.offer(requestID(1), pages)
			into := r.reserve(o.RequestID, pages)
			got, err := r.pull(r.grant(o, 1), into)
			if err != nil {
				t.Fatalf("%d pages: %v", pages, err)
			}
			if !bytes.Equal(r.content(into, pages), want) {
				t.Errorf("%d pages: other bytes arrived", pages)
			}
			if got.KVRequest != o.RequestID || got.KVBytes != int64(len(want)) || got.KVDigest != o.Digest.String() ||
				got.PromptTokens != o.PromptTokens || string(got.First) != "!" || string(got.Reference) != "ref" || got.Duration <= 0 {
				t.Errorf("%d pages: pulled %+v", pages, got)
			}
			if res := r.result(); res.Err != nil || res.Bytes != int64(len(want)) || res.GrantEpoch != 1 || res.Worker != "d1" {
				t.Errorf("%d pages: owner recorded %+v", pages, res)
			}
			r.idle()
			wait(t, "drain", r.server.Drain(o.RequestID))
			wait(t, "free", r.ownerPool.Free(o.Alloc))
			if st := r.server.Stats(); st.Offers != 0 || st.Completed != 1 {
				t.Errorf("stats %+v", st)
			}
		}
	})
}

// A reservation may be larger than the prompt, and its rest stays poisoned.
func TestTransferIntoLargerReservation(t *testing.T) {
	r := newRig(t, "unix", 8, 64)
	o, want := r.offer(requestID(1), 3)
	into := r.reserve(o.RequestID, 5)
	if _, err := r.pull(r.grant(o, 1), into); err != nil {
		t.Fatal(err)
	}
	got := r.content(into, 5)
	if !bytes.Equal(got[:3*64], want) || !bytes.Equal(got[3*64:], bytes.Repeat([]byte{0xff}, 2*64)) {
		t.Error("the pages are not the prompt's KV and poison")
	}
}

func TestConcurrentPulls(t *testing.T) {
	each(t, func(t *testing.T, network string) {
		const n, pages = 64, 4
		r := newRig(t, network, n*pages, 12288)
		var wg sync.WaitGroup
		for i := range n {
			o, want := r.offer(requestID(i), pages)
			into := r.reserve(o.RequestID, pages)
			signed := r.sign(r.grant(o, 1))
			wg.Go(func() {
				if _, err := r.puller.Pull(t.Context(), Pull{RequestID: o.RequestID, Grant: signed, Key: kvKey, Into: into}); err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				if !bytes.Equal(r.content(into, pages), want) {
					t.Errorf("request %d: other bytes arrived", i)
				}
			})
		}
		wg.Wait()
		for range n {
			if res := r.result(); res.Err != nil {
				t.Error(res.Err)
			}
		}
		r.idle()
	})
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", fi, err)
	}
	if _, err := Listen("unix://" + path); err == nil {
		t.Error("a socket in use was taken over")
	}
	l.path = "" // as after a crash: the file stays
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = Listen("unix://" + path)
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket file stayed")
	}
}

func TestListenRefusesAddresses(t *testing.T) {
	for _, a := range []string{"", "127.0.0.1:1", "http://127.0.0.1:1", "tcp://127.0.0.1", "unix://relative", "unix:///" + string(bytes.Repeat([]byte{'a'}, 120))} {
		if l, err := Listen(a); err == nil {
			t.Errorf("%q was accepted", a)
			_ = l.Close()
		}
	}
}

func TestOfferRefusesWhatIsNotTheRequests(t *testing.T) {
	r := newRig(t, "unix", 4, 64)
	o, _ := r.offer(requestID(1), 1)
	if err := r.server.Offer(o); err == nil {
		t.Error("offered twice")
	}
	other := o
	other.RequestID = requestID(2)
	if err := r.server.Offer(other); err == nil {
		t.Error("offered under another request's name")
	}
}

// The code an error carries is the one that goes on record.
func TestCodeOf(t *testing.T) {
	if c := CodeOf(errFrame); c != events.CodeTransferFailed {
		t.Error(c)
	}
	if c := CodeOf(refusal([]byte(`{"code":"lease_over","message":"x"}`))); c != events.CodeLeaseOver {
		t.Error(c)
	}
}
