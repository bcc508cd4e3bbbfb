package process

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine"
)

// secretWord stands in every prompt, and so in most answers. It must show up in
// no log.
const secretWord = "sesame"

// inFlight is how many requests the load keeps open.
const inFlight = 32

// outcome is what one client was given.
type outcome struct {
	gateway  string
	began    time.Time
	ended    time.Time
	status   int // 0: no answer
	id       string
	code     string // of the error in the answer
	stream   bool
	complete bool     // the body came, to its proper end
	receipts []string // "position;hash" of events behind it
	output   []byte   // the text that came
	wrong    string   // what no client may see
}

// load keeps requests in flight until it is stopped.
type load struct {
	t      *testing.T
	http   map[string]string // gateway -> base URL
	engine engine.Engine     // says what the answer must be
	client *http.Client
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu  sync.Mutex
	all []outcome // guarded by mu
}

func newLoad(t *testing.T, gateways map[string]string) *load { return newLoadOver(t, gateways, nil) }

// newLoadOver is newLoad for gateways whose certificates the pool vouches for.
func newLoadOver(t *testing.T, gateways map[string]string, roots *x509.CertPool) *load {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("load: seed %d", seed)
	eng, err := engine.New(engine.Config{Name: "ref", Model: "ref", ContextTokens: contextTokens, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: inFlight, TLSClientConfig: &tls.Config{RootCAs: roots}}
	l := &load{t: t, http: gateways, engine: eng, client: &http.Client{Transport: transport, Timeout: 2 * time.Minute}}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	for i := range inFlight {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		l.wg.Go(func() {
			for ctx.Err() == nil {
				o := l.request(r)
				l.mu.Lock()
				l.all = append(l.all, o)
				l.mu.Unlock()
				if o.status != http.StatusOK { // a client that is refused comes back a little later
					pause(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		l.wg.Wait()
		transport.CloseIdleConnections()
		if t.Failed() {
			t.Log(summary(l.all))
		}
	})
	return l
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// calm takes no more requests, waits for those in flight, and returns what all
// were given.
func (l *load) calm() []outcome {
	l.t.Helper()
	l.stop()
	done := make(chan struct{})
	go func() { l.wg.Wait(); close(done) }()
	end := time.NewTimer(2 * patience)
	defer end.Stop()
	select {
	case <-done:
	case <-end.C:
		l.t.Fatalf("clients still wait %v after the last request", 2*patience)
	}
	return l.all
}

// count is how many outcomes there are that f likes.
func (l *load) count(f func(*outcome) bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for i := range l.all {
		if f(&l.all[i]) {
			n++
		}
	}
	return n
}

// flows waits until clients that come after a moment are answered, and says how
// long that took. gateway "" is any.
func (l *load) flows(since time.Time, gateway string, n int) time.Duration {
	l.t.Helper()
	var first time.Time
	await(l.t, fmt.Sprintf("%d answers after a fault", n), patience, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		first = time.Time{}
		found := 0
		for i := len(l.all) - 1; i >= 0; i-- {
			o := &l.all[i]
			if o.ended.Before(since) {
				break // all are in the order of their ends
			}
			if o.status == http.StatusOK && !o.began.Before(since) && (gateway == "" || o.gateway == gateway) {
				found++
				first = o.ended
			}
		}
		return found >= n
	})
	return first.Sub(since)
}

// question makes a prompt whose answer stands in it.
func question(r *rand.Rand) (prompt []byte, most int) {
	var b bytes.Buffer
	lines := 2 + r.IntN(20)
	asked := r.IntN(lines)
	name := ""
	for i := range lines {
		n := fmt.Sprintf("%s-%x", secretWord, r.Uint64())
		if i == asked {
			name = n
		}
		fmt.Fprintf(&b, "Q: %s?\nA: %s %d\n", n, secretWord, r.IntN(1_000_000))
	}
	fmt.Fprintf(&b, "Q: %s?\nA:", name)
	return b.Bytes(), 4 + r.IntN(28)
}

// request is one client's request.
func (l *load) request(r *rand.Rand) outcome {
	names := slices.Sorted(maps.Keys(l.http))
	prompt, most := question(r)
	o := outcome{gateway: names[r.IntN(len(names))], stream: r.IntN(3) == 0, began: time.Now()}
	err := o.ask(l.client, l.http[o.gateway], prompt, most)
	o.ended = time.Now()
	if o.status != http.StatusOK {
		return o
	}
	want, _, werr := engine.Complete(context.Background(), l.engine, prompt, engine.Sampling{MaxTokens: most})
	switch {
	case werr != nil:
		o.wrong = "the answer is 200 to what the engine refuses: " + werr.Error()
	case !bytes.HasPrefix(want, o.output):
		o.wrong = fmt.Sprintf("the answer is %q, want %q", o.output, want)
	case o.complete && len(o.output) != len(want):
		o.wrong = fmt.Sprintf("the whole answer is %q, want %q", o.output, want)
	case !o.complete && !o.stream && err == nil:
		o.wrong = "the answer has no text"
	case o.complete && len(o.receipts) == 0:
		o.wrong = "the answer has no receipt"
	}
	return o
}

// ask sends the request and reads what comes.
func (o *outcome) ask(client *http.Client, url string, prompt []byte, most int) error {
	body, err := json.Marshal(map[string]any{"model": "ref", "prompt": string(prompt), "max_tokens": most, "temperature": 0, "stream": o.stream})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+apiKey)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	o.status, o.id = resp.StatusCode, resp.Header.Get("X-Request-Id")
	o.receipts = resp.Header.Values("Pdgate-Receipt")
	if resp.StatusCode == http.StatusOK && o.stream {
		err = o.readStream(resp.Body)
		o.receipts = append(o.receipts, resp.Trailer.Values("Pdgate-Final-Receipt")...)
		return err
	}
	var piece piece
	if err := json.NewDecoder(resp.Body).Decode(&piece); err != nil {
		return err
	}
	o.take(&piece)
	o.complete = len(piece.Choices) == 1
	return nil
}

// piece is an answer, a part of one, or an error.
type piece struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Error *struct {
		Message string  `json:"message"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

func (o *outcome) take(p *piece) {
	for _, c := range p.Choices {
		o.output = append(o.output, c.Text...)
	}
	if p.Error != nil {
		o.code = p.Error.Code
	}
}

var errShort = errors.New("the stream ended early")

func (o *outcome) readStream(r io.Reader) error {
	s := bufio.NewScanner(r)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			o.complete = true
		default:
			var p piece
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				return err
			}
			o.take(&p)
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	if !o.complete {
		return errShort
	}
	return nil
}

// summary counts outcomes by what they were.
func summary(all []outcome) string {
	n := map[string]int{}
	for _, o := range all {
		switch {
		case o.status == 0:
			n["no answer"]++
		case o.status == http.StatusOK && !o.complete:
			n["200, cut off "+o.code]++
		default:
			n[strings.TrimSpace(fmt.Sprint(o.status, " ", o.code))]++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests", len(all))
	for _, k := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(&b, "; %s: %d", k, n[k])
	}
	return b.String()
}
