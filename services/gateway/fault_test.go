package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// Notifications may be lost, all of them or any: the history says the same.
func TestLostNotifications(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(events.Type) bool{
		"all":         func(events.Type) bool { return true },
		"transferred": func(e events.Type) bool { return e == events.TypeTransferred },
		"decoded":     func(e events.Type) bool { return e == events.TypeDecoded },
		"rejected":    func(e events.Type) bool { return e == events.TypeRejected },
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, rigConfig{})
				r.b.lose = lose
				a := r.post("/v1/completions", completionBody(testPrompt, stream))
				if a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.body)
				}
				if stream {
					if s := parseStream(t, a.body); !s.done || s.text[0] != testAnswer {
						t.Errorf("stream %+v", s)
					}
				} else if textOf(t, a.body)[0] != testAnswer {
					t.Errorf("text %s", a.body)
				}
				r.b.set(func() {
					r.b.script = func(rec *record) { rec.append(&events.RequestRejected{Error: *contextError, Stage: "engine"}) }
				})
				r.post("/v1/completions", completionBody(testPrompt, stream)).wantError(t, http.StatusBadRequest, "context_length_exceeded")
			})
		}
	}
}

// Output that flows does not hide that the word about it was lost: it may be
// shown long before the worker falls silent.
func TestLostTransferredInStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Poll = 100 * time.Millisecond }})
	r.b.lose = func(e events.Type) bool { return e == events.TypeTransferred }
	shown := make(chan struct{})
	r.b.script = func(rec *record) {
		rec.walk()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			rec.send(r.b.decode, i, "x")
			select {
			case <-shown:
				rec.decoded(strings.Repeat("x", i+1), events.FinishStop)
				return
			case <-tick.C:
			}
			if i == 2000 {
				t.Error("nothing was shown of an output that flows")
				rec.append(&events.RequestFailed{Error: *events.NewError(events.CodeDeadline, "too late"), From: events.Transferred, Stage: "decode"})
				return
			}
		}
	}
	_, body := r.open(t.Context(), completionBody(testPrompt, true))
	first, err := body.ReadString('\n')
	close(shown)
	rest, _ := io.ReadAll(body)
	if s := parseStream(t, first+string(rest)); err != nil || !s.done {
		t.Errorf("stream %+v, %v", s, err)
	}
}

// A notification that does not hold, and one of another request, is no news.
func TestForgedNotification(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.script = func(rec *record) {
		e := &events.Event{ID: "other.1", Source: "/x", Type: events.TypeTransferred, Subject: "other", N: 1, Data: &events.RequestTransferred{Worker: "d1"}}
		raw, err := events.Append(nil, e)
		if err != nil {
			t.Error(err)
		}
		own, err := events.Append(nil, &events.Event{ID: rec.id + ".9", Source: "/x", Type: events.TypeFailed, Subject: rec.id, N: 9,
			Data: &events.RequestFailed{Error: *events.NewError(events.CodeInternal, "forged"), From: events.Admitted, Stage: "x"}})
		if err != nil {
			t.Error(err)
		}
		raw = append(raw, '\n')
		for _, m := range []*nats.Msg{
			{Header: nats.Header{events.HeaderPosition: {"9.0"}}, Data: raw},
			{Header: nats.Header{events.HeaderPosition: {"9.0"}}, Data: []byte("{\n")},
			{Header: nats.Header{events.HeaderPosition: {"9.0"}}, Data: []byte(`{"subject":"` + rec.id + `"}` + "\n")},
			{Header: nats.Header{events.HeaderPosition: {"9.0"}}, Data: append([]byte(`{"id":"x","subject":"`+rec.id+`","subject":"`+rec.id+`",`), raw[1:]...)},
			{Header: nats.Header{events.HeaderPosition: {"9.0"}}, Data: own}, // no line: its end is missing
			{Data: append(own, '\n')},
		} {
			m.Subject = events.NotifySubject("ref", 0)
			if err := r.b.bus.PublishMsg(m); err != nil {
				t.Error(err)
			}
		}
		// What follows on the same connection shows that the forged ones were read.
		rec.prefilled()
		f := r.g.flight(rec.id)
		await(t, "prefilled is known, and nothing else", func() bool { state, _ := f.stands(); return state == events.Prefilled })
		rec.append(&events.RequestFailed{Error: *events.NewError(events.CodeDeadline, "too late"), From: events.Prefilled, Stage: "deadline"})
	}
	r.post("/v1/completions", completionBody(testPrompt, true)).wantError(t, http.StatusGatewayTimeout, "deadline_exceeded")
}

// Lifecycle does not answer the admission.
func TestLifecycleDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Admit, c.Timeouts.Cancel = 30*time.Millisecond, 30*time.Millisecond }})
	r.b.down = true
	r.post("/v1/completions", completionBody(testPrompt, true)).wantError(t, http.StatusServiceUnavailable, "unavailable")
	r.get("/ready").wantError(t, http.StatusServiceUnavailable, "unavailable")
}

// Lifecycle falls silent after the admission.
func TestLifecycleFallsSilent(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Silence, c.Timeouts.Cancel = 60*time.Millisecond, 20*time.Millisecond }})
		r.b.script = func(*record) { r.b.set(func() { r.b.down = true }) }
		r.post("/v1/completions", completionBody(testPrompt, stream)).wantError(t, http.StatusServiceUnavailable, "unavailable")
	}
}

// An admission that is denied is no client's fault.
func TestAdmissionDenied(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.deny = true
	a := r.post("/v1/completions", completionBody(testPrompt, false))
	a.wantError(t, http.StatusInternalServerError, "internal")
	if a.header.Get("Pdgate-Receipt") != "9.0;denied" {
		t.Errorf("receipt %q", a.header.Get("Pdgate-Receipt"))
	}
}

// The connection to NATS is cut while output is on its way: the answer is right,
// or an error.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	back := make(chan struct{}, 1)
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Output = 200 * time.Millisecond }, conn: []nats.Option{nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} })}})
	r.b.script = func(rec *record) {
		rec.walk()
		rec.send(r.b.decode, 0, testAnswer[:5])
		if err := r.conn.ForceReconnect(); err != nil {
			t.Error(err)
		}
		rec.send(r.b.decode, 1, testAnswer[5:9])
		<-back
		rec.send(r.b.decode, 2, testAnswer[9:])
		rec.decoded(testAnswer, events.FinishStop)
	}
	a := r.post("/v1/completions", completionBody(testPrompt, false))
	if a.status == http.StatusOK && textOf(t, a.body)[0] == testAnswer {
		return
	}
	a.wantError(t, http.StatusBadGateway, "output_lost")
}

// The connection is gone for good: open requests end, and Run says why.
func TestConnectionClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Drain = 10 * time.Millisecond }})
	r.b.script = func(*record) { r.conn.Close() }
	r.post("/v1/completions", completionBody(testPrompt, true)).wantError(t, http.StatusServiceUnavailable, "unavailable")
	err := <-r.done
	if err == nil || !strings.Contains(err.Error(), "NATS connection was closed") {
		t.Errorf("run: %v", err)
	}
	r.done <- nil
}

// The request takes longer than the gateway allows.
func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Timeouts.Request = 50 * time.Millisecond }})
	r.b.script = func(*record) {}
	r.post("/v1/completions", completionBody(testPrompt, true)).wantError(t, http.StatusGatewayTimeout, "deadline_exceeded")
	<-r.b.landed
}

// A stop lets open requests end, refuses others, and cancels what takes too long.
func TestStop(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{true, false} {
		r := newRig(t, rigConfig{cfg: func(c *Config) {
			if !patient {
				c.Timeouts.Drain = 20 * time.Millisecond
			}
		}})
		admitted, release := make(chan struct{}), make(chan struct{})
		r.b.script = func(rec *record) {
			close(admitted)
			if patient {
				<-release
				rec.wholeWalk()
			}
		}
		answers := make(chan answer, 1)
		go func() { answers <- r.post("/v1/completions", completionBody(testPrompt, false)) }()
		<-admitted
		r.stop()
		await(t, "new requests are refused", func() bool { return r.g.enter() != nil || func() bool { r.g.leave(); return false }() })
		close(release)
		a := <-answers
		if patient && (a.status != http.StatusOK || textOf(t, a.body)[0] != testAnswer) {
			t.Errorf("%d %s", a.status, a.body)
		}
		if !patient {
			a.wantError(t, http.StatusServiceUnavailable, "unavailable")
			<-r.b.landed
			if c := r.b.sent(events.CmdCancel); len(c) != 1 || c[0].Data.(*events.Cancel).Reason != events.CodeCancelled {
				t.Errorf("cancels %v", c)
			}
		}
	}
}

// A client that is slow with its body does not make a stop fail.
func TestStopWithSlowClient(t *testing.T) {
	t.Parallel()
	reading := make(chan struct{})
	srv := NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reading)
		_, _ = io.Copy(io.Discard, r.Body)
	}), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, srv, l, 0, 20*time.Millisecond) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	<-reading
	stop()
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// More requests, or more bytes, than the gateway may hold.
func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Limits.Requests, c.Limits.Body, c.Limits.Memory = 2, 16<<10, 40<<10 }})
	admitted, release := make(chan struct{}, 2), make(chan struct{})
	r.b.script = func(rec *record) { admitted <- struct{}{}; <-release; rec.wholeWalk() }
	answers := make(chan answer, 2)
	big := strings.Repeat("x", 10<<10)
	go func() { answers <- r.post("/v1/completions", completionBody(big, false)) }()
	<-admitted
	r.post("/v1/completions", completionBody(big+big, false)).wantError(t, http.StatusRequestEntityTooLarge, "request_too_large")
	r.post("/v1/completions", completionBody(strings.Repeat("y", 15<<10), false)).wantError(t, http.StatusServiceUnavailable, "overloaded")
	go func() { answers <- r.post("/v1/completions", completionBody("small", false)) }()
	<-admitted
	r.post("/v1/completions", completionBody("small", false)).wantError(t, http.StatusServiceUnavailable, "overloaded")
	close(release)
	for range 2 {
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// Output that nobody takes is bounded.
func TestOutputLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Limits.Output = 1000 }})
	r.b.script = func(rec *record) {
		rec.walk()
		for i := range 3 {
			rec.send(r.b.decode, i, strings.Repeat("z", 400))
		}
		<-rec.ended
	}
	r.post("/v1/completions", completionBody(testPrompt, false)).wantError(t, http.StatusBadGateway, "output_lost")
	if state, _ := r.b.record(0).last(); state != events.Failed {
		t.Errorf("state %s", state)
	}
}

// The prompt goes out in pieces to who may have it, and to nobody else.
func TestPromptService(t *testing.T) {
	t.Parallel()
	denied := make(chan error, 16)
	r := newRig(t, rigConfig{conn: []nats.Option{nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err })}})
	prompt := strings.Repeat(canary+" ", 150_000) // 1.8 MB: four chunks
	r.b.script = func(rec *record) {
		got, err := rec.fetch()
		if err != nil || string(got) != prompt {
			t.Errorf("%d bytes of the prompt, %v", len(got), err)
		}
		if _, err := r.b.decode.FetchPrompt(t.Context(), rec.work(events.RoleDecode), events.PartPrompt); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("a decode worker asks for the prompt: %v", err)
		}
		w := rec.work(events.RolePrefill)
		w.RequestID = "01890a5d-ac96-774b-bcce-b302099a8057"
		if _, err := r.b.prefill.FetchPrompt(t.Context(), w, events.PartPrompt); err == nil || !strings.Contains(err.Error(), "prompt_unavailable") {
			t.Errorf("a request that is not held: %v", err)
		}
		// An answer to a subject of the asker's choice could be a command. The gateway
		// does not even try, or the server would tell it that it may not.
		p1 := testConn(t, keyring.Worker(events.RolePrefill, "p1"))
		q, _ := events.AppendPromptRequest(nil, &events.PromptRequest{Part: events.PartPrompt})
		subject := events.PromptSubject(r.b.gateway, events.RolePrefill, "p1", rec.id)
		if err := p1.Publish(subject, q); err != nil {
			t.Error(err)
		}
		for _, reply := range []string{"pdgate.v1.gateway.gw1.admit.0", events.NotifySubject("ref", 0), "_INBOXES.x"} {
			if err := p1.PublishRequest(subject, reply, q); err != nil {
				t.Error(err)
			}
		}
		for _, bad := range []string{"", "{}", `{"part":"prompt","offset":-1}`, `{"part":"prompt","offset":9999999999}`, `{"part":"keys","offset":0}`} {
			m, err := p1.Request(subject, []byte(bad), 5*time.Second)
			if err != nil || m.Header.Get("Nats-Service-Error") == "" || len(m.Data) != 0 {
				t.Errorf("%q: %v %v", bad, m, err)
			}
		}
		if err := r.conn.Flush(); err != nil {
			t.Error(err)
		}
		rec.prefilled()
		// Once the gateway has heard of it, nobody gets the prompt any more.
		for end := time.Now().Add(10 * time.Second); ; {
			_, err := rec.fetch()
			if err != nil && strings.Contains(err.Error(), "prompt_unavailable") {
				break
			}
			if time.Now().After(end) {
				t.Errorf("the prompt of a prefilled request: %v", err)
				break
			}
		}
		rec.transferred()
		rec.send(r.b.decode, 0, "ok")
		rec.decoded("ok", events.FinishStop)
	}
	if a := r.post("/v1/completions", completionBody(prompt, false)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if _, err := r.b.record(0).fetch(); err == nil || !strings.Contains(err.Error(), "prompt_unavailable") {
		t.Errorf("the prompt of a decoded request: %v", err)
	}
	select {
	case err := <-denied:
		t.Errorf("the gateway tried to answer where it must not: %v", err)
	default:
	}
}
