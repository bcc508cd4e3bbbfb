package engine

import (
	"encoding/json"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// maxReference bounds an engine's reference: it travels in one frame.
const maxReference = 1 << 20

// vllmReference is what is looked at of a node's transfer parameters.
type vllmReference struct {
	Prefill   *bool           `json:"do_remote_prefill"`
	Decode    *bool           `json:"do_remote_decode"`
	Blocks    json.RawMessage `json:"remote_block_ids"`
	EngineID  string          `json:"remote_engine_id"`
	Host      string          `json:"remote_host"`
	Port      json.Number     `json:"remote_port"`
	RequestID *string         `json:"remote_request_id"`
}

// checkReference says whether a prefill node's transfer parameters are complete,
// and reads them. An object that lacks something is worse than none:
// decode would compute the prompt again, or fail an assertion. It is only looked
// at here; what is handed off are the bytes as they came.
func checkReference(raw json.RawMessage) (r vllmReference, err error) {
	no := func(what string) error {
		return events.NewError(events.CodePrefillFailed, "the engine's reference is not complete: "+what)
	}
	if len(raw) == 0 || string(raw) == "null" {
		return r, no("there is none, as after an abort or where the connector is off")
	}
	if len(raw) > maxReference {
		return r, no("it is longer than 1 MiB")
	}
	if json.Unmarshal(raw, &r) != nil {
		return r, no("a field has the wrong type")
	}
	port, _ := r.Port.Int64()
	switch {
	case r.Prefill == nil || !*r.Prefill || r.Decode != nil && *r.Decode:
		return r, no("do_remote_prefill")
	case !word(r.EngineID, 256):
		return r, no("remote_engine_id")
	case !word(r.Host, 255):
		return r, no("remote_host")
	case port < 1 || port > 65535:
		return r, no("remote_port")
	case r.RequestID != nil && !word(*r.RequestID, 512): // older builds have none
		return r, no("remote_request_id")
	case !someBlocks(r.Blocks):
		return r, no("remote_block_ids")
	}
	return r, nil
}

// word says whether s is something that one names things with.
func word(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// someBlocks says whether there is a block: in a flat list, or in one list for
// each KV group. Which ones is the engine's affair.
func someBlocks(raw json.RawMessage) bool {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return false
	}
	for _, e := range list {
		var group []json.RawMessage
		switch {
		case len(e) == 0 || string(e) == "null":
			return false
		case e[0] != '[':
			return true
		case json.Unmarshal(e, &group) == nil && len(group) > 0:
			return true
		}
	}
	return false
}
