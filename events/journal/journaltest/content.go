package journaltest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

const requestID = "01890a5d-ac96-774b-bcce-b302099a8057"

// line is the canonical bytes of the request's n-th event.
func line(n int, prev events.Position) ([]byte, error) {
	e := &events.Event{
		ID:      requestID + "." + strconv.Itoa(n),
		Source:  "/pdgate/lifecycle/lc1",
		Subject: requestID,
		Time:    time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC),
		N:       n, Command: "5b1c5b1c5b1c5b1c5b1c5b1c5b1c5b1c", Principal: "prefill.p1",
		Prev: prev, Tenant: "acme", TenantSeq: uint64(n),
		Type: events.TypeDenied,
		Data: &events.CommandDenied{Command: events.CmdGrant, State: events.New, Code: events.CodeUnknownRequest, Message: "no such request"},
	}
	if n > 1 {
		e.TenantPrev = events.Hash([]byte("before"))
	}
	b, err := events.Append(nil, e)
	return append(b, '\n'), err
}

// history stores the request's events 1 to n, one an envelope, each as the
// second line of partition p; skip leaves that number out. It returns the last position.
func history(ctx context.Context, j journal.Journal, p, n, skip int) (events.Position, error) {
	var pos events.Position
	tail := uint64(0)
	for i := 1; i <= n; i++ {
		if i == skip {
			continue
		}
		b, err := line(i, pos)
		if err != nil {
			return pos, err
		}
		env := &events.Envelope{Partition: p, Expected: tail, ID: fmt.Sprintf("h%d", i), Lines: append([]byte("something else\n"), b...)}
		if tail, err = stored(ctx, j, env); err != nil {
			return pos, err
		}
		pos = events.Position{Seq: tail, Line: 1}
	}
	return pos, nil
}

// patient reads until a lagging replica has caught up.
type patient struct{ j journal.Journal }

func (p patient) Read(ctx context.Context, seq uint64) (*events.Envelope, error) {
	return eventually(ctx, p.j, seq)
}

func checkHistory(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	last, err := history(ctx, j, 0, 5, 0)
	if err != nil {
		return err
	}
	rs, err := journal.History(ctx, patient{j}, last)
	if err != nil {
		return err
	}
	var ns []int
	var prev events.Position
	for _, r := range rs {
		ns = append(ns, r.Event.N)
		b, err := line(r.Event.N, prev)
		if err != nil {
			return err
		}
		if d := cmp.Diff(string(b), string(r.Line)+"\n"); d != "" {
			return fmt.Errorf("event %d has other bytes (-want +got):\n%s", r.Event.N, d)
		}
		prev = r.Pos
	}
	if d := cmp.Diff([]int{1, 2, 3, 4, 5}, ns); d != "" {
		return fmt.Errorf("history (-want +got):\n%s", d)
	}
	if prev != last {
		return fmt.Errorf("history ends at %s, want %s", prev, last)
	}
	return nil
}

func checkHistoryHole(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	for p, skip := range []int{1, 3} {
		last, err := history(ctx, j, p, 4, skip)
		if err != nil {
			return err
		}
		if rs, err := journal.History(ctx, patient{j}, last); !errors.Is(err, journal.ErrHistory) {
			return fmt.Errorf("history without event %d: got %d events and %v, want ErrHistory", skip, len(rs), err)
		}
	}
	return nil
}

// checkForeign puts messages into the log that no holder of the key wrote:
// garbage, no headers, a forged MAC, a genuine envelope moved to another
// partition or to another expectation, subjects that are no partition. The
// follower raises an alarm for each, hands none of their bytes over, and goes
// on; the next append goes under the foreign tail.
func checkForeign(ctx context.Context, l *Log) error {
	alarms := make(chan *journal.ForeignError, 64)
	j, err := l.Open(func(e *journal.ForeignError) { alarms <- e })
	if err != nil {
		return err
	}
	first, err := stored(ctx, j, envelope(0, 0, "first"))
	if err != nil {
		return err
	}
	genuine := envelope(0, 0, "first")
	mac := events.MAC(Key, 0, 0, genuine.Lines)
	head := func(mac, expected string) map[string]string {
		h := map[string]string{events.HeaderEnvelope: "first", events.HeaderMAC: mac}
		if expected != "" {
			h[events.HeaderExpected] = expected
		}
		return h
	}
	cases := []struct {
		name, subject string
		header        map[string]string
		data          []byte
		partition     int
	}{
		{"garbage", events.LogSubject(0), nil, []byte("garbage"), 0},
		{"no bytes", events.LogSubject(1), nil, nil, 1},
		{"forged", events.LogSubject(2), head(events.MAC([]byte("not the key, not the key"), 2, 0, genuine.Lines), "0"), genuine.Lines, 2},
		{"moved to another partition", events.LogSubject(3), head(mac, "0"), genuine.Lines, 3},
		{"without expectation", events.LogSubject(0), head(mac, ""), genuine.Lines, 0},
		{"operations", events.LogOps, head(mac, "0"), genuine.Lines, events.OpsPartition},
		{"no partition", events.LogPrefix + "x.y", head(mac, "0"), genuine.Lines, journal.NoPartition},
		{"partition out of range", events.LogSubject(Partitions), head(mac, "0"), genuine.Lines, journal.NoPartition},
	}
	tail := map[int]uint64{}
	for _, c := range cases {
		seq, err := l.Inject(c.subject, c.header, c.data)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		tail[c.partition] = seq
	}
	end, err := stored(ctx, j, envelope(0, tail[0], "end"))
	if err != nil {
		return err
	}
	envs, err := readUntil(ctx, j, end)
	if err != nil {
		return err
	}
	if len(envs) != len(cases)+2 || envs[0].Seq != first || envs[len(envs)-1].ID != "end" {
		return fmt.Errorf("followed %v, want first, %d foreign ones, end", ids(envs), len(cases))
	}
	for i, c := range cases {
		e := envs[i+1]
		if !journal.Foreign(e) || e.ID != "" || e.MAC != "" || e.Partition != c.partition {
			return fmt.Errorf("%s: handed over %+v, want an empty envelope in partition %d", c.name, e, c.partition)
		}
		select {
		case a := <-alarms:
			if a.Seq != e.Seq || a.Subject != c.subject || a.Err == nil {
				return fmt.Errorf("%s: alarm %+v, want one for %d on %s", c.name, a, e.Seq, c.subject)
			}
		default:
			return fmt.Errorf("%s: no alarm", c.name)
		}
	}
	if len(alarms) > 0 {
		return fmt.Errorf("%d alarms too many", len(alarms))
	}
	return nil
}
