package process

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/keyring"
)

const sigint = syscall.SIGINT

// stopLimit is how long a clean stop may take.
const stopLimit = 5 * time.Second

// TestInterrupt stops every part with Ctrl-C in turn, under load: each ends
// cleanly and soon, nobody gets a wrong answer, and no request is left behind.
func TestInterrupt(t *testing.T) {
	began := time.Now()
	c := newCluster(t)
	nc := connect(t, "nats://"+c.nats, c.ring, keyring.Operator)
	op := operator(t, nc)
	audit := newAuditor(t, connect(t, "nats://"+c.nats, c.ring, keyring.Admin), c.ring)
	l := newLoad(t, c.http)
	l.flows(began, "", inFlight)
	for _, part := range []string{"lc1", "lc2", "p1", "d1", "gw1", "nats"} {
		at := time.Now()
		p := c.parts[part]
		if err := p.signal(sigint); err != nil {
			t.Fatal(err)
		}
		took, err := p.ended(2 * stopLimit)
		if err != nil || took > stopLimit || p.code() != 0 {
			t.Errorf("%s: exit code %d after %v: %v %v", part, p.code(), took, err, p.err)
		}
		begun := time.Now()
		c.start(part)
		c.whole(op, []string{part}, begun)
		l.flows(begun, "", 1)
		t.Logf("interrupt %-4s ended after %4d ms, whole again after %4d ms", part, took.Milliseconds(), time.Since(at).Milliseconds())
	}
	all := l.calm()
	audit.settled(settleIn)
	c.idle(op, 4)
	for _, problem := range audit.judge(all, nil) {
		t.Error(problem)
	}
	t.Logf("%s", summary(all))
	c.interrupt("gw1", "gw2", "d1", "d2", "p1", "p2", "lc1", "lc2", "nats")
	c.checkLogs()
}

// TestInterruptUp does the same to everything in one process.
func TestInterruptUp(t *testing.T) {
	u := startUp(t, t.TempDir())
	l := newLoad(t, map[string]string{"up": u.url})
	l.flows(time.Now(), "", inFlight)
	if err := u.signal(sigint); err != nil {
		t.Fatal(err)
	}
	took, err := u.ended(2 * stopLimit)
	if err != nil || took > stopLimit || u.code() != 0 {
		t.Errorf("exit code %d after %v: %v %v", u.code(), took, err, u.err)
	}
	all := l.calm()
	checkLog(t, u.proc)

	again := startUp(t, u.data)
	audit := newAuditor(t, connect(t, again.nats, again.ring, keyring.Admin), again.ring)
	left := audit.settled(settleIn)
	for _, problem := range audit.judge(all, nil) {
		t.Error(problem)
	}
	t.Logf("ended after %d ms; the last request ended %d ms after the next start; %s", took.Milliseconds(), left.Milliseconds(), summary(all))
	again.stop(t)
}

// TestSecondInterrupt lets a stop wait for a request that cannot end: a second
// signal does not wait.
func TestSecondInterrupt(t *testing.T) {
	c := newCluster(t)
	c.parts["gw1"].kill()
	c.args["gw1"] = append(c.args["gw1"], "--drain", "50s")
	c.start("gw1")
	await(t, "gw1 ready", patience, func() bool { return c.ready("gw1") })
	stuck := []string{"d1", "d2"}
	for _, part := range stuck {
		if err := c.parts[part].signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	l := newLoad(t, map[string]string{"gw1": c.http["gw1"]})
	nc := connect(t, "nats://"+c.nats, c.ring, keyring.Operator)
	op := operator(t, nc)
	audit := newAuditor(t, connect(t, "nats://"+c.nats, c.ring, keyring.Admin), c.ring)
	await(t, "requests are open", patience, func() bool {
		audit.read()
		return audit.checker.Report().Open >= inFlight/2
	})
	gw := c.parts["gw1"]
	if err := gw.signal(sigint); err != nil {
		t.Fatal(err)
	}
	await(t, "the gateway refuses", patience, func() bool { return !c.ready("gw1") })
	if _, err := gw.ended(500 * time.Millisecond); err == nil {
		t.Fatalf("the gateway ended with open requests: %v", gw.err)
	}
	if err := gw.signal(sigint); err != nil {
		t.Fatal(err)
	}
	took, err := gw.ended(stopLimit)
	if err != nil || gw.died() != sigint {
		t.Errorf("second interrupt: %v, %v after %v", err, gw.err, took)
	}
	for _, part := range stuck {
		if err := c.parts[part].signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	all := l.calm()
	audit.settled(settleIn)
	for _, problem := range audit.judge(all, nil) {
		t.Error(problem)
	}
	t.Logf("second interrupt: ended after %d ms; %s; %d s in all", took.Milliseconds(), summary(all), int(time.Since(began).Seconds()))
	c.idle(op, 4)
}

// TestInterruptAlone stops parts whose NATS server is gone: they cannot say
// goodbye, and must not wait for long to.
func TestInterruptAlone(t *testing.T) {
	c := newCluster(t)
	c.parts["nats"].kill()
	parts := []string{"gw1", "gw2", "d1", "d2", "p1", "p2", "lc1", "lc2"}
	at := time.Now()
	for _, part := range parts {
		if err := c.parts[part].signal(sigint); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range parts {
		p := c.parts[part]
		_, err := p.ended(max(0, stopLimit-time.Since(at)))
		t.Logf("%s ended after %d ms", part, time.Since(at).Milliseconds())
		if err != nil || p.code() != 0 {
			t.Errorf("%s: %v, exit code %d: %s", part, err, p.code(), last(p.stderr.String(), 2))
		}
	}
	c.checkLogs()
}

// TestInterruptWaiting stops parts that wait for a NATS server, and for a
// lifecycle service, that never came.
func TestInterruptWaiting(t *testing.T) {
	c := newCluster(t)
	for _, part := range []string{"lc1", "lc2", "nats", "gw1", "p1", "d1"} {
		c.parts[part].kill()
	}
	wait := func(part, sign string) {
		t.Helper()
		p := c.parts[part]
		await(t, part+" waits", patience, func() bool { return strings.Contains(p.stderr.String(), sign) })
		if err := p.signal(sigint); err != nil {
			t.Fatal(err)
		}
		if took, err := p.ended(stopLimit); err != nil || p.code() != 0 {
			t.Errorf("%s: %v, exit code %d after %v: %s", part, err, p.code(), took, last(p.stderr.String(), 2))
		}
	}
	for _, part := range []string{"lc1", "gw1", "p1", "d1"} {
		c.start(part)
	}
	for _, part := range []string{"lc1", "gw1", "p1", "d1"} {
		wait(part, "trying again")
	}
	c.start("nats")
	for _, part := range []string{"gw1", "p1", "d1"} {
		c.start(part)
	}
	for _, part := range []string{"gw1", "p1", "d1"} {
		wait(part, "no lifecycle service answers yet")
	}
	c.checkLogs()
}
