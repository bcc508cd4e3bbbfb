package lifecycle

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// An envelope is announced in one message a model, and in more where one message
// may not hold it. What was announced is not announced again.
func TestAnnounce(t *testing.T) {
	s := bare(t).s
	var sent []*nats.Msg
	s.publish = func(m *nats.Msg) error { sent = append(sent, m); return nil }
	n := s.nodes[1]
	s.noticeLimit = 1000
	line := func(c string) []byte { return []byte(strings.Repeat(c, 300)) }
	for i, x := range []struct{ model, text string }{{"a", "0"}, {"b.1", "1"}, {"a", "2"}, {"a", "3"}, {"a", "4"}} {
		n.tell(x.model, events.Position{Seq: 7, Line: i}, line(x.text))
	}
	n.announce()
	type got struct{ subject, position, first, last string }
	var all []got
	for _, m := range sent {
		if len(m.Data)+len(m.Header.Get(events.HeaderPosition)) > s.noticeLimit {
			t.Errorf("%d bytes in a message of at most %d", len(m.Data), s.noticeLimit)
		}
		var lines []string
		if err := events.ReadNotice(m.Header.Get(events.HeaderPosition), m.Data, func(_ events.Position, l []byte) { lines = append(lines, string(l[:1])) }); err != nil {
			t.Fatal(err)
		}
		all = append(all, got{m.Subject, m.Header.Get(events.HeaderPosition), lines[0], lines[len(lines)-1]})
	}
	want := []got{
		{"pdgate.notify.a.1", "7.0,2", "0", "2"}, {"pdgate.notify.b~1.1", "7.1", "1", "1"}, {"pdgate.notify.a.1", "7.3-4", "3", "4"},
	}
	if !slices.Equal(all, want) {
		t.Errorf("announced %v, want %v", all, want)
	}
	sent = nil
	if n.announce(); len(sent) > 0 {
		t.Errorf("%d messages of nothing", len(sent))
	}
}

// Nobody acknowledges work: after an item was published the stream is looked at
// within a second, and not again without need.
func TestPublishedWorkIsLookedAfter(t *testing.T) {
	s := bare(t).s
	d, now := s.work, s.now()
	d.ensured = now
	if d.mustLook(now) {
		t.Error("the stream is looked at without need")
	}
	d.publish(&events.Work{}, "x") // no valid item: nothing is sent
	if d.mustLook(now) {
		t.Error("nothing was sent, and the stream is looked at")
	}
	id := newID(t)
	d.publish(&events.Work{RequestID: id, Event: id + ".1", Role: events.RolePrefill, Model: testModel, Tenant: testTenant, Gateway: "gw1", PromptTokens: 1, MaxTokens: 1,
		PromptDigest: digestOf("x"), DigestKey: strings.Repeat("0", 32), Deadline: now}, id+".1")
	if !d.mustLook(now) {
		t.Error("work was sent, and the stream is not looked at")
	}
	if d.mustLook(now) || !d.mustLook(now.Add(ensureEvery)) {
		t.Error("the stream is looked at too often, or too seldom")
	}
}
