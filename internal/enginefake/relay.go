package enginefake

import (
	"crypto/subtle"
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

// RequireKey answers 401 to who does not have the key; with an empty one, nobody
// needs it.
func RequireKey(key string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if key != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+key)) != 1 {
			WriteJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		h(w, r)
	}
}
