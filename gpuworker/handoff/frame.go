package handoff

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

type frameType byte

const (
	frameHello   frameType = 'N'
	frameGrant   frameType = 'G'
	frameProof   frameType = 'P'
	frameVerdict frameType = 'V'
	frameHeader  frameType = 'H'
	framePages   frameType = 'D'
	frameTrailer frameType = 'T'
)

const (
	frameHead   = 5 // type and length
	pagesHead   = 4 // index of the first page in a pages frame
	nonceSize   = 32
	helloSize   = len(magic) + nonceSize
	proofSize   = 64
	trailerSize = 8 + 64

	magic = "pdgate\x00\x01" // the last byte is the version

	maxGrant   = 256 << 10 // a grant of events.MaxRuns runs takes 50 KB
	maxVerdict = 4 << 10
	maxHeader  = 2 << 20 // an engine's opaque reference lists its blocks
	maxChunk   = 4 << 20 // of pages, where a page is not larger
)

// errFrame is what every malformed frame is.
var errFrame = errors.New("malformed frame")

// putHead writes a frame's head.
func putHead(dst []byte, t frameType, n int) {
	dst[0] = byte(t)
	binary.BigEndian.PutUint32(dst[1:], uint32(n))
}

// appendFrame appends a whole frame.
func appendFrame(dst []byte, t frameType, payload []byte) []byte {
	dst = append(dst, byte(t), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(dst[len(dst)-4:], uint32(len(payload)))
	return append(dst, payload...)
}

// readHead reads a frame's head and bounds the length by what the type may
// have, before anything is allocated for it. pages is the bound for pages.
func readHead(r io.Reader, pages int) (frameType, int, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	t, n := frameType(head[0]), binary.BigEndian.Uint32(head[1:])
	lo, hi := 0, 0
	switch t {
	case frameHello:
		lo, hi = helloSize, helloSize
	case frameGrant:
		lo, hi = 1, maxGrant
	case frameProof:
		lo, hi = proofSize, proofSize
	case frameVerdict:
		lo, hi = 0, maxVerdict
	case frameHeader:
		lo, hi = 1, maxHeader
	case framePages:
		lo, hi = pagesHead+1, pagesHead+pages
	case frameTrailer:
		lo, hi = trailerSize, trailerSize
	default:
		return 0, 0, fmt.Errorf("%w: type 0x%02x", errFrame, head[0])
	}
	if uint64(n) < uint64(lo) || uint64(n) > uint64(hi) {
		return 0, 0, fmt.Errorf("%w: %d bytes in a frame of type %q", errFrame, n, byte(t))
	}
	return t, int(n), nil
}

// readFrame reads one small frame of the wanted type.
func readFrame(r io.Reader, want frameType) ([]byte, error) {
	t, n, err := readHead(r, 0)
	if err != nil {
		return nil, err
	}
	if t != want {
		return nil, fmt.Errorf("%w: type %q where %q is due", errFrame, byte(t), byte(want))
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}

func appendHello(dst, nonce []byte) []byte {
	return appendFrame(dst, frameHello, append([]byte(magic), nonce...))
}

func readHello(r io.Reader) (nonce []byte, err error) {
	b, err := readFrame(r, frameHello)
	if err != nil {
		return nil, err
	}
	if string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: the peer speaks another protocol or version", errFrame)
	}
	return b[len(magic):], nil
}

// header says what follows. Everything in it but Reference and First must equal
// the grant; those two are good once the trailer is.
type header struct {
	RequestID    string `json:"request_id"`
	GrantEpoch   int    `json:"grant_epoch"`
	PromptTokens int    `json:"prompt_tokens"`
	Pages        int    `json:"pages"`
	KVBytes      int64  `json:"kv_bytes"`
	KVDigest     string `json:"kv_digest"`
	Layout       string `json:"layout"`
	Reference    []byte `json:"reference,omitempty"`
	First        []byte `json:"first,omitempty"`
	LeaseUS      int64  `json:"lease_us,omitempty"` // with a reference: what is left of the lease, by the owner's clock
}

func parseHeader(b []byte) (*header, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	h := new(header)
	if err := d.Decode(h); err != nil {
		return nil, fmt.Errorf("%w: header", errFrame)
	}
	if d.InputOffset() != int64(len(b)) {
		return nil, fmt.Errorf("%w: bytes after the header", errFrame)
	}
	return h, nil
}
