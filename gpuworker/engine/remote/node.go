package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of what a node may send.
const (
	maxAnswer = 32 << 20 // one answer in one piece
	maxFailed = 64 << 10 // the body of an error
	maxSmall  = 4 << 20  // of questions about the node itself
)

// Errors that callers branch on.
var (
	// ErrUnsent means that the request did not leave: the node knows nothing of it.
	ErrUnsent = errors.New("the request was not sent")
	// ErrLate means that the request did not leave in time, and was cut off.
	ErrLate = errors.New("the request did not leave before the lease's end")
	// ErrTooLong means that a node sent more than is read.
	ErrTooLong = errors.New("the engine sent more than is read")
)

// Node is one engine server.
type Node struct {
	base string
	key  string // API key; never logged, never in an error

	// Requests that change something go out on a connection of their own: on one
	// that waited, net/http cannot tell a request that was not read from one that
	// was, and sending twice is what must not happen.
	once *http.Client
	ask  *http.Client // questions: repeated ones share connections
}

// NewNode makes the client of the node at base, "http://host:port" with an
// optional path. key is its API key; "": none.
func NewNode(base, key string) (*Node, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "":
		return nil, fmt.Errorf("engine address %q: want http://HOST:PORT", redact(base))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("engine address %q: want no user, query or fragment in it", redact(base))
	case strings.ContainsAny(key, "\r\n\x00"):
		return nil, errors.New("the engine's API key holds a line break")
	}
	client := func(keep bool) *http.Client {
		return &http.Client{
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				TLSHandshakeTimeout: 5 * time.Second, DisableCompression: true, DisableKeepAlives: !keep,
				MaxIdleConnsPerHost: 8, IdleConnTimeout: 2 * time.Second, MaxResponseHeaderBytes: 64 << 10,
			},
			// A node that points elsewhere would have a prompt sent there.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Node{base: strings.TrimRight(base, "/"), key: key, once: client(false), ask: client(true)}, nil
}

// redact takes a password out of an address that is not one.
func redact(base string) string {
	if i := strings.LastIndexByte(base, '@'); i >= 0 {
		return "…" + base[i:]
	}
	return base
}

// URL is the node's address.
func (n *Node) URL() string { return n.base }

// Host is the node's host name or address, without its port.
func (n *Node) Host() string {
	u, err := url.Parse(n.base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Close gives idle connections back.
func (n *Node) Close() {
	n.once.CloseIdleConnections()
	n.ask.CloseIdleConnections()
}

func (n *Node) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, n.base+path, body)
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // nobody sends it again
	if n.key != "" {
		r.Header.Set("Authorization", "Bearer "+n.key)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// Post is one request of a leg.
type Post struct {
	Path      string
	RequestID string // X-Request-Id; "": none
	Body      []byte
	Before    time.Time        // it must have left by then; zero: no limit
	Now       func() time.Time // for Before
}

// Send posts once. The answer is the caller's to read and to close, whatever
// its status; the context ends it.
func (n *Node) Send(ctx context.Context, p Post) (*http.Response, error) {
	var late, sent atomic.Bool // set by net/http's writer
	ctx, cancel := context.WithCancelCause(ctx)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() {
			sent.Store(true)
			// Dialling may have taken what was left.
			if !p.Before.IsZero() && !p.Now().Before(p.Before) {
				late.Store(true)
				cancel(ErrLate)
			}
		},
	})
	r, err := n.request(ctx, http.MethodPost, p.Path, bytes.NewReader(p.Body))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if p.RequestID != "" {
		r.Header.Set("X-Request-Id", p.RequestID)
	}
	if !p.Before.IsZero() && !p.Now().Before(p.Before) {
		cancel(nil)
		return nil, fmt.Errorf("%w: %w", ErrUnsent, ErrLate)
	}
	resp, err := n.once.Do(r)
	if err != nil {
		cancel(nil)
		switch {
		case late.Load():
			return nil, ErrLate
		case !sent.Load():
			return nil, fmt.Errorf("%w: %w", ErrUnsent, plain(err))
		}
		return nil, plain(err)
	}
	resp.Body = &body{ReadCloser: resp.Body, cancel: cancel}
	if late.Load() {
		_ = resp.Body.Close()
		return nil, ErrLate
	}
	return resp, nil
}

// body ends its request when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// plain is a transport's error without the address that net/http puts before it.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// ReadAll reads a whole answer of a leg.
func ReadAll(r io.Reader) ([]byte, error) { return readUpTo(r, maxAnswer) }

// ReadFailed reads the body of an error, or what is read of a longer one.
func ReadFailed(r io.Reader) []byte {
	b, _ := io.ReadAll(io.LimitReader(r, maxFailed))
	return b
}

func readUpTo(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, plain(err)
	case int64(len(b)) > most:
		return nil, ErrTooLong
	}
	return b, nil
}

// Status is an answer other than 200 to a question.
type Status struct{ Code int }

// Error implements error.
func (s *Status) Error() string { return fmt.Sprintf("HTTP %d", s.Code) }

// Get asks the node something about itself.
func (n *Node) Get(ctx context.Context, path string) ([]byte, error) {
	return n.question(ctx, http.MethodGet, path, nil, maxSmall)
}

// Ask posts a question that changes nothing. The answer may be as long as most.
func (n *Node) Ask(ctx context.Context, path string, ask []byte, most int64) ([]byte, error) {
	return n.question(ctx, http.MethodPost, path, bytes.NewReader(ask), most)
}

func (n *Node) question(ctx context.Context, method, path string, ask io.Reader, most int64) ([]byte, error) {
	r, err := n.request(ctx, method, path, ask)
	if err != nil {
		return nil, err
	}
	resp, err := n.ask.Do(r)
	if err != nil {
		return nil, plain(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b := ReadFailed(resp.Body)
		return b, &Status{resp.StatusCode}
	}
	return readUpTo(resp.Body, most)
}
