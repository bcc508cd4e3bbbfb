package process

import (
	"context"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// up is `pdgate up` on a data directory.
type up struct {
	*proc
	data, url, nats string
	ring            *keyring.Ring
}

// startUp runs pdgate up with the tests' API key and waits until it is ready.
func startUp(t *testing.T, data string, args ...string) *up {
	t.Helper()
	u := &up{data: data}
	writeTenants(t, filepath.Join(data, "tenants.yaml"))
	u.proc = start(t, nil, "up", append([]string{pdgate(t)}, upArgs(data, args...)...)...)
	await(t, "up is ready", patience, func() bool {
		select {
		case <-u.done:
			t.Fatalf("up ended: exit code %d: %s", u.code(), u.stderr.String())
		default:
		}
		u.url, u.nats = read(data, "run", "gateway-url"), read(data, "run", "nats-url")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return u.url != "" && u.nats != "" && get(ctx, u.url+"/ready") == 200
	})
	var err error
	if u.ring, err = keyring.Load(filepath.Join(data, "keys")); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *up) stop(t *testing.T) {
	t.Helper()
	if err := u.signal(sigint); err != nil {
		t.Fatal(err)
	}
	if took, err := u.ended(stopLimit); err != nil || u.code() != 0 {
		t.Errorf("up: exit code %d after %v: %v", u.code(), took, err)
	}
	checkLog(t, u.proc)
}

// upArgs is a command line of `pdgate up` on free ports.
func upArgs(data string, args ...string) []string {
	return append([]string{"up", "--data", data, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0",
		"--context", "4096", "--pool-tokens", "32768", "--decode-pool-tokens", "32768", "--log-level", "warn"}, args...)
}

// ask sends requests that must be answered, and returns their ids.
func (u *up) ask(t *testing.T, n int) (ids []string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	r := rand.New(rand.NewPCG(uint64(len(u.data)), 7))
	for range n {
		var o outcome
		prompt, most := question(r)
		if err := o.ask(client, u.url, prompt, most); err != nil || o.status != http.StatusOK {
			t.Fatalf("HTTP %d %s: %v", o.status, o.code, err)
		}
		ids = append(ids, o.id)
	}
	return ids
}

// lists waits until all requests are listed, and looks at one of them as people
// do.
func (u *up) lists(t *testing.T, ids []string) {
	t.Helper()
	nc := connect(t, u.nats, u.ring, keyring.Operator)
	defer nc.Close()
	op := operator(t, nc)
	await(t, "the earlier requests are listed", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		v, err := op.List(ctx, events.ListQuery{State: events.Decoded, Limit: events.MaxListLimit})
		if err != nil {
			return false
		}
		listed := map[string]bool{}
		for _, r := range v.Requests {
			listed[r.RequestID] = true
		}
		for _, id := range ids {
			if !listed[id] {
				return false
			}
		}
		return true
	})
	for _, args := range [][]string{{"list", "--all"}, {"history", ids[0]}} {
		p := run(t, nil, append([]string{"request", "--data", u.data}, args...)...)
		if p.code() != 0 || !strings.Contains(p.stdout.String(), "decoded") {
			t.Errorf("request %v: exit code %d: %s%s", args, p.code(), p.stdout.String(), p.stderr.String())
		}
	}
}

// try sends one request and returns the status of the answer; 0 if none came.
func (u *up) try() int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	var o outcome
	prompt, most := question(rand.New(rand.NewPCG(1, 2)))
	_ = o.ask(client, u.url, prompt, most) // the status says it
	return o.status
}

func awaitReady(t *testing.T, url string) {
	t.Helper()
	await(t, "ready", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return get(ctx, url+"/ready") == http.StatusOK
	})
}
