package engine_test

import (
	"fmt"
	"testing"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/enginetest"
)

func suite(name string) enginetest.Suite {
	const notes = "You answer from these notes.\n" +
		"Q: What is the capital of France?\nA: Paris\n" +
		"Q: What is the capital of Japan?\nA: Tokyo\n" +
		"Q: Who wrote Faust?\nA: Goethe\n" +
		"region=eu-central-1\nreplicas=7\nowner=team-blue\nreplicas=9\n"
	chat := func(q string) string {
		return string(engine.Chat([]engine.Message{
			{Role: "user", Content: "Where is the depot?"}, {Role: "assistant", Content: "In Ghent"},
			{Role: "user", Content: "When does it open?"}, {Role: "assistant", Content: "At nine"},
			{Role: "user", Content: q},
		}))
	}
	return enginetest.Suite{
		New: func(o enginetest.Options) (engine.Engine, error) {
			return engine.New(engine.Config{Name: name, ContextTokens: o.ContextTokens, MaxInputTokens: o.MaxInputTokens, Threads: o.Threads})
		},
		Answers: map[string]string{
			notes + "Q: What is the capital of Japan?\nA:":  " Tokyo",
			notes + "Q: What is the capital of France?\nA:": " Paris",
			notes + "Q: Who wrote Faust?\nA:":               " Goethe",
			notes + "region=":                               "eu-central-1",
			notes + "replicas=":                             "9", // the later of two
			notes + "user: owner=":                          "team-blue",
			chat("Where is the depot?"):                     " In Ghent",
			chat("When does it open?"):                      " At nine",
		},
	}
}

func TestRefConformance(t *testing.T) { enginetest.Run(t, suite("ref")) }

// faulty is a good engine but for the one thing, and the suite sees that thing.
func TestFaultyConformance(t *testing.T) {
	for _, c := range enginetest.Checks() {
		err := c.Run(t.Context(), suite("faulty"))
		if bug := c.Name == "refuses oversize"; bug != (err != nil) {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}

// A prompt that ends with the 40 bytes before some place is continued from that
// place, byte for byte, at every size: so every page can be probed.
func TestRefRecitesAnyPlace(t *testing.T) {
	eng, err := engine.New(engine.Config{Threads: 2, ContextTokens: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{200, 5_000, 40_000} {
		doc := enginetest.Prose(uint64(n), n)
		for _, at := range []int{40, n / 3, n / 2, n - 101} {
			p := append(append([]byte{}, doc...), doc[at-40:at]...)
			got, _, err := engine.Complete(t.Context(), eng, p, engine.Sampling{MaxTokens: 60})
			if want := doc[at : at+60]; err != nil || string(got) != string(want) {
				t.Errorf("size %d at %d: %v\n%q\n%q", n, at, err, got, want)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []engine.Config{
		{Name: "gpt"}, {ContextTokens: -1}, {ContextTokens: 10, MaxInputTokens: 11}, {MaxInputTokens: -1},
		{Threads: -1}, {Silent: true},
	} {
		if eng, err := engine.New(cfg); err == nil {
			t.Errorf("%+v: %+v", cfg, eng.Info())
		}
	}
	eng, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	i := eng.Info()
	if i.Name != "ref" || i.Model != "ref" || i.MaxInputTokens != engine.DefaultContextTokens || i.PageBytes() != 12_288 || i.TokenBytes != 192 {
		t.Errorf("%+v", i)
	}
}

func TestChat(t *testing.T) {
	got := string(engine.Chat([]engine.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hi"}}))
	if want := "system: Be brief.\nuser: Hi\nassistant:"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Another temperature draws another text; the same seed draws the same.
func TestTemperature(t *testing.T) {
	eng, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{}
	for i := range 6 {
		out, _, err := engine.Complete(t.Context(), eng, enginetest.Prose(1, 500), engine.Sampling{MaxTokens: 30, Temperature: 20, Seed: int64(i / 2)})
		if err != nil {
			t.Fatal(err)
		}
		texts[fmt.Sprintf("%q", out)] = true
	}
	if len(texts) != 3 {
		t.Errorf("%d texts from 3 seeds: %v", len(texts), texts)
	}
}
