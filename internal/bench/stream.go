package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// completion is the body of a request for a streamed completion.
type completion struct {
	Model     string `json:"model"`
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
	Stream    bool   `json:"stream"`
}

// streamed is one streamed answer, as a client sees it.
type streamed struct {
	status int
	code   string        // of an error
	first  time.Duration // to the first piece of text
	last   time.Duration // to the last one
	bytes  int           // of text, as JSON has it
}

var (
	dataPrefix = []byte("data: ")
	dataDone   = []byte("[DONE]")
	textKey    = []byte(`"text":"`)
)

// errCut means that a stream ended without its last line.
var errCut = errors.New("the stream ended early")

// stream sends a request and reads the answer as it comes; its times count from
// since. piece is told how much text has come, each time some does; it may be
// nil.
func stream(ctx context.Context, c *http.Client, url, key string, body []byte, since time.Time, piece func(bytes int, at time.Time)) (streamed, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return streamed{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := c.Do(req)
	if err != nil {
		return streamed{}, fmt.Errorf("send request: %w", err)
	}
	defer resp.Body.Close()
	s := streamed{status: resp.StatusCode}
	if s.status != http.StatusOK {
		s.code = errorCode(resp.Body)
		return s, nil
	}
	r := bufio.NewReaderSize(resp.Body, 32<<10)
	for {
		l, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return s, errCut
		}
		if err != nil {
			return s, fmt.Errorf("read answer: %w", err)
		}
		data, ok := bytes.CutPrefix(l, dataPrefix)
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if bytes.Equal(data, dataDone) {
			// To the end, or the connection could not be used again.
			if _, err := io.Copy(io.Discard, r); err != nil {
				return s, fmt.Errorf("read answer: %w", err)
			}
			return s, nil
		}
		if n := textLength(data); n > 0 {
			now := time.Now()
			s.last = now.Sub(since)
			if s.bytes == 0 {
				s.first = s.last
			}
			s.bytes += n
			if piece != nil {
				piece(s.bytes, now)
			}
			continue
		}
		if bytes.HasPrefix(data, []byte(`{"error"`)) {
			s.code = errorCode(bytes.NewReader(data))
			return s, nil
		}
	}
}

// textLength is the length of a chunk's text, in the form that JSON has it.
func textLength(data []byte) int {
	i := bytes.Index(data, textKey)
	if i < 0 {
		return 0
	}
	rest := data[i+len(textKey):]
	for n := 0; n < len(rest); n++ {
		switch rest[n] {
		case '\\':
			n++
		case '"':
			return n
		}
	}
	return 0
}

// errorCode is the code of an OpenAI error.
func errorCode(r io.Reader) string {
	var e struct {
		Error struct {
			Code string `json:"code"`
			Type string `json:"type"`
		} `json:"error"`
	}
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil || json.Unmarshal(b, &e) != nil {
		return "unknown"
	}
	if e.Error.Code == "" {
		return e.Error.Type
	}
	return e.Error.Code
}

// newClient is an HTTP client whose connections end with it.
func newClient() (*http.Client, func()) {
	t := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return &http.Client{Transport: t}, t.CloseIdleConnections
}
