package broker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// openDisclosures makes the stream as lifecycle does, and stores one message as a
// gateway.
func openDisclosures(t *testing.T, b *Broker, ring *keyring.Ring) (eraser jetstream.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	life, err := jetstream.NewWithDomain(connect(t, b, ring, keyring.LifecycleBus), events.DisclosureDomain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := life.CreateStream(ctx, jetstream.StreamConfig{Name: events.DisclosureStream, Subjects: []string{events.DisclosureAll}}); err != nil {
		t.Fatal(err)
	}
	gw, err := jetstream.New(connect(t, b, ring, keyring.Gateway("gw1")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gw.Publish(ctx, events.DisclosureSubject("acme", requestID), []byte("sealed")); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(connect(t, b, ring, keyring.Eraser))
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, events.DisclosureStream)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What the eraser may do works, and what it may not is refused by the server.
func TestEraser(t *testing.T) {
	b, ring := startBroker(t)
	s := openDisclosures(t, b, ring)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := s.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(events.DisclosureSubject("*", requestID)))
	if err != nil || string(m.Data) != "sealed" {
		t.Fatalf("%v %v", m, err)
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(events.DisclosureSubject("other", ">"))); err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(ctx); err != nil || info.State.Msgs != 1 {
		t.Fatalf("another tenant's purge: %+v %v", info, err)
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(events.DisclosureSubject("acme", ">"))); err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(ctx); err != nil || info.State.Msgs != 0 {
		t.Fatalf("%+v %v", info, err)
	}
	nc := connect(t, b, ring, keyring.Eraser)
	for _, subject := range []string{events.DisclosureSubject("acme", requestID), js + "STREAM.DELETE." + events.DisclosureStream, js + "STREAM.UPDATE." + events.DisclosureStream} {
		if err := nc.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		if !forbidden(t, nc, subject) {
			t.Errorf("the eraser publishes %s", subject)
		}
	}
}

// No user of BUS reads or takes away a disclosure, whatever it asks and wherever
// it has the answer sent. With the API exported, the same request does: what holds
// is the export's absence.
func TestDisclosuresStay(t *testing.T) {
	purge := js + "STREAM.PURGE." + events.DisclosureStream
	kept := append(slices.Clone(disclosedKeeps), events.DisclosureAll)
	for name, tt := range map[string]struct {
		edit func(string, *keyring.Ring) string
		gone bool
	}{
		"as configured": {nil, false},
		"with the API exported": {func(text string, ring *keyring.Ring) string {
			text = strings.Replace(text, exports(shared{kept, []account{accountBus}}), exports(shared{append(slices.Clone(kept), purge), []account{accountBus}}), 1)
			return strings.Replace(text, "      { service: { account: WORK,", "      { service: { account: DISCLOSURES, subject: "+quote(purge)+" }, to: "+quote(disclosedSubject(purge))+" }\n      { service: { account: WORK,", 1)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			start := startBroker
			if tt.edit != nil {
				start = func(t *testing.T) (*Broker, *keyring.Ring) { return startEdited(t, tt.edit) }
			}
			b, ring := start(t)
			s := openDisclosures(t, b, ring)
			openWork(t, b, ring)
			playLifecycle(t, connect(t, b, ring, keyring.LifecycleBus))
			u := keyring.Worker(events.RoleDecode, "d1")
			nc := connect(t, b, ring, u)
			tricks(t, nc, u, takeAll(t, nc, u.Role()), disclosedSubject(purge))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			info, err := s.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if gone := info.State.Msgs == 0; gone != tt.gone {
				t.Errorf("the disclosures are gone: %v, want %v", gone, tt.gone)
			}
		})
	}
}
