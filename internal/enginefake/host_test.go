package enginefake

import (
	"net/http"
	"testing"
)

func TestHost(t *testing.T) {
	var stops, boots int
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	front := http.NewServeMux()
	front.HandleFunc("/v1/completions", RequireKey("secret", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		select {
		case <-leave:
		case <-r.Context().Done():
		}
	}))
	h, err := NewHost(front, http.NotFoundHandler(), nil, func() { stops++ }, func() { boots++ })
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	url := h.URL()
	if r := Do(t.Context(), url, Call{}); r.Status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", r.Status)
	}
	call := Call{Header: map[string]string{"Authorization": "Bearer secret"}}
	for what, cut := range map[string]func(){"cut": h.Cut, "crash": h.Crash} {
		if err := h.Restart(); err != nil {
			t.Fatal(err)
		}
		pending := Go(t.Context(), url, call)
		<-entered
		cut()
		if r := pending.Wait(); r.Err == nil {
			t.Errorf("%s: the client had an answer: %d", what, r.Status)
		}
		if r := Do(t.Context(), url, Call{}); (r.Err == nil) != (what == "cut") {
			t.Errorf("after the %s: %d %v", what, r.Status, r.Err)
		}
	}
	if err := h.Restart(); err != nil || h.URL() != url {
		t.Fatalf("%v, at %s", err, h.URL())
	}
	close(leave)
	if r := Do(t.Context(), url, call); r.Status != http.StatusOK {
		t.Errorf("after a restart: %d %v", r.Status, r.Err)
	}
	if boots != 3 || stops != 4 {
		t.Errorf("%d boots, %d stops", boots, stops)
	}
	if seen := h.Generations(); len(seen) < 5 || !seen[1].Aborted {
		t.Errorf("%+v", seen)
	}
	h.Close()
	if err := h.Restart(); err != nil {
		t.Error(err)
	}
	if r := Do(t.Context(), url, call); r.Err == nil {
		t.Error("a closed host is back")
	}
}
