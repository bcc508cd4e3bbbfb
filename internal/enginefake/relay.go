package enginefake

import (
	"io"
	"net/http"
)

// Relay answers with what another server answered.
func Relay(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left reads nothing
}

// RelayStream passes an answer on as it comes. An answer that breaks off breaks
// off here too.
func RelayStream(w http.ResponseWriter, res *http.Response) {
	defer func() { _ = res.Body.Close() }()
	w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	w.WriteHeader(res.StatusCode)
	c := http.NewResponseController(w)
	b := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(b)
		if n > 0 {
			if _, werr := w.Write(b[:n]); werr != nil || c.Flush() != nil {
				return
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
