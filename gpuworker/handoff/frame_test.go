package handoff

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

func TestReadHead(t *testing.T) {
	frame := func(ty byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{ty}, n) }
	for _, c := range []struct {
		b  []byte
		ok bool
	}{
		{frame('N', uint32(helloSize)), true},
		{frame('N', uint32(helloSize)+1), false},
		{frame('N', 0), false},
		{frame('G', 0), false},
		{frame('G', maxGrant), true},
		{frame('G', maxGrant+1), false},
		{frame('P', proofSize), true},
		{frame('P', 63), false},
		{frame('V', 0), true},
		{frame('V', maxVerdict+1), false},
		{frame('H', maxHeader+1), false},
		{frame('D', pagesHead), false},
		{frame('D', pagesHead+128), true},
		{frame('D', pagesHead+129), false},
		{frame('D', 1<<32-1), false},
		{frame('T', trailerSize), true},
		{frame('T', trailerSize+1), false},
		{frame(0, 0), false},
		{[]byte{'N', 0, 0}, false},
		{nil, false},
	} {
		if _, _, err := readHead(bytes.NewReader(c.b), 128); (err == nil) != c.ok {
			t.Errorf("% x: %v", c.b, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendHello(nil, make([]byte, nonceSize)))
	f.Add(appendFrame(nil, frameGrant, []byte(`{"grant":{},"signature":""}`)))
	f.Add(appendFrame(nil, frameHeader, []byte(`{"request_id":"a","pages":1}`)))
	f.Add(appendFrame(appendFrame(nil, frameVerdict, nil), frameTrailer, make([]byte, trailerSize)))
	f.Add(appendFrame(nil, framePages, make([]byte, pagesHead+64)))
	f.Add([]byte{'D', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			ty, n, err := readHead(r, 128)
			if err != nil {
				if !errors.Is(err, errFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("unnamed error: %v", err)
				}
				break
			}
			if n > maxHeader {
				t.Fatalf("type %q may have %d bytes", byte(ty), n)
			}
			payload := make([]byte, min(n, r.Len()))
			if _, err := io.ReadFull(r, payload); err != nil || len(payload) < n {
				break
			}
			// What is read is what was written.
			if again := appendFrame(nil, ty, payload); !bytes.HasSuffix(b[:len(b)-r.Len()], again) {
				t.Fatalf("% x was read as % x", b, again)
			}
			if ty == frameHeader {
				_, _ = parseHeader(payload)
			}
			if ty == frameVerdict {
				_ = refusal(payload)
			}
		}
		_, _ = readHello(bytes.NewReader(b))
	})
}
