package lifecycle

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// A stop waits for grants that are not signed yet, and a queue that is full
// holds up whoever adds to it rather than losing an answer.
func TestSigner(t *testing.T) {
	s := bare(t).s
	sent := make(chan *nats.Msg, 2*maxSigning)
	s.publish = func(m *nats.Msg) error { sent <- m; return nil }
	s.signer = newSigner(s)
	grant := func() {
		id := newID(t)
		s.signSoon(signing{&caller{reply: "_INBOX.a.1", cmd: events.CmdGrant},
			events.Answer{Subject: id, State: events.Prefilled, Type: events.TypeTransferGranted, ID: id + ".3", Position: "7.0", Hash: "h"}, &events.Grant{RequestID: id}, ""})
	}
	for range maxSigning {
		grant()
	}
	if n := s.unanswered(); n != maxSigning || len(sent) != 0 {
		t.Fatalf("%d grants wait, %d answers are out", n, len(sent))
	}
	if grant(); len(sent) != 1 {
		t.Errorf("a grant above the limit: %d answers", len(sent))
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.signer.run(ctx) }()
	for range maxSigning + 1 {
		a, err := events.DecodeAnswer((<-sent).Data)
		if err != nil {
			t.Fatal(err)
		}
		g, err := a.Grant.Open(s.grantPublic)
		if err != nil || g.RequestID != a.Subject || a.KVKey != kvKey(events.DigestKey{Secret: s.cfg.DigestSecret}, a.Subject) {
			t.Fatalf("answer %+v, grant %+v: %v", a, g, err)
		}
	}
	until(t, "no command waits", func() bool { return s.unanswered() == 0 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
