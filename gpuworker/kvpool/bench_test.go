package kvpool

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// What a transfer does to each byte, beside a plain copy of as many: from a
// memory larger than the caches to staging that fits in them, and the sums.
func BenchmarkBytes(b *testing.B) {
	const size, chunk, key = 128 << 20, 512 << 10, 3
	for _, page := range []int{64 << 10, 2 << 20} {
		p, err := New(Config{Pages: size / page, PageBytes: page, Epoch: testEpoch})
		if err != nil {
			b.Fatal(err)
		}
		pages, step := size/page, max(1, chunk/page)
		a := alloc(b, p, "a", pages)
		w, err := p.BeginWrite(a)
		if err != nil {
			b.Fatal(err)
		}
		pin, err := p.Pin("a", testEpoch, a.Runs())
		if err != nil {
			b.Fatal(err)
		}
		staging := make([]byte, step*page)
		run := func(name string, do func(first int) error) {
			b.Run(fmt.Sprintf("%s/page=%dKiB", name, page>>10), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					for i := 0; i < pages; i += step {
						if err := do(i); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
		memory := p.host.bytes(events.PageRun{Count: uint32(pages)})
		part := func(i int) []byte { return memory[i*page:][:len(staging)] }
		run("memmove out", func(i int) error { copy(staging, part(i)); return nil })
		run("memmove in", func(i int) error { copy(part(i), staging); return nil })
		run("sum", func(i int) error { Sum(key, uint64(i*page/8), part(i)); return nil })
		run("sum word by word", func(i int) error { sumWords(key, part(i)); return nil })
		run("gather and sum", func(i int) error {
			_, err := pin.GatherSum(staging, i, i+step, key)
			return err
		})
		run("receive and sum", func(i int) error {
			_, err := w.Receive(bytes.NewReader(staging), key, i, step)
			return err
		})
		w.End()
		pin.Release()
	}
}
