package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Codes of refusals that never leave the HTTP edge. Everything else is an
// [events.Code].
const (
	codeTooLarge   events.Code = "request_too_large"
	codeMediaType  events.Code = "unsupported_media_type"
	codeRoute      events.Code = "unknown_route"
	codeMethod     events.Code = "method_not_allowed"
	codeSlowClient events.Code = "request_timeout"
)

// failure is an answer other than the one asked for. Its message holds numbers
// and the names of fields and models, never content.
type failure struct {
	status  int
	code    events.Code
	message string
	param   string        // the field that is at fault
	retry   time.Duration // when to come back; 0: as the status has it
	lost    bool          // output went missing: lifecycle must hear of it
}

func (f *failure) Error() string { return string(f.code) + ": " + f.message }

func newFailure(code events.Code, message string) *failure {
	return &failure{status: code.HTTPStatus(), code: code, message: message}
}

func edgeFailure(status int, code events.Code, message string) *failure {
	return &failure{status: status, code: code, message: message}
}

// quarantineRetry is when to come back to a model that a person has to restore.
const quarantineRetry = time.Minute

// recorded is a rejection's or a failure's own error, with its own status.
func recorded(e *events.Error) *failure {
	f := &failure{status: e.HTTPStatus(), code: e.Code, message: e.Message}
	if f.status < 400 || f.status > 599 { // an engine's error must not pass for an answer
		f.status = http.StatusInternalServerError
	}
	if e.Code == events.CodeModelQuarantined {
		f.retry = quarantineRetry
	}
	return f
}

// cancelled is how a request ended that somebody did not want any more.
func cancelled(reason events.Code) *failure {
	what := "the request was cancelled"
	if reason == events.CodeModelQuarantined {
		what = "the model was quarantined while the request was open"
	}
	return recorded(events.NewError(reason, what))
}

// refused is what a command met that was not recorded.
func refused(err error) *failure {
	var e *events.Error
	if !errors.As(err, &e) {
		return newFailure(events.CodeUnavailable, "the lifecycle service does not answer")
	}
	switch e.Code {
	case events.CodeMalformed, events.CodeForbidden:
		// The gateway's own fault, or its credentials': nothing that the client can mend.
		return newFailure(events.CodeInternal, "the lifecycle service refused the gateway's command")
	}
	return recorded(e)
}

// misread is a body that was not understood.
func misread(err error) *failure {
	var b *bodyError
	if !errors.As(err, &b) {
		return newFailure(events.CodeInvalidRequest, "the body cannot be read")
	}
	code := events.CodeInvalidRequest
	if b.forbidden {
		code = events.CodeForbiddenField
	}
	f := newFailure(code, b.Error())
	f.param = b.field
	return f
}

// kind is OpenAI's error type.
func (f *failure) kind() string {
	switch {
	case f.status == http.StatusUnauthorized:
		return "authentication_error"
	case f.status == http.StatusForbidden:
		return "permission_error"
	case f.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case f.status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// retryAfter is the header's value, in whole seconds.
func (f *failure) retryAfter() string {
	if f.status != http.StatusTooManyRequests && f.status != http.StatusServiceUnavailable {
		return ""
	}
	return strconv.Itoa(max(1, int((f.retry+time.Second-1)/time.Second)))
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func (f *failure) body() errorBody {
	d := errorDetail{Message: f.message, Type: f.kind(), Code: string(f.code)}
	if f.param != "" {
		d.Param = &f.param
	}
	return errorBody{d}
}
