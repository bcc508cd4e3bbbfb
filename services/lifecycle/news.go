package lifecycle

import (
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// news is what an envelope says of one model's requests, for the announcement.
type news struct {
	model  string
	notice *events.Notice
}

// tell notes an event for the announcement. The lock is held.
func (n *node) tell(model string, pos events.Position, line []byte) {
	var last *events.Notice
	for i := range n.news {
		if n.news[i].model == model {
			last = n.news[i].notice
		}
	}
	if last == nil || last.Size()+len(line) > n.svc.noticeLimit {
		last = &events.Notice{Seq: pos.Seq, Lines: make([]byte, 0, n.told+n.told/4+1024)}
		n.news = append(n.news, news{model, last})
	}
	last.Add(pos.Line, line)
}

// announce tells what was folded, in one message a model. A message that is lost
// is a delay: gateways and workers ask for what they have not heard. The lock is
// held.
func (n *node) announce() {
	for _, x := range n.news {
		n.told = len(x.notice.Lines)
		n.svc.send(&nats.Msg{
			Subject: events.NotifySubject(x.model, n.partition), Data: x.notice.Lines,
			Header: nats.Header{events.HeaderPosition: {x.notice.Positions()}, events.HeaderContent: {events.ContentEvents}},
		})
	}
	clear(n.news)
	n.news = n.news[:0]
}
