package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/gpuworker/engine"
)

// serveBare serves the engine itself over HTTP, and a reverse proxy before it:
// what a deployment has that lets requests through. It returns the proxy's URL.
func serveBare(eng engine.Engine) (string, func(), error) {
	back, stopBack, err := serve(bareHandler(eng))
	if err != nil {
		return "", nil, err
	}
	to, err := url.Parse(back)
	if err != nil {
		stopBack()
		return "", nil, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // at once
		Transport:     transport,
	}
	front, stopFront, err := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Whole, before it is passed on: the engine answers so quickly that the
		// server would close the body under a transport that is about to find its
		// end, and the transport would give the connection up.
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		proxy.ServeHTTP(w, r)
	}))
	if err != nil {
		stopBack()
		return "", nil, err
	}
	return front, func() {
		stopFront()
		transport.CloseIdleConnections()
		stopBack()
	}, nil
}

// serve serves h on a free loopback port.
func serve(h http.Handler) (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { // ends with Close
		defer close(done)
		_ = s.Serve(l) // says that it was closed
	}()
	return "http://" + l.Addr().String(), func() {
		_ = s.Close()
		<-done
	}, nil
}

// bareHandler answers completions from one plain memory, each token as it comes
// and in the form that OpenAI streams have.
func bareHandler(eng engine.Engine) http.Handler {
	type choice struct {
		Index        int     `json:"index"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	}
	type chunk struct {
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in completion
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "malformed", http.StatusBadRequest)
			return
		}
		prompt, sampling := []byte(in.Prompt), engine.Sampling{MaxTokens: in.MaxTokens}
		kv := engine.NewMemory(eng.Info(), len(prompt)+in.MaxTokens)
		pre, err := eng.Prefill(r.Context(), engine.PrefillJob{Prompt: prompt, Sampling: sampling, KV: kv})
		if err != nil || pre.Refused != nil {
			http.Error(w, "refused", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		id, created, flush := "cmpl-"+uuid.NewString(), time.Now().Unix(), http.NewResponseController(w)
		send := func(text string, reason *string) error {
			b, err := json.Marshal(chunk{id, "text_completion", created, in.Model, []choice{{0, text, reason}}})
			if err != nil {
				return err
			}
			if _, err := w.Write(append(append([]byte("data: "), b...), "\n\n"...)); err != nil {
				return err
			}
			return flush.Flush()
		}
		dec, err := eng.Decode(r.Context(), engine.DecodeJob{PromptTokens: pre.PromptTokens, First: pre.First, Sampling: sampling, KV: kv},
			func(text []byte, _ int) error { return send(string(text), nil) })
		if err != nil {
			return // the stream ends without its last line, which the client notices
		}
		reason := string(dec.FinishReason)
		if send("", &reason) == nil {
			_, _ = w.Write([]byte("data: [DONE]\n\n")) // a client that left needs none
		}
	})
}
