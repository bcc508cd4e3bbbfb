package simulation

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// call is one command of a gateway or a worker, sent again until it is answered,
// as the product's client does: to the preferred replica first, then to all.
type call struct {
	w       *world
	life    *life
	command *events.Command
	payload []byte
	inbox   string
	tries   int
	over    bool
	done    func(a *events.Answer, err *events.Error)
}

// patience of a call's tries.
const (
	tryFor     = time.Second
	tryAgainIn = 50 * time.Millisecond
)

// do sends a command and calls done with its answer, once, while the process
// lives. Without an answer it goes on for ever: whoever loses interest calls
// drop.
func (w *world) do(l *life, role events.Role, principal, subject string, data events.CommandData, done func(*events.Answer, *events.Error)) *call {
	w.names++
	c := &call{
		w: w, life: l, done: done, inbox: fmt.Sprintf("_INBOX.%s-%s.%d", role, principal, w.names),
		command: &events.Command{Type: data.CommandType(), Subject: subject, Role: role, Principal: principal, Data: data},
	}
	var err error
	if c.payload, err = events.AppendCommand(nil, c.command); err != nil {
		w.breach(RuleRefused, "%s: %v", data.CommandType(), err)
		c.over = true
		return c
	}
	w.calls[c.inbox] = c
	c.try()
	return c
}

func (c *call) drop() {
	if c != nil && !c.over {
		c.over = true
		delete(c.w.calls, c.inbox)
	}
}

func (c *call) try() {
	w := c.w
	if c.over || c.life.dead {
		return
	}
	c.tries++
	p := w.partitionOf(c.command)
	all := c.tries > 1
	subject := events.CommandSubject(c.command.Role, c.command.Principal, c.command.Type, p)
	if all {
		subject = events.CommandSubjectAny(c.command.Role, c.command.Principal, c.command.Type, p)
	}
	heard := 0
	for _, r := range w.replicas {
		if r.life.dead || !r.core.CaughtUp() || !all && !r.mine[p] {
			continue
		}
		heard++
		w.deliver(string(c.command.Type)+" of "+short(c.command.Subject), func() {
			w.let(r.life, func() { r.core.Command(subject, c.inbox, c.payload) })
		})
	}
	again := tryFor
	if heard == 0 { // no responders
		again = tryAgainIn
	}
	w.on(c.life, again+w.jitter(), c.try)
}

func (c *call) answer(a *events.Answer, err *events.Error) {
	if c.over {
		return
	}
	if err != nil && (err.Code == events.CodeBackpressure || err.Code == events.CodeUnavailable) {
		return // the next try asks again
	}
	if err != nil {
		c.w.breach(RuleRefused, "%s of %s by %s: %s", c.command.Type, short(c.command.Subject), c.command.From(), err.Code)
	}
	c.drop()
	c.done(a, err)
}

func (w *world) partitionOf(c *events.Command) int {
	switch c.Type {
	case events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdNotify:
		return events.OpsPartition
	}
	return events.PartitionOf(c.Subject, w.partitions)
}

// ask is a query to any one replica; done gets nil where nothing comes.
func (w *world) ask(l *life, id string, done func(*events.RequestView)) {
	over := false
	once := func(v *events.RequestView) {
		if !over {
			over = true
			done(v)
		}
	}
	w.on(l, 2*time.Second, func() { once(nil) })
	r := w.replicas[w.rnd.IntN(len(w.replicas))]
	if r.life.dead || !r.core.CaughtUp() {
		return
	}
	w.deliver("", func() {
		w.let(r.life, func() {
			v := r.core.View(id)
			w.deliver("", func() { w.let(l, func() { once(v) }) })
		})
	})
}

// deliver carries a message: it may be lost, come twice, or late. what names it
// in the transcript where it is lost.
func (w *world) deliver(what string, f func()) {
	if w.chance(w.odds.lost) {
		w.seen["lost"]++
		if what != "" {
			w.say("lost: %s", what)
		}
		return
	}
	w.after(w.delay(), f)
	if w.chance(w.odds.twice) {
		w.seen["doubled"]++
		w.after(w.delay(), f)
	}
}
