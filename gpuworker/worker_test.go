package gpuworker

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// Prefill and decode in two workers with two pools answer what one plain run
// answers, byte for byte, over both transports.
func TestAnswersEqualTheMonolithicRun(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			w := newWorld(t, statemachine.Guards{})
			e := newEngine(t, engine.Config{})
			listen := ""
			if network == "unix" {
				listen = socket(t, "p1")
			}
			p := w.start(events.RolePrefill, "p1", e, 200, func(c *Config) { c.Listen = listen })
			d := w.start(events.RoleDecode, "d1", e, 200)
			var calls []*call
			for i, s := range []events.Sampling{
				{MaxTokens: 24}, {MaxTokens: 200, Stop: []string{".\n"}}, {MaxTokens: 40, Temperature: 0.7, Seed: 7}, {MaxTokens: 1},
			} {
				calls = append(calls, w.submit(quiz(fmt.Sprintf("city %d", i), fmt.Sprintf("%d-alpha", i*37), 100+2000*i), s))
			}
			for _, c := range calls {
				r := w.wait(c)
				if r.State != events.Decoded {
					t.Fatalf("%s: %s, %v", c.id, r.State, r.Error)
				}
				want := expected(t, e, c)
				got := w.text(c)
				if !bytes.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
				if r.Decoded.OutputDigest != events.Digest(events.RequestKey(w.secret, c.id), events.KindOutput, got) {
					t.Error("the output digest is of other bytes")
				}
				if r.Decoded.CompletionTokens != len(got) {
					t.Errorf("%d completion tokens in %d bytes", r.Decoded.CompletionTokens, len(got))
				}
			}
			w.queues[events.RolePrefill].empty(t)
			w.queues[events.RoleDecode].empty(t)
			p.idle()
			d.idle()
			p.clean()
			d.clean()
			ps, ds := p.Stats(), d.Stats()
			if ps.Prefilled != 4 || ds.Decoded != 4 || ds.Transfers != 4 || ps.Released != 4 || ds.Released != 4 || ps.Handoff.Completed != 4 {
				t.Errorf("stats %+v and %+v", ps, ds)
			}
		})
	}
}
