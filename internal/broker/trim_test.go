package broker

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
)

// purgeable is a log of five messages that allows purges, as the journal makes it.
func purgeable(t *testing.T, b *Broker, ring *keyring.Ring) (jetstream.Stream, func() jetstream.StreamState) {
	t.Helper()
	ctx := t.Context()
	nc := connect(t, b, ring, keyring.LifecycleLog)
	key, err := ring.LogKey()
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := js.Publish(ctx, events.LogSubject(0), []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	s, err := js.Stream(ctx, events.LogStream)
	if err != nil {
		t.Fatal(err)
	}
	return s, func() jetstream.StreamState {
		info, err := s.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return info.State
	}
}

// One user besides the admin takes the beginning off the log, and neither a
// message out of it nor the stream away. Nobody else takes anything.
func TestOnlyOneTrims(t *testing.T) {
	b, ring := startBroker(t)
	_, state := purgeable(t, b, ring)
	for _, u := range testNames.Users() {
		if u == keyring.Admin || u == keyring.LifecycleTrim {
			continue
		}
		nc := connect(t, b, ring, u)
		for _, prefix := range []string{js, "$JS." + AuditDomain + ".API.", "$JS.work.API.", "$JS.audit.API."} {
			subject := prefix + "STREAM.PURGE." + events.LogStream
			if err := nc.Publish(subject, []byte(`{"seq":3}`)); err != nil || !forbidden(t, nc, subject) {
				t.Errorf("%s may publish %s: %v", u, subject, err)
			}
		}
	}
	if got := state(); got.Msgs != 5 {
		t.Fatalf("the log holds %d messages, want 5", got.Msgs)
	}
	nc := connect(t, b, ring, keyring.LifecycleTrim)
	trim, err := journal.OpenTrimmer(t.Context(), nc, AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	for _, below := range []uint64{0, 1, 3, 3, 2} {
		if err := trim.Trim(t.Context(), below); err != nil {
			t.Error(err)
		}
	}
	if got := state(); got.FirstSeq != 3 || got.LastSeq != 5 {
		t.Errorf("the log is %d to %d, want 3 to 5", got.FirstSeq, got.LastSeq)
	}
	for _, op := range []string{"STREAM.DELETE.", "STREAM.UPDATE.", "STREAM.MSG.DELETE.", "STREAM.MSG.GET."} {
		for _, prefix := range []string{js, "$JS." + AuditDomain + ".API."} {
			subject := prefix + op + events.LogStream
			if err := nc.Publish(subject, []byte(`{"seq":4}`)); err != nil || !forbidden(t, nc, subject) {
				t.Errorf("lifecycle-trim may publish %s: %v", subject, err)
			}
		}
	}
	// Not even the admin takes a message out of the middle.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	m, err := connect(t, b, ring, keyring.Admin).RequestWithContext(ctx, js+"STREAM.MSG.DELETE."+events.LogStream, []byte(`{"seq":4}`))
	if err != nil || !strings.Contains(string(m.Data), `"error"`) {
		t.Errorf("a message was deleted: %v", err)
	}
}

// The auditor may make consumers. One that delivers to the API's own subject would
// have the server purge the log with a message of it.
func TestConsumerDoesNotPurge(t *testing.T) {
	b, ring := startBroker(t)
	_, state := purgeable(t, b, ring)
	nc := connect(t, b, ring, keyring.Auditor)
	for i, op := range []string{"PURGE", "DELETE", "UPDATE"} {
		name := "push" + string(rune('a'+i))
		req, err := json.Marshal(map[string]any{"stream_name": events.LogStream, "config": map[string]any{
			"name": name, "deliver_subject": js + "STREAM." + op + "." + events.LogStream, "ack_policy": "none", "deliver_policy": "all"}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := nc.Request(auditSubject(js+"CONSUMER.CREATE."+events.LogStream+"."+name), req, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.200s", op, m.Data)
	}
	// Deliveries are asynchronous: whatever they did is done before a consumer that
	// was made behind them has delivered.
	aj, err := jetstream.NewWithDomain(nc, AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	c, err := aj.CreateConsumer(t.Context(), events.LogStream, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(jetstream.FetchMaxWait(2 * time.Second)); err != nil {
		t.Error(err)
	}
	if got := state(); got.Msgs != 5 {
		t.Errorf("the log holds %d messages, want 5", got.Msgs)
	}
}

// Nobody takes deny_purge back: a stream that was made with it keeps all.
func TestDenyPurgeIsForGood(t *testing.T) {
	b, ring := startBroker(t)
	ctx := t.Context()
	admin, err := jetstream.New(connect(t, b, ring, keyring.Admin))
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: events.LogStream, Subjects: []string{events.LogAll}, DenyDelete: true, DenyPurge: true}
	if _, err := admin.CreateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.OpenTrimmer(ctx, connect(t, b, ring, keyring.LifecycleTrim), AuditDomain); err == nil || !strings.Contains(err.Error(), "denies purges for good") {
		t.Errorf("opened on a stream that denies purges: %v", err)
	}
	for range 5 {
		if _, err := admin.Publish(ctx, events.LogSubject(0), []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	denies := cfg
	cfg.DenyPurge = false
	if _, err := admin.UpdateStream(ctx, cfg); err == nil {
		t.Error("the server takes deny_purge back: an existing stream can be upgraded in place")
	}
	// What the documents say to do: a backup that is restored without it.
	nc := connect(t, b, ring, keyring.Admin)
	chunks, state := backup(t, nc)
	if err := admin.DeleteStream(ctx, events.LogStream); err != nil {
		t.Fatal(err)
	}
	denies.DenyPurge = false
	restore(t, nc, denies, state, chunks)
	trim, err := journal.OpenTrimmer(ctx, connect(t, b, ring, keyring.LifecycleTrim), AuditDomain)
	if err == nil {
		err = trim.Trim(ctx, 3)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := admin.Stream(ctx, events.LogStream)
	if err != nil {
		t.Fatal(err)
	}
	if st := s.CachedInfo().State; st.FirstSeq != 3 || st.LastSeq != 5 {
		t.Errorf("restored and trimmed, the log is %d to %d, want 3 to 5", st.FirstSeq, st.LastSeq)
	}
}

// backup is what `nats stream backup` fetches.
func backup(t *testing.T, nc *nats.Conn) (chunks [][]byte, state json.RawMessage) {
	t.Helper()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	m, err := nc.Request(js+"STREAM.SNAPSHOT."+events.LogStream, []byte(`{"deliver_subject":"`+sub.Subject+`"}`), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		State json.RawMessage `json:"state"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Error != nil {
		t.Fatalf("%s %v", m.Data, err)
	}
	for {
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			return chunks, a.State
		}
		chunks = append(chunks, m.Data)
		if m.Reply == "" {
			continue
		}
		if err := m.Respond(nil); err != nil { // the server waits for it now and then
			t.Fatal(err)
		}
	}
}

// restore is what `nats stream restore` sends.
func restore(t *testing.T, nc *nats.Conn, cfg jetstream.StreamConfig, state json.RawMessage, chunks [][]byte) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"config": cfg, "state": state})
	if err != nil {
		t.Fatal(err)
	}
	m, err := nc.Request(js+"STREAM.RESTORE."+events.LogStream, b, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Subject string          `json:"deliver_subject"`
		Error   json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || a.Error != nil || a.Subject == "" {
		t.Fatalf("%s %v", m.Data, err)
	}
	for _, c := range append(chunks, nil) {
		if m, err = nc.Request(a.Subject, c, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(string(m.Data), `"error"`) {
		t.Fatalf("%s", m.Data)
	}
}
