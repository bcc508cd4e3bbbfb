package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// testBus is one broker for all tests, which starts when the first one needs it:
// the workers of a fuzz target do not.
var testBus struct {
	once   sync.Once
	dir    string
	broker *broker.Broker
	ring   *keyring.Ring
	names  chan string // gateways that no test uses
}

func TestMain(m *testing.M) {
	code := m.Run()
	if testBus.broker != nil {
		testBus.broker.Shutdown()
	}
	if testBus.dir != "" {
		os.RemoveAll(testBus.dir)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func startBus(t testing.TB) {
	testBus.once.Do(func() {
		var err error
		if testBus.dir, err = os.MkdirTemp("", "gateway"); err != nil {
			t.Fatal(err)
		}
		names := keyring.Names{Prefill: []string{"p1"}, Decode: []string{"d1", "d2"}}
		testBus.names = make(chan string, 64)
		for i := range cap(testBus.names) {
			names.Gateways = append(names.Gateways, fmt.Sprintf("gw%d", i))
			testBus.names <- names.Gateways[i]
		}
		if testBus.ring, err = keyring.Open(filepath.Join(testBus.dir, "keys"), names); err != nil {
			t.Fatal(err)
		}
		testBus.broker, err = broker.Start(broker.Config{StoreDir: filepath.Join(testBus.dir, "nats"), Ring: testBus.ring,
			Durability: broker.FsyncInterval, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
	})
	if testBus.broker == nil {
		t.Fatal("the broker did not start")
	}
}

func testConn(t testing.TB, u keyring.User, more ...nats.Option) *nats.Conn {
	t.Helper()
	user, err := testBus.ring.Option(u)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", append([]nats.Option{user, testBus.broker.InProcess(), nats.Timeout(30 * time.Second), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Logf("nats %s: %v", u, err) })}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// canary stands in every prompt, and so in every completion, of the tests. It
// must show nowhere else.
const canary = "CANARY-7f3a"

// logBuffer is what was logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bytesTokenizer counts bytes, as the ref engine does.
type bytesTokenizer struct{}

func (bytesTokenizer) Count(_ context.Context, prompt []byte) (int, error) { return len(prompt), nil }
func (bytesTokenizer) Chat(messages []Message) ([]byte, []string) {
	var b []byte
	for _, m := range messages {
		b = append(b, m.Role+": "+m.Content+"\n"...)
	}
	return append(b, "assistant:"...), []string{"\n"}
}

// rig is a gateway over a backend, behind a real server on a loopback port.
type rig struct {
	t      testing.TB
	b      *backend
	g      *Gateway
	url    string
	addr   string
	key    string
	log    *logBuffer
	conn   *nats.Conn
	client *http.Client
	stop   context.CancelFunc // of the gateway and its server
	done   chan error         // both have ended
}

type rigConfig struct {
	cfg     func(*Config)
	server  func(*http.Server)
	tenants string
	conn    []nats.Option
	conns   int
}

func newRig(t testing.TB, rc rigConfig) *rig {
	t.Helper()
	startBus(t)
	name := <-testBus.names
	t.Cleanup(func() { testBus.names <- name })
	r := &rig{t: t, b: newBackend(t, name), log: new(logBuffer), done: make(chan error, 1), client: &http.Client{Transport: &http.Transport{}}}
	key, digest := GenerateKey()
	r.key = key
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(path, []byte("tenants:\n- name: acme\n  api_keys: ["+digest+"]\n"+rc.tenants), 0o600); err != nil {
		t.Fatal(err)
	}
	tenants, err := LoadTenants(path)
	if err != nil {
		t.Fatal(err)
	}
	r.conn = testConn(t, keyring.Gateway(name), rc.conn...)
	logger := slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := Config{
		Name: name, Conn: r.conn, Client: r.b, Tenants: tenants, Models: map[string]Tokenizer{"ref": bytesTokenizer{}, "org/ref-1.5": bytesTokenizer{}},
		Logger: logger, DigestSecret: testSecret,
		Timeouts: Timeouts{Poll: 20 * time.Millisecond, Output: 5 * time.Second, Drain: 5 * time.Second},
	}
	if rc.cfg != nil {
		rc.cfg(&cfg)
	}
	if r.g, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(r.g.Handler(), logger)
	if rc.server != nil {
		rc.server(srv)
	}
	r.addr, r.url = l.Addr().String(), "http://"+l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	ended := make(chan error, 2)
	go func() { ended <- r.g.Run(ctx) }()
	go func() { ended <- Serve(ctx, srv, l, rc.conns, 10*time.Second) }()
	go func() {
		first := <-ended
		cancel()
		r.done <- firstError(first, <-ended)
	}()
	select {
	case <-r.g.Ready():
	case err := <-r.done:
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// close stops everything and checks what must hold after every test.
func (r *rig) close() {
	r.client.CloseIdleConnections()
	r.stop()
	err := <-r.done
	if err != nil && r.conn.Status() != nats.CLOSED {
		r.t.Errorf("run: %v", err)
	}
	r.b.runs.Wait()
	if s := r.g.Stats(); s.Requests != 0 || s.Flights != 0 || s.Memory != 0 {
		r.t.Errorf("after the stop something is left: %+v", s)
	}
	for _, secret := range []string{canary, strings.ToUpper(canary), r.key, r.key[4:]} {
		if strings.Contains(r.log.String(), secret) {
			r.t.Errorf("a prompt, a completion or a key is in the log")
		}
	}
}

func (r *rig) request(ctx context.Context, path, body string, header ...string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// answer is a response that was read to its end.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of reading
}

func (r *rig) do(req *http.Request) answer {
	r.t.Helper()
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(b), err}
}

func (r *rig) post(path, body string, header ...string) answer {
	r.t.Helper()
	return r.do(r.request(r.t.Context(), path, body, header...))
}

func (r *rig) get(path string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	return r.do(req)
}

// completionBody asks for a completion, streamed or not.
func completionBody(prompt string, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "ref", "prompt": prompt, "max_tokens": 64, "temperature": 0, "stream": stream})
	return string(b)
}

const testPrompt = "a prompt with " + canary

var testAnswer = answerTo([]byte(testPrompt), 64, 0)

type errorAnswer struct {
	Error struct {
		Message string
		Type    string
		Param   *string
		Code    string
	}
}

// wantError checks an error's status, code, shape and silence about content.
func (a answer) wantError(t testing.TB, status int, code string) errorAnswer {
	t.Helper()
	var e errorAnswer
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("body is no error: %v: %s", err, a.body)
	}
	if e.Error.Code != code || e.Error.Type == "" || e.Error.Message == "" {
		t.Errorf("error %+v, want code %s", e.Error, code)
	}
	if strings.Contains(strings.ToUpper(a.body), strings.ToUpper(canary)) {
		t.Errorf("the error holds content: %s", a.body)
	}
	if a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("headers %v", a.header)
	}
	if (status == 429 || status == 503) != (a.header.Get("Retry-After") != "") {
		t.Errorf("status %d with Retry-After %q", status, a.header.Get("Retry-After"))
	}
	return e
}

// streamOf is what a stream says: its text by choice, and how it ended.
type streamOf struct {
	text   map[int]string
	finish map[int]string
	usage  *usage
	err    string // code of an error event
	done   bool
	events int
}

func parseStream(t testing.TB, body string) streamOf {
	t.Helper()
	s := streamOf{text: map[int]string{}, finish: map[int]string{}}
	for _, e := range strings.Split(body, "\n\n") {
		if e == "" {
			continue
		}
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("not an event: %q", e)
		}
		if s.done || s.err != "" {
			t.Fatalf("something follows the end: %q", e)
		}
		if data == "[DONE]" {
			s.done = true
			continue
		}
		s.events++
		var c struct {
			Choices []struct {
				Index  int
				Text   string
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
			}
			Usage *usage
			Error *struct{ Code string }
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		if c.Error != nil {
			s.err = c.Error.Code
			continue
		}
		if c.Usage != nil {
			s.usage = c.Usage
		}
		for _, ch := range c.Choices {
			s.text[ch.Index] += ch.Text + ch.Delta.Content
			if ch.Finish != "" {
				s.finish[ch.Index] = ch.Finish
			}
		}
	}
	return s
}

// textOf is the text of an answer in one piece.
func textOf(t testing.TB, body string) (texts []string) {
	t.Helper()
	var c struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
	}
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, ch := range c.Choices {
		texts = append(texts, ch.Text+ch.Message.Content)
	}
	return texts
}

// open starts a streamed request and returns its reader once the head is there.
func (r *rig) open(ctx context.Context, body string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	resp, err := r.client.Do(r.request(ctx, "/v1/completions", body))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

// await polls until ok, without a fixed pause.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Errorf("waited in vain: %s", what)
			return
		}
	}
}
