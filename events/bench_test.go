package events

import "testing"

func BenchmarkAppend(b *testing.B) {
	buf := make([]byte, 0, 4096)
	for _, e := range fullEvents() {
		b.Run(string(e.Type), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Append(buf, e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, e := range fullEvents() {
		line, err := Append(nil, e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(e.Type), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if _, err := Decode(line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecoder(b *testing.B) {
	for _, e := range fullEvents() {
		line, err := Append(nil, e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(e.Type), func(b *testing.B) {
			var d Decoder
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if _, err := d.Decode(line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendAnswer(b *testing.B) {
	buf, a := make([]byte, 0, 4096), sampleAnswer()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := AppendAnswer(buf, a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeCommand(b *testing.B) {
	for _, c := range fullCommands() {
		line, err := AppendCommand(nil, c)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(c.Type), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeCommand(c.Type, line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
