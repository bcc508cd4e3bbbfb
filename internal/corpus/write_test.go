package corpus_test

import (
	"bufio"
	"os"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
)

func TestTmpWrite(t *testing.T) {
	out := os.Getenv("CORPUS_OUT")
	if out == "" {
		t.Skip()
	}
	f, _ := os.Create(out)
	l, _ := os.Create(out + ".jsonl")
	b := bufio.NewWriter(l)
	w := replay.NewTraceWriter(f, events.DefaultPartitions)
	_, err := corpus.Incident(corpus.IncidentConfig{Seed: 1}, func(e *events.Envelope) error { b.Write(e.Lines); return w.Add(e) })
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	b.Flush()
	f.Close()
	l.Close()
}
