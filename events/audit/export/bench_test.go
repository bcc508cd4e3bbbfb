package export

import (
	"io"
	"testing"
)

// One op is a leaf.
func BenchmarkWrite(b *testing.B) {
	all := testLog(b)[1:10]
	for _, f := range Formats() {
		b.Run(string(f), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			err := Write(io.Discard, f, func(yield func(Record, error) bool) {
				for b.Loop() {
					r := all[i%len(all)]
					r.Seq = uint64(i + 1)
					if i++; !yield(r, nil) {
						return
					}
				}
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
