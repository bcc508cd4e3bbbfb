package events

import (
	"encoding/binary"
	"errors"
	"time"
)

// Work is one item of a work queue. It is published after the event that calls
// for it is durable, with that event's id as message id, and holds no prompt.
type Work struct {
	RequestID    string    `json:"request_id" is:"request"`
	Event        string    `json:"event" is:"text"` // id of the event that called for it
	Role         Role      `json:"role" is:"worker"`
	Model        string    `json:"model" is:"model"`
	Tenant       string    `json:"tenant" is:"name"`
	Gateway      string    `json:"gateway" is:"name"`
	PromptTokens int       `json:"prompt_tokens" is:"positive"`
	MaxTokens    int       `json:"max_tokens" is:"positive"`
	PromptDigest string    `json:"prompt_digest" is:"digest"`
	DigestKey    string    `json:"digest_key" is:"hex32"` // hex; key of this request's digests
	GrantEpoch   int       `json:"grant_epoch"`           // decode: last grant so far
	Layout       string    `json:"layout,omitempty" is:"text"`
	Lease        time.Time `json:"lease,omitzero"` // decode: end of the KV's life
	Deadline     time.Time `json:"deadline"`
	Traceparent  string    `json:"traceparent,omitempty" is:"trace"`
}

// PromptRequest asks a gateway for a part of what it holds for a request.
type PromptRequest struct {
	Part   string `json:"part" is:"part"` // "prompt" or "sampling"
	Offset int64  `json:"offset"`         // of the first byte wanted
}

// MaxPromptChunk is the most content bytes in one chunk: a NATS message holds
// 1 MB by default.
const MaxPromptChunk = 512 << 10

// PromptChunk is a gateway's answer: a binary frame, so that nothing a client
// wrote can be read as a command wherever a reply is sent.
type PromptChunk struct {
	Total  int64 // length of the whole part
	Offset int64
	Bytes  []byte
}

const (
	promptMagic = "\x00PDP"
	outputMagic = "\x00PDO"
)

// ErrFrame means that a binary frame is not one.
var ErrFrame = errors.New("frame: wrong magic or length")

// AppendPromptChunk encodes c.
func AppendPromptChunk(dst []byte, c PromptChunk) []byte {
	dst = append(dst, promptMagic...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Total))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Offset))
	return append(dst, c.Bytes...)
}

// ParsePromptChunk decodes a chunk; Bytes aliases b.
func ParsePromptChunk(b []byte) (PromptChunk, error) {
	if len(b) < 20 || string(b[:4]) != promptMagic {
		return PromptChunk{}, ErrFrame
	}
	c := PromptChunk{int64(binary.BigEndian.Uint64(b[4:])), int64(binary.BigEndian.Uint64(b[12:])), b[20:]}
	if c.Total < 0 || c.Offset < 0 || int64(len(c.Bytes)) > c.Total-c.Offset {
		return PromptChunk{}, ErrFrame
	}
	return c, nil
}

// OutputChunk is one piece of output on its way to the gateway. Index is dense
// from 0, so that a lost piece shows; the end is the decoded event.
type OutputChunk struct {
	Index  uint32
	Tokens uint32
	Text   []byte
}

// AppendOutputChunk encodes c.
func AppendOutputChunk(dst []byte, c OutputChunk) []byte {
	dst = append(dst, outputMagic...)
	dst = binary.BigEndian.AppendUint32(dst, c.Index)
	dst = binary.BigEndian.AppendUint32(dst, c.Tokens)
	return append(dst, c.Text...)
}

// ParseOutputChunk decodes a chunk; Text aliases b.
func ParseOutputChunk(b []byte) (OutputChunk, error) {
	if len(b) < 12 || string(b[:4]) != outputMagic {
		return OutputChunk{}, ErrFrame
	}
	return OutputChunk{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[12:]}, nil
}
