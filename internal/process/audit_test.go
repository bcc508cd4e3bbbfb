package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/statemachine"
)

// auditor reads the log and judges it. It knows nothing but the log, its key,
// and what clients and operators were told.
type auditor struct {
	t       *testing.T
	log     *journal.JetStream
	checker *statemachine.Checker
	next    uint64
	seen    map[string]entry // by position
	secret  []byte
}

// entry is an event that stands in the log.
type entry struct {
	subject, hash string
}

func newAuditor(t *testing.T, nc *nats.Conn, ring *keyring.Ring) *auditor {
	t.Helper()
	key, err := ring.LogKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := ring.DigestSecret()
	if err != nil {
		t.Fatal(err)
	}
	log, err := journal.OpenJetStream(t.Context(), nc, journal.Config{Key: key, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &auditor{
		t: t, log: log, next: 1, seen: map[string]entry{}, secret: secret,
		checker: statemachine.NewChecker(statemachine.CheckerConfig{Partitions: log.Partitions(), Key: key}),
	}
}

var errRead = errors.New("read to the end")

// read goes on to the present end of the log.
func (a *auditor) read() {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	end, err := a.log.Last(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	if end < a.next {
		return
	}
	err = a.log.Follow(ctx, a.next, func(env *events.Envelope) error {
		if err := a.checker.Add(env); err != nil {
			return err
		}
		line := 0
		err := events.Split(env.Lines, func(n int, b []byte) error {
			e, err := events.Decode(b)
			if err != nil {
				return err
			}
			line = n
			a.seen[events.Position{Seq: env.Seq, Line: n}.String()] = entry{e.Subject, events.Hash(b)}
			return nil
		})
		if err != nil {
			a.t.Errorf("envelope %d, line %d: %v", env.Seq, line, err)
		}
		if a.next = env.Seq + 1; a.next > end {
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		a.t.Fatalf("read the log: %v", err)
	}
}

// settled waits until no request is open, and says how long that took.
func (a *auditor) settled(limit time.Duration) time.Duration {
	a.t.Helper()
	begin := time.Now()
	await(a.t, "every request has ended, and every page is free", limit, func() bool {
		a.read()
		r := a.checker.Report()
		return r.Open == 0 || !r.OK()
	})
	return time.Since(begin)
}

// judge compares the whole log with itself, with what clients were given, and
// with what operators were told. It returns what is wrong.
func (a *auditor) judge(all []outcome, told []events.Answer) []string {
	a.t.Helper()
	a.read()
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	cancelled := map[string]bool{}
	for _, ans := range told {
		if ans.Denied == nil {
			cancelled[ans.Subject] = true
		}
	}
	var clients []statemachine.ClientOutcome
	for i := range all {
		o := &all[i]
		switch {
		case o.wrong != "":
			add("S5: request %s through %s: HTTP %d: %s", o.id, o.gateway, o.status, o.wrong)
		case o.status == 0 || o.status == http.StatusOK || o.status == http.StatusTooManyRequests || o.status >= 500:
		case o.status == 499 && cancelled[o.id]:
		default:
			add("request %s through %s: HTTP %d %s", o.id, o.gateway, o.status, o.code)
		}
		for _, r := range o.receipts {
			position, hash, _ := strings.Cut(r, ";")
			if e, ok := a.seen[position]; !ok || e.hash != hash || e.subject != o.id {
				add("S4: the receipt %q of request %s is not what the log has there: %+v", r, o.id, e)
			}
		}
		if o.id == "" {
			continue
		}
		client := statemachine.ClientOutcome{RequestID: o.id, Status: o.status, Complete: o.complete}
		if o.complete && o.status == http.StatusOK {
			client.OutputDigest = events.Digest(events.RequestKey(a.secret, o.id), events.KindOutput, o.output)
		}
		clients = append(clients, client)
	}
	a.checker.CheckClients(clients)
	a.checker.CheckAnswers(told)
	a.checker.Close(time.Now())
	r := a.checker.Report()
	for _, v := range r.Violations {
		add("%v", v)
	}
	if r.Open != 0 {
		add("%d requests are open", r.Open)
	}
	return wrong
}

// bites spoils what was judged and found right, in one way at a time: judge must
// see each. It leaves the auditor's checker full of complaints.
func (a *auditor) bites(all []outcome, told []events.Answer) {
	a.t.Helper()
	i := slices.IndexFunc(all, func(o outcome) bool { return o.status == http.StatusOK && o.complete && len(o.output) > 0 })
	j := slices.IndexFunc(told, func(ans events.Answer) bool { return ans.Denied == nil })
	if i < 0 || j < 0 {
		a.t.Fatal("nothing to spoil")
	}
	for name, spoil := range map[string]func(*outcome, *events.Answer){
		"a wrong answer":              func(o *outcome, _ *events.Answer) { o.wrong = "as the client found" },
		"an answer of another":        func(o *outcome, _ *events.Answer) { o.output = append(slices.Clone(o.output), 'x') },
		"a receipt of nothing":        func(o *outcome, _ *events.Answer) { o.receipts = []string{"99999999.0;x"} },
		"a receipt of another":        func(o *outcome, _ *events.Answer) { o.receipts = []string{told[j].Position + ";" + told[j].Hash} },
		"a success that is not known": func(o *outcome, _ *events.Answer) { o.id = strings.Repeat("0", 36) },
		"a success that was cancelled": func(o *outcome, _ *events.Answer) {
			o.id, o.receipts, o.output = told[j].Subject, nil, nil
		},
		"a 4xx":                      func(o *outcome, _ *events.Answer) { o.status = http.StatusBadRequest },
		"an answer at another place": func(_ *outcome, ans *events.Answer) { ans.Position = "1.0" },
		"an answer that was lost":    func(_ *outcome, ans *events.Answer) { ans.ID += "0" },
	} {
		was := len(a.checker.Report().Violations)
		o, ans := all[i], told[j]
		spoil(&o, &ans)
		if n := len(a.judge([]outcome{o}, []events.Answer{ans})); n <= was {
			a.t.Errorf("the judge does not see %s", name)
		}
	}
}
