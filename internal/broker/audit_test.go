package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// The auditor keeps its last signed tree under a compare-and-swap; lifecycle
// reads it, and can do nothing else to it; the auditor itself cannot take it
// back.
func TestSignedTree(t *testing.T) {
	b, ring := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	aj, err := jetstream.New(connect(t, b, ring, keyring.Auditor))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := aj.CreateStream(ctx, jetstream.StreamConfig{Name: events.AuditStream, Subjects: []string{events.AuditSigned}}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := aj.Publish(ctx, events.AuditSigned, []byte("tree"), jetstream.WithExpectLastSequencePerSubject(uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := aj.Publish(ctx, events.AuditSigned, []byte("fork"), jetstream.WithExpectLastSequencePerSubject(1)); err == nil {
		t.Error("a signature after another one's was stored")
	}

	life := connect(t, b, ring, keyring.LifecycleLog)
	lj, err := jetstream.NewWithDomain(life, events.AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	m, err := life.RequestWithContext(ctx, signedSubject(signedReads[0]), []byte(`{"last_by_subj":"`+events.AuditSigned+`"}`))
	if err != nil || len(m.Data) == 0 {
		t.Errorf("lifecycle reads the signed tree: %v %v", m, err)
	}
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if err := lj.DeleteStream(short, events.AuditStream); err == nil {
		t.Error("lifecycle deleted the signed tree")
	}
	if err := aj.DeleteStream(short, events.AuditStream); err == nil {
		t.Error("the auditor deleted the signed tree")
	}
}

// A gateway's request for a receipt crosses to the auditor and back under the
// gateway's own name; a worker's does not.
func TestReceiptRequest(t *testing.T) {
	b, ring := startBroker(t)
	auditor := connect(t, b, ring, keyring.Auditor)
	if _, err := auditor.Subscribe(events.ReceiptAll, func(m *nats.Msg) { _ = m.Respond([]byte(m.Subject)) }); err != nil {
		t.Fatal(err)
	}
	if err := auditor.Flush(); err != nil {
		t.Fatal(err)
	}
	subject := events.ReceiptSubject(events.RoleGateway, "gw1")
	m, err := connect(t, b, ring, keyring.Gateway("gw1")).Request(subject, nil, 5*time.Second)
	if err != nil || string(m.Data) != subject {
		t.Errorf("gateway: %v %v", m, err)
	}
	own := events.ReceiptSubject(events.RoleAuditor, "auditor")
	if m, err := connect(t, b, ring, keyring.Auditor).Request(own, nil, 5*time.Second); err != nil || string(m.Data) != own {
		t.Errorf("auditor: %v %v", m, err)
	}
	for _, u := range []keyring.User{keyring.Worker(events.RoleDecode, "d1"), keyring.Gateway("gw2")} {
		nc := connect(t, b, ring, u)
		if _, err := nc.Request(subject, nil, 100*time.Millisecond); !errors.Is(err, nats.ErrTimeout) || !forbidden(t, nc, subject) {
			t.Errorf("%s asks as gw1: %v", u, err)
		}
	}
}

// A reply subject that a gateway chooses may carry a receipt's answer to any
// subject of BUS, and to nothing outside of it: no item of the work queue comes to
// be, and no message of the log.
func TestReceiptReply(t *testing.T) {
	b, ring := startBroker(t)
	s := openLog(t, b, ring)
	work := openWork(t, b, ring)
	auditor := connect(t, b, ring, keyring.Auditor)
	answered := make(chan struct{}, 8)
	if _, err := auditor.Subscribe(events.ReceiptAll, func(m *nats.Msg) {
		_ = m.Respond([]byte("c2sp.org/tlog-proof@v1\n"))
		answered <- struct{}{}
	}); err != nil {
		t.Fatal(err)
	}
	if err := auditor.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	count := func(s jetstream.Stream) uint64 {
		info, err := s.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	queue, err := work.Stream(ctx, events.WorkStream)
	if err != nil {
		t.Fatal(err)
	}
	logged, queued := count(s), count(queue)
	nc := connect(t, b, ring, keyring.Gateway("gw1"))
	for _, reply := range []string{events.LogSubject(0), events.AuditSigned, events.WorkSubject("ref", events.RoleDecode), "$JS.work.API.STREAM.DELETE." + events.WorkStream} {
		if err := nc.PublishRequest(events.ReceiptSubject(events.RoleGateway, "gw1"), reply, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-answered:
		case <-ctx.Done():
			t.Fatal("the auditor was not asked")
		}
	}
	if err := auditor.Flush(); err != nil {
		t.Fatal(err)
	}
	// What the server passes on it has passed on before it answers this.
	if _, err := nc.Request(events.ReceiptSubject(events.RoleGateway, "gw1"), nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if n := count(s); n != logged {
		t.Errorf("the log holds %d messages, want %d", n, logged)
	}
	if n := count(queue); n != queued {
		t.Errorf("the work queue holds %d items, want %d", n, queued)
	}
}
