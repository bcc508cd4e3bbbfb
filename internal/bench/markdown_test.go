package bench

import (
	"strings"
	"testing"
)

// TestMarkdown: a document keeps what is its author's, and has the tables of the
// last run of each bench.
func TestMarkdown(t *testing.T) {
	r := example(t)
	first, err := r.Markdown("")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.md", first)
	doc := "# Title\n\nbefore\n\n<!-- bench service -->\nold\n<!-- end of bench service -->\n\nafter\n\n<!-- bench journal -->\nkept\n<!-- end of bench journal -->\n"
	got, err := r.Markdown(doc)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Title\n\nbefore\n\n<!-- bench service -->\n\nMeasured: ", "<!-- end of bench service -->\n\nafter\n", "\nkept\n", "<!-- bench growth -->", "<!-- bench trace t.jsonl -->"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\nold\n") {
		t.Error("the earlier run's tables are still there")
	}
	if again, err := r.Markdown(got); err != nil || again != got {
		t.Errorf("the same run again changes the document: %v", err)
	}
	if _, err := r.Markdown("<!-- bench service -->\n"); err == nil || !strings.Contains(err.Error(), "have no end") {
		t.Errorf("tables without an end: %v", err)
	}
}
