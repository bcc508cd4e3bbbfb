package gateway

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// instant is a lifecycle, and its workers, that answer at once and without
// NATS: what is left is what the gateway adds.
type instant struct {
	g   *Gateway
	seq uint64
}

func (b *instant) Do(_ context.Context, c *events.Command) (*events.Answer, error) {
	a := c.Data.(*events.Admit)
	f := b.g.flight(c.Subject)
	n := 0
	commit := func(d events.Data) (string, string) {
		n++
		b.seq++
		e := &events.Event{ID: c.Subject + "." + strconv.Itoa(n), Source: "/x", Type: d.EventType(), Subject: c.Subject, N: n, Data: d}
		raw, err := events.Append(nil, e)
		if err != nil {
			panic(err)
		}
		if e, err = events.Decode(raw); err != nil {
			panic(err)
		}
		position := strconv.FormatUint(b.seq, 10) + ".0"
		f.observe(e, raw, position)
		return position, events.Hash(raw)
	}
	position, hash := commit(&events.RequestAdmitted{Model: a.Model, Gateway: "gw", PromptTokens: a.PromptTokens, MaxTokens: a.MaxTokens, PromptDigest: a.PromptDigest})
	commit(&events.RequestPrefilled{Worker: "p1", PromptTokens: a.PromptTokens})
	commit(&events.RequestTransferred{Worker: "d1"})
	const text = "an answer of some words, in one piece"
	f.arrived("d1", events.OutputChunk{Tokens: uint32(len(text)), Text: []byte(text)})
	commit(&events.RequestDecoded{Worker: "d1", CompletionTokens: len(text), FinishReason: events.FinishStop,
		OutputDigest: events.Digest(f.key, events.KindOutput, []byte(text))})
	return &events.Answer{Subject: c.Subject, State: events.Admitted, Type: events.TypeAdmitted, Position: position, Hash: hash}, nil
}

func (b *instant) Get(context.Context, string) (*events.RequestView, error) { return nil, errDown }
func (b *instant) History(context.Context, string) (*events.HistoryView, error) {
	return nil, errDown
}
func (b *instant) Info(context.Context) (*events.InfoView, error) { return &events.InfoView{}, nil }

// benchGateway is a gateway without its subscriptions.
func benchGateway(b *testing.B) (*Gateway, string) {
	r := newRig(b, rigConfig{})
	cfg := r.g.cfg
	back := &instant{}
	cfg.Client, cfg.Logger = back, slog.New(slog.DiscardHandler)
	g, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	back.g, g.serving = g, true
	return g, r.key
}

// BenchmarkAdded is the time that the gateway adds to a request of 1 KiB: in the
// handler alone, and over a loopback connection.
func BenchmarkAdded(b *testing.B) {
	g, key := benchGateway(b)
	for _, stream := range []bool{false, true} {
		body := completionBody(strings.Repeat("p", 1024), stream)
		name := "whole"
		if stream {
			name = "stream"
		}
		b.Run("handler/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer "+key)
				rec := httptest.NewRecorder()
				g.Handler().ServeHTTP(rec, req)
				if rec.Code != http.StatusOK {
					b.Fatal(rec.Code, rec.Body)
				}
			}
		})
		b.Run("http/"+name, func(b *testing.B) {
			srv := httptest.NewServer(g.Handler())
			defer srv.Close()
			for b.Loop() {
				req, err := http.NewRequest(http.MethodPost, srv.URL+"/v1/completions", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+key)
				resp, err := srv.Client().Do(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp.StatusCode, err)
				}
				resp.Body.Close()
			}
		})
	}
}

// BenchmarkForeignNotice is what notifications of somebody else's requests cost;
// an operation is one event.
func BenchmarkForeignNotice(b *testing.B) {
	g, _ := benchGateway(b)
	const batch = 16
	n := events.Notice{Seq: 9}
	for i := range batch {
		id := "01890a5d-ac96-774b-bcce-b302099a8057"
		raw, err := events.Append(nil, &events.Event{ID: id + ".5", Source: "/pdgate/lifecycle/lc1", Type: events.TypeDecoded, Subject: id, N: 5,
			Data: &events.RequestDecoded{Worker: "d1", WorkerEpoch: 1, PromptTokens: 1, CompletionTokens: 1, FinishReason: events.FinishStop, OutputDigest: "x"}})
		if err != nil {
			b.Fatal(err)
		}
		n.Add(i, raw)
	}
	m := nats.NewMsg(events.NotifySubject("ref", 0))
	m.Header.Set(events.HeaderPosition, n.Positions())
	m.Data = n.Lines
	b.ReportAllocs()
	for i := 0; i < b.N; i += batch {
		g.takeNotice(m)
	}
}

// BenchmarkBody reads a large body.
func BenchmarkBody(b *testing.B) {
	body := []byte(completionBody(strings.Repeat("a prompt, ", 100_000), false))
	buf := make([]byte, len(body))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		copy(buf, body)
		if _, err := parseRequest(buf, false, 1); err != nil {
			b.Fatal(err)
		}
	}
}
