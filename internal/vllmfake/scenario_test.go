package vllmfake

import (
	"context"
	"testing"
	"time"
)

// unguarded plays the scenarios of a row without a gate.
func unguarded(t *testing.T, row string) {
	t.Helper()
	found := Find(row)
	if len(found) == 0 {
		t.Fatalf("no scenario for %s", row)
	}
	for _, s := range found {
		t.Run(s.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w, err := s.RunNaive(ctx)
			if w != nil {
				defer w.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestF08UnguardedVLLM(t *testing.T) { unguarded(t, "F08") }
func TestF12UnguardedVLLM(t *testing.T) { unguarded(t, "F12") }
func TestF13UnguardedVLLM(t *testing.T) { unguarded(t, "F13") }
func TestF14UnguardedVLLM(t *testing.T) { unguarded(t, "F14") }
func TestF15UnguardedVLLM(t *testing.T) { unguarded(t, "F15") }
func TestF16UnguardedVLLM(t *testing.T) { unguarded(t, "F16") }
func TestF17UnguardedVLLM(t *testing.T) { unguarded(t, "F17") }
func TestF18UnguardedVLLM(t *testing.T) { unguarded(t, "F18") }
func TestF19UnguardedVLLM(t *testing.T) { unguarded(t, "F19") }
func TestF20UnguardedVLLM(t *testing.T) { unguarded(t, "F20") }
func TestF21UnguardedVLLM(t *testing.T) { unguarded(t, "F21") }
func TestF22UnguardedVLLM(t *testing.T) { unguarded(t, "F22") }
func TestF23UnguardedVLLM(t *testing.T) { unguarded(t, "F23") }
func TestF24UnguardedVLLM(t *testing.T) { unguarded(t, "F24") }
func TestF25UnguardedVLLM(t *testing.T) { unguarded(t, "F25") }
func TestF26UnguardedVLLM(t *testing.T) { unguarded(t, "F26") }
func TestF27UnguardedVLLM(t *testing.T) { unguarded(t, "F27") }

// Every scenario has a test above.
func TestEveryScenarioIsPlayed(t *testing.T) {
	played := map[string]bool{
		"F08": true, "F12": true, "F13": true, "F14": true, "F15": true, "F16": true, "F17": true, "F18": true, "F19": true,
		"F20": true, "F21": true, "F22": true, "F23": true, "F24": true, "F25": true, "F26": true, "F27": true,
	}
	for _, s := range Scenarios() {
		if !played[s.Row] {
			t.Errorf("%s (%s) is not played", s.Row, s.Name)
		}
	}
}
