package sglangfake

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

func TestF01UnguardedSGLang(t *testing.T) { unguarded(t, "F01") }
func TestF02UnguardedSGLang(t *testing.T) { unguarded(t, "F02") }
func TestF03UnguardedSGLang(t *testing.T) { unguarded(t, "F03") }
func TestF04UnguardedSGLang(t *testing.T) { unguarded(t, "F04") }
func TestF05UnguardedSGLang(t *testing.T) { unguarded(t, "F05") }
func TestF06UnguardedSGLang(t *testing.T) { unguarded(t, "F06") }
func TestF07UnguardedSGLang(t *testing.T) { unguarded(t, "F07") }
func TestF08UnguardedSGLang(t *testing.T) { unguarded(t, "F08") }
func TestF09UnguardedSGLang(t *testing.T) { unguarded(t, "F09") }
func TestF10UnguardedSGLang(t *testing.T) { unguarded(t, "F10") }
func TestF11UnguardedSGLang(t *testing.T) { unguarded(t, "F11") }
func TestF12UnguardedSGLang(t *testing.T) { unguarded(t, "F12") }
func TestF13UnguardedSGLang(t *testing.T) { unguarded(t, "F13") }
func TestF30UnguardedSGLang(t *testing.T) { unguarded(t, "F30") }

// Every scenario has a test above.
func TestEveryScenarioIsPlayed(t *testing.T) {
	played := map[string]bool{
		"F01": true, "F02": true, "F03": true, "F04": true, "F05": true, "F06": true, "F07": true, "F08": true, "F09": true, "F10": true, "F11": true, "F12": true, "F13": true, "F30": true,
	}
	for _, s := range Scenarios() {
		if !played[s.Row] {
			t.Errorf("%s (%s) is not played", s.Row, s.Name)
		}
	}
}
