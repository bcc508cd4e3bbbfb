package lifecycle

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
)

func TestMain(m *testing.M) {
	// The server's access-time service must be born outside of synctest bubbles.
	ats.Register()
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

// One replica takes a request through its whole life, and everything about it
// can be asked for.
func TestLifecycle(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	id := newID(t)
	i.lifecycle(id)
	v, err := i.gw.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if v.State != events.Decoded || len(v.Held) != 0 || v.Events != 7 {
		t.Errorf("request is %+v", v)
	}
	rep := r.check()
	if rep.Open != 0 || rep.Requests != 1 {
		t.Errorf("report: %+v", rep)
	}
}
