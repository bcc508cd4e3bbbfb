package journal

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// Error codes of JetStream that a publish can meet.
const (
	codeWrongSequence      = 10071 // wrong last sequence: <n>
	codeWrongSequenceOther = 10164 // wrong last sequence, while another append is on its way
	codeNotLeader          = 10009
	codeInsufficient       = 10023
	codeStorage            = 10047
	codeTooLarge           = 10054
	codeStoreFailed        = 10077
)

// advice says what to do about a publish error; the server's own words come
// with it.
var advice = map[int]string{
	codeNotLeader:    "the stream has no leader now; appends resume by themselves once a majority of its servers is up",
	codeInsufficient: "the server has no storage left for JetStream: free disk space there, or raise max_file_store; acknowledged events are safe, appends resume by themselves",
	codeStorage:      "the storage of the server or the account is full: free disk space, or raise max_file_store; acknowledged events are safe, appends resume by themselves",
	codeTooLarge:     "raise the stream's max_msg_size, or lower the envelope size",
	codeStoreFailed:  "the server could not write: look at its disk and its log; acknowledged events are safe",
}

var errNoResponders = errors.New("append to " + events.LogStream + ": nobody listens: the stream has no leader now, was deleted, or the server lost JetStream (a full or failing disk does that); appends resume by themselves once it is back")

// parseAck reads a publish acknowledgement without reflection: it is on the path
// of every envelope. The server's forms are
//
//	{"stream":"PDGATE","seq":17}
//	{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 16"},"stream":"PDGATE","seq":0}
//
// and an empty payload for "no responders". Only a form that is clearly one of
// these is Stored or Refused.
func parseAck(data []byte) Reply {
	if len(data) == 0 {
		return Reply{Kind: Unknown, Code: 503, Err: errNoResponders}
	}
	if i := bytes.Index(data, []byte(`"error"`)); i >= 0 {
		code, _ := number(data[i:], `"err_code":`)
		switch code {
		case codeWrongSequence, codeWrongSequenceOther:
			hint, _ := number(data[i:], "wrong last sequence: ")
			return Reply{Kind: Refused, Hint: hint, Code: int(code)}
		}
		say := advice[int(code)]
		if say == "" {
			say = "look at the server's log"
		}
		return Reply{Kind: Unknown, Code: int(code), Err: fmt.Errorf("append to %s: %s (JetStream error %d): %s", events.LogStream, description(data[i:]), code, say)}
	}
	seq, ok := number(data, `"seq":`)
	if !ok || seq == 0 || !bytes.Contains(data, []byte(`"stream":"`+events.LogStream+`"`)) {
		return Reply{Kind: Unknown, Err: fmt.Errorf("append to %s: the reply is not a JetStream acknowledgement (%d bytes)", events.LogStream, len(data))}
	}
	return Reply{Kind: Stored, Seq: seq}
}

// number is the decimal number that follows key.
func number(b []byte, key string) (uint64, bool) {
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return 0, false
	}
	b = bytes.TrimLeft(b[i+len(key):], " ")
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(string(b[:n]), 10, 64)
	return v, err == nil
}

// description is the server's sentence, cut to a sane length. It is about
// streams and disks and never quotes a payload.
func description(b []byte) string {
	const key = `"description":"`
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return "no description"
	}
	b = b[i+len(key):]
	if n := bytes.IndexByte(b, '"'); n >= 0 {
		b = b[:n]
	}
	return string(b[:min(len(b), 200)])
}
