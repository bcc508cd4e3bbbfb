package events

import "strconv"

// FinishReason says why an output ended.
type FinishReason string

// Finish reasons that make a request decoded. Anything else is a failure.
const (
	FinishStop   FinishReason = "stop"   // a stop sequence, or the model's end of text
	FinishLength FinishReason = "length" // max_tokens
)

// Real says whether r ends an output properly.
func (r FinishReason) Real() bool { return r == FinishStop || r == FinishLength }

// Error is a refusal or a failure as it is recorded, answered and shown to a
// client. Message holds numbers and names of parameters, never text of a
// prompt or a completion.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message" is:"message"`
	Status  int    `json:"http_status" is:"status"` // what the client gets; 0: the code's own status
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// HTTPStatus is the status a client gets for e.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.HTTPStatus()
}

// NewError is an error with its code's own status.
func NewError(code Code, message string) *Error {
	return &Error{Code: code, Message: message, Status: code.HTTPStatus()}
}

// ContextExceeded is the refusal of a prompt that is too long: count tokens
// were asked for where limit are possible.
func ContextExceeded(what string, count, limit int) *Error {
	return NewError(CodeContextLength, what+": "+strconv.Itoa(count)+" tokens, the limit is "+strconv.Itoa(limit))
}
