package partition

import (
	"fmt"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// instant is a port whose log stores at once and keeps nothing.
type instant struct {
	loop   *Loop
	tokens []uint64
	envs   []*events.Envelope
	seq    uint64
}

func (p *instant) Publish(token uint64, env *events.Envelope) error {
	p.tokens = append(p.tokens, token)
	p.envs = append(p.envs, copied(env))
	return nil
}
func (p *instant) Answer(any, *events.Answer, *events.Error)              {}
func (p *instant) Committed(*events.Event, events.Position, []byte, bool) {}
func (p *instant) Alarm(error)                                            {}
func (p *instant) settle(now time.Time, other *Loop) {
	for len(p.tokens) > 0 {
		t, env := p.tokens[0], p.envs[0]
		p.tokens, p.envs = p.tokens[1:], p.envs[1:]
		p.seq++
		env.Seq = p.seq
		if other != nil {
			if err := other.Followed(env, now); err != nil {
				panic(err)
			}
		}
		p.loop.Stored(t, p.seq, now)
	}
}

// BenchmarkLoop is the loop without I/O: queue, decide, encode, fold, answer. An
// operation is one command; group is how many wait together. follower adds what
// a standby replica does for it.
func BenchmarkLoop(b *testing.B) {
	for _, group := range []int{1, 64, 512} {
		for _, standby := range []bool{false, true} {
			b.Run(fmt.Sprintf("group=%d/follower=%v", group, standby), func(b *testing.B) {
				bad := func(f string, a ...any) { b.Errorf(f, a...) }
				p := &instant{}
				now := time.Unix(1_000_000, 0)
				var other *Loop
				var err error
				if p.loop, err = New(Config{Writer: "w"}, newMachine("/w", bad), p); err != nil {
					b.Fatal(err)
				}
				if standby {
					if other, err = New(Config{Writer: "x"}, newMachine("/x", bad), &instant{}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					p.loop.Command(command(events.CmdAdmit, subject(i), "gw1", 0), nil, now)
					if i%group == group-1 {
						p.settle(now, other)
					}
				}
				p.settle(now, other)
			})
		}
	}
}
