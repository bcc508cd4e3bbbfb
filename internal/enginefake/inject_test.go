package enginefake

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// What a client sees of each fault, on a server that is well.
func TestInjectedFaults(t *testing.T) {
	body := `{"choices":[{"text":"` + strings.Repeat("fine ", 400) + `","finish_reason":"stop"}],"kv_transfer_params":`
	for _, fault := range Faults() {
		t.Run(string(fault), func(t *testing.T) {
			i, served, restarts := NewInjector(3, 1, fault), 0, 0
			i.OnRestart(func() { restarts++ })
			s, err := Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served++
				_, _ = io.WriteString(w, body+`"reference `+string(rune('0'+served))+`"}`)
			}), i)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if r := Do(t.Context(), s.URL(), Call{Path: "/other"}); r.Status != 200 || r.FinishFirst() != FinishStop {
				t.Errorf("a request that generates nothing: %d, %v", r.Status, r.Err)
			}
			call := Call{Body: map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true}}}
			first, second := Do(t.Context(), s.URL(), call), Do(t.Context(), s.URL(), call)
			whole := func(r Reply) bool { return r.Err == nil && r.Status == 200 && r.FinishFirst() == FinishStop }
			switch r := second; fault {
			case FaultStatus:
				if r.Status < 400 || r.Message == "" || r.Code != r.Status || served != 1 {
					t.Errorf("%d %s, %d served", r.Status, r.Raw, served)
				}
			case FaultDelay, FaultRestart:
				if !whole(r) || (restarts == 2) != (fault == FaultRestart) {
					t.Errorf("%d %v, %d restarts", r.Status, r.Err, restarts)
				}
			case FaultDisconnect:
				if r.Err == nil || r.Status != 0 {
					t.Errorf("%d %v", r.Status, r.Err)
				}
			case FaultTruncate:
				if !errors.Is(r.Err, io.ErrUnexpectedEOF) && r.Status != 0 || whole(r) {
					t.Errorf("%d %v", r.Status, r.Err)
				}
			case FaultShorten:
				if r.Err != nil || r.Status != 200 || len(r.Raw) >= 600 || whole(r) {
					t.Errorf("%d %v, %d bytes", r.Status, r.Err, len(r.Raw))
				}
			case FaultNull:
				if !whole(r) || !strings.Contains(string(r.Raw), `"kv_transfer_params":null`) {
					t.Errorf("%d %s", r.Status, r.Raw)
				}
			case FaultReuse:
				// The first of the two answers had no earlier one to take from.
				if !whole(r) || !strings.Contains(string(first.Raw), `"reference 2"`) || !strings.Contains(string(r.Raw), `"reference 2"`) {
					t.Errorf("%s, then %s", first.Raw, r.Raw)
				}
			}
			if n := i.Counts()[fault]; n != 2 {
				t.Errorf("counted %d", n)
			}
			i.Stop()
			if r := Do(t.Context(), s.URL(), call); !whole(r) {
				t.Errorf("after the stop: %d %v", r.Status, r.Err)
			}
		})
	}
}

// A seed is a sequence of faults.
func TestSeedReproduces(t *testing.T) {
	draw := func(seed uint64) (out []plan) {
		i := NewInjector(seed, 0.5, Faults()...)
		for range 50 {
			out = append(out, i.plan())
		}
		return out
	}
	if !reflect.DeepEqual(draw(1), draw(1)) || reflect.DeepEqual(draw(1), draw(2)) {
		t.Error("the plans do not follow from the seed")
	}
}
