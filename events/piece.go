package events

import (
	"bytes"
	"encoding/json"
)

// Piece is one piece of the output of an engine that reads the client's own
// body: one choice, whose members are as the engine wrote them. The text of such
// a request's [OutputChunk] is pieces, a line of JSON for each; a chunk may end
// anywhere. Whatever else an engine puts into its answers does not travel: its
// ids, its usage, its transfer parameters.
type Piece struct {
	Text     json.RawMessage `json:"text,omitempty"`    // of a completion
	Message  json.RawMessage `json:"message,omitempty"` // of a chat in one piece
	Delta    json.RawMessage `json:"delta,omitempty"`   // of a chat in pieces
	Logprobs json.RawMessage `json:"logprobs,omitempty"`

	FinishReason *string         `json:"finish_reason"` // the engine's own word; null while it goes on
	StopReason   json.RawMessage `json:"stop_reason,omitempty"`
}

// AppendPiece appends the piece and a line break.
func AppendPiece(dst []byte, p *Piece) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b) // compacts the raw members: no line break is left in them
	e.SetEscapeHTML(false)
	err := e.Encode(p)
	return b.Bytes(), err
}

// DecodePiece decodes one line. Its errors quote nothing.
func DecodePiece(line []byte) (*Piece, error) {
	p := new(Piece)
	if json.Unmarshal(line, p) != nil {
		return nil, wrong("", "want a piece of output")
	}
	return p, nil
}
