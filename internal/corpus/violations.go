package corpus

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Case is a small trace that breaks a rule.
type Case struct {
	Kind string // id of the violation
	Key  []byte // of its envelopes' MACs
	envs []*events.Envelope
	// Text is an input that is no trace file: event lines, or engines' logs.
	Text []byte
}

// Envelopes are the case's, in order.
func (c *Case) Envelopes() []*events.Envelope { return c.envs }

// Violations has a case for each violation that a trace can show. Whole is a clean
// trace of the same kind.
func Violations() (all []Case) {
	add := func(kind string, build func(*scene)) {
		s := newScene()
		build(s)
		if err := s.Err(); err != nil {
			panic(kind + ": " + err.Error()) // a broken generator
		}
		all = append(all, Case{Kind: kind, envs: s.envs})
	}
	logCases(add)
	endCases(add)
	pageCases(add)
	factCases(add)
	s := newScene()
	s.live(1, giveBack)
	for _, env := range s.envs {
		env.MAC = events.MAC([]byte("key"), env.Partition, env.Expected, env.Lines)
	}
	s.envs[len(s.envs)-1].MAC = "AAAA"
	all = append(all, Case{Kind: "log-mac", Key: []byte("key"), envs: s.envs})
	return append(all, texts()...)
}

// Whole is a trace without violations: a decoded request, a failed one, a rejected
// one, a denial and a cancelled one.
func Whole() []*events.Envelope {
	s := newScene()
	s.live(1, giveBack)
	s.live(2, grant)
	s.put(2, s.failed(events.Prefilled))
	s.put(2, s.released(2, events.RolePrefill))
	s.put(2, s.released(2, events.RoleDecode))
	s.live(3, admit)
	s.put(3, s.rejected())
	s.put(3, &events.CommandDenied{Command: events.CmdGrant, State: events.Rejected, Code: events.CodeIllegalState, Message: "grant is not legal in state rejected", Expected: "prefilled", Actual: "rejected"})
	s.live(4, admit)
	s.put(4, &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Admitted})
	return s.envs
}

type adder func(kind string, build func(*scene))

func logCases(add adder) {
	add("log-gap", func(s *scene) {
		s.live(1, giveBack)
		s.envs = append(s.envs[:4:4], s.envs[5:]...)
	})
	add("log-duplicate", func(s *scene) {
		s.live(1, giveBack)
		s.envs = append(s.envs, s.envs[len(s.envs)-1])
	})
	add("log-unreadable", func(s *scene) {
		s.live(1, admit)
		s.envs[len(s.envs)-1].Lines = []byte("{}\n")
	})
	add("tenant-chain-gap", func(s *scene) {
		s.live(1, admit)
		for _, c := range s.tenants {
			c.seq++
		}
		s.put(1, s.prefilled(1))
	})
	add("tenant-chain-hash", func(s *scene) {
		s.live(1, admit)
		for _, c := range s.tenants {
			c.hash = events.Hash([]byte("altered"))
		}
		s.put(1, s.prefilled(1))
	})
	add("event-outside-history", func(s *scene) {
		s.raw(&events.Event{ID: "loose", Subject: s.id(1), Data: s.released(1, events.RolePrefill)})
	})
	add("history-gap", func(s *scene) {
		s.live(1, admit)
		s.subjects[s.id(1)].n++
		s.put(1, s.prefilled(1))
	})
	add("history-headless", func(s *scene) {
		s.subjects[s.id(1)] = &place{1, events.Position{Seq: 1}}
		s.put(1, s.prefilled(1))
	})
	add("wrong-partition", func(s *scene) {
		s.at = s.at.Add(time.Millisecond)
		s.Log.put((events.PartitionOf(s.id(1), s.Partitions)+1)%s.Partitions, s.at, s.id(1), tenantOf(1), s.admitted())
	})
	add("command-twice", func(s *scene) {
		s.live(1, prefill)
		s.Command = "0a0b"
		s.put(1, s.granted(1))
		g := s.granted(1)
		g.GrantEpoch = 2
		s.put(1, g)
	})
	add("denial-unjust", func(s *scene) {
		s.live(1, prefill)
		s.put(1, &events.CommandDenied{Command: events.CmdGrant, State: events.Prefilled, Code: events.CodeIllegalState, Message: "grant is not legal"})
	})
	add("denial-outside-history", func(s *scene) {
		s.live(1, admit)
		s.raw(&events.Event{ID: "loose", Subject: s.id(1), Data: &events.CommandDenied{Command: events.CmdGrant, State: events.New, Code: events.CodeUnknownRequest, Message: "no request of this id is open"}})
	})
	add("illegal-operation", func(s *scene) { s.join("p1", events.RolePrefill, 11) })
	add("clock-skew", func(s *scene) {
		s.live(1, prefill)
		s.at = s.at.Add(-10 * time.Second)
		s.put(1, s.granted(1))
	})
}

// raw appends an event without a place in a history.
func (s *scene) raw(e *events.Event) {
	s.at = s.at.Add(time.Millisecond)
	e.Source, e.Type, e.Time = s.Source, e.Data.EventType(), s.at
	b, err := events.Append(nil, e)
	if err != nil {
		s.err = err
		return
	}
	p := events.PartitionOf(e.Subject, s.Partitions)
	s.seq++
	s.err = s.emit(&events.Envelope{Partition: p, Seq: s.seq, Expected: s.last[p], ID: "raw", Lines: append(b, '\n')})
	s.last[p] = s.seq
}

func endCases(add adder) {
	end := func(kind string, last events.State, put func(*scene)) {
		add(kind, func(s *scene) {
			s.live(1, admit)
			if last == events.Rejected {
				s.put(1, s.rejected())
			} else {
				s.put(1, s.failed(events.Admitted))
			}
			put(s)
		})
	}
	end("grant-after-rejection", events.Rejected, func(s *scene) { s.put(1, s.granted(1)) })
	end("transfer-after-rejection", events.Rejected, func(s *scene) { s.put(1, s.transferred()) })
	end("decode-after-rejection", events.Rejected, func(s *scene) { s.put(1, s.decoded()) })
	end("grant-after-failure", events.Failed, func(s *scene) { s.put(1, s.granted(1)) })
	end("transfer-after-failure", events.Failed, func(s *scene) { s.put(1, s.transferred()) })
	end("decode-after-failure", events.Failed, func(s *scene) { s.put(1, s.decoded()) })
	add("event-after-end", func(s *scene) {
		s.live(1, decode)
		s.put(1, s.failed(events.Decoded))
	})
	add("request-reborn", func(s *scene) {
		s.at = s.at.Add(time.Hour)
		s.live(1, admit)
	})
	add("illegal-transition", func(s *scene) {
		s.live(1, prefill)
		s.put(1, s.prefilled(2))
	})
	add("transfer-without-prefill", func(s *scene) {
		s.live(1, admit)
		s.put(1, s.granted(1))
	})
	add("decode-without-prefill", func(s *scene) {
		s.live(1, admit)
		s.put(1, s.decoded())
	})
	add("decode-without-transfer", func(s *scene) {
		s.live(1, grant)
		s.put(1, s.decoded())
	})
	add("grant-used-twice", func(s *scene) {
		s.live(1, transfer)
		s.put(1, s.transferred())
	})
	add("illegal-history", func(s *scene) {
		s.live(1, prefill)
		s.put(1, s.failed(events.Admitted))
	})
	add("ended-late", func(s *scene) {
		s.live(1, admit)
		s.at = s.at.Add(11 * time.Minute)
		s.put(1, s.failed(events.Admitted))
	})
	late := func(s *scene) { // another request shows that time has passed
		s.at = s.at.Add(11 * time.Minute)
		s.PutOps(s.at, "ref", &events.ModelQuarantined{Model: "ref", Reason: "looked at"})
	}
	add("never-ended", func(s *scene) {
		s.live(1, prefill)
		late(s)
	})
	add("pages-kept", func(s *scene) {
		s.live(1, decode)
		late(s)
	})
}

func pageCases(add adder) {
	add("grant-wrong-owner", func(s *scene) {
		change(s, 1, prefill, s.granted(1), func(d *events.TransferGranted) { d.OwnerEpoch = 10 })
	})
	add("grant-released-pages", func(s *scene) {
		s.live(1, prefill)
		s.put(1, s.released(1, events.RolePrefill))
		s.put(1, s.granted(1))
	})
	add("transfer-wrong-worker", func(s *scene) {
		change(s, 1, grant, s.transferred(), func(d *events.RequestTransferred) { d.Worker = "d2" })
	})
	add("kv-differs", func(s *scene) {
		change(s, 1, grant, s.transferred(), func(d *events.RequestTransferred) { d.KVDigest = digest("e") })
	})
	add("transfer-into-released-pages", func(s *scene) {
		s.live(1, grant)
		s.put(1, s.released(1, events.RoleDecode))
		s.put(1, s.transferred())
	})
	add("read-past-lease", func(s *scene) {
		s.live(1, grant)
		s.at = s.at.Add(40 * time.Second)
		s.put(1, s.transferred())
	})
	add("decode-wrong-worker", func(s *scene) {
		change(s, 1, transfer, s.decoded(), func(d *events.RequestDecoded) { d.Worker = "d2" })
	})
	add("decode-from-released-pages", func(s *scene) {
		s.live(1, transfer)
		s.put(1, s.released(1, events.RoleDecode))
		s.put(1, s.decoded())
	})
	add("freed-undrained", func(s *scene) {
		change(s, 1, decode, s.released(1, events.RolePrefill), func(d *events.RequestReleased) { d.Drained = false })
	})
	add("freed-unscrubbed", func(s *scene) {
		change(s, 1, decode, s.released(1, events.RolePrefill), func(d *events.RequestReleased) { d.Scrubbed = false })
	})
	add("page-held-by-another", func(s *scene) {
		s.live(1, prefill)
		change(s, 2, admit, s.prefilled(2), func(d *events.RequestPrefilled) { d.Pages[0].Start = 12 })
	})
	add("page-generation", func(s *scene) {
		s.live(2, giveBack)
		change(s, 1, admit, s.prefilled(1), func(d *events.RequestPrefilled) { d.Pages[0].Start = 20 })
	})
	add("release-unheld", func(s *scene) {
		s.live(1, prefill)
		change(s, 2, admit, s.prefilled(2), func(d *events.RequestPrefilled) { d.Pages[0].Start = 10 })
		s.put(1, s.failed(events.Prefilled))
		s.put(1, s.released(1, events.RolePrefill))
	})
	// The incident in small: pages that were freed as they are, a rejection that
	// nobody asks for, and an output from what the pages held.
	add("stale-pages-read", func(s *scene) {
		s.live(1, decode)
		for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
			d := s.released(1, role)
			d.Scrubbed = false
			s.put(1, d)
		}
		s.live(2, admit)
		s.put(2, s.rejected())
		p := s.prefilled(2)
		p.PromptTokens, p.Pages[0].Count, p.KVBytes = 1, 1, 64
		s.put(2, p)
		g := s.granted(2)
		g.Pages[0].Start = 10
		s.put(2, g)
		t := s.transferred()
		t.KVBytes = 64
		s.put(2, t)
		s.put(2, s.decoded())
	})
	add("unwritten-pages-read", func(s *scene) {
		change(s, 1, grant, s.transferred(), func(d *events.RequestTransferred) { d.KVBytes = 64 })
		s.put(1, s.decoded())
	})
}

func factCases(add adder) {
	add("tenant-differs", func(s *scene) {
		s.live(1, admit)
		s.at = s.at.Add(time.Millisecond)
		s.Put(s.at, s.id(1), tenantOf(2), s.prefilled(1))
	})
	add("request-id-malformed", func(s *scene) { s.Put(s.at, "request-1", tenantOf(1), s.admitted()) })
	admission := func(kind string, edit func(*events.RequestAdmitted)) {
		add(kind, func(s *scene) { change(s, 1, 0, s.admitted(), edit) })
	}
	admission("admitted-against-facts", func(d *events.RequestAdmitted) { d.Facts.MaxInputTokens = 99 })
	admission("deadlines-out-of-order", func(d *events.RequestAdmitted) { d.PrefillBy = d.Deadline.Add(time.Second) })
	add("success-status-on-error", func(s *scene) {
		change(s, 1, admit, s.rejected(), func(d *events.RequestRejected) { d.Error.Status = 200 })
	})
	add("rejected-unadmitted", func(s *scene) { s.put(1, s.rejected()) })
	atAdmission := func(kind string, edit func(*scene, *events.RequestRejected)) {
		add(kind, func(s *scene) {
			d := s.rejected()
			d.Stage, d.Worker = "admission", ""
			edit(s, d)
			s.put(1, d)
		})
	}
	atAdmission("rejected-without-facts", func(*scene, *events.RequestRejected) {})
	atAdmission("rejected-against-facts", func(s *scene, d *events.RequestRejected) { f := s.facts(); d.Facts = &f })
	add("token-count-prefill", func(s *scene) {
		change(s, 1, admit, s.prefilled(1), func(d *events.RequestPrefilled) { d.PromptTokens = 1 })
	})
	add("token-count-decode", func(s *scene) {
		change(s, 1, transfer, s.decoded(), func(d *events.RequestDecoded) { d.PromptTokens = 99 })
	})
	add("pages-below-prompt", func(s *scene) {
		change(s, 1, admit, s.prefilled(1), func(d *events.RequestPrefilled) { d.Pages[0].Count = 6 })
	})
	add("reference-missing", func(s *scene) {
		change(s, 1, admit, s.prefilled(1), func(d *events.RequestPrefilled) { d.Layout, d.Reference = events.ExternalLayout+"vllm", "" })
	})
	add("lease-malformed", func(s *scene) {
		change(s, 1, admit, s.prefilled(1), func(d *events.RequestPrefilled) { d.Lease = d.Lease.Add(time.Hour) })
	})
	add("grant-epoch", func(s *scene) {
		change(s, 1, prefill, s.granted(1), func(d *events.TransferGranted) { d.GrantEpoch = 2 })
	})
	add("grant-past-lease", func(s *scene) {
		s.live(1, prefill)
		s.at = s.at.Add(40 * time.Second)
		s.put(1, s.granted(1))
	})
	add("reservation-too-small", func(s *scene) {
		change(s, 1, prefill, s.granted(1), func(d *events.TransferGranted) { d.ReservedTokens = 119 })
	})
	add("transfer-by-other-grant", func(s *scene) {
		change(s, 1, grant, s.transferred(), func(d *events.RequestTransferred) { d.GrantEpoch = 2 })
	})
	add("output-ended-improperly", func(s *scene) {
		change(s, 1, transfer, s.decoded(), func(d *events.RequestDecoded) { d.CompletionTokens = 21 })
	})
}

// texts are the violations that other inputs show.
func texts() []Case {
	s := newScene()
	s.live(1, giveBack)
	var lines []byte
	for _, env := range s.envs {
		lines = append(lines, env.Lines...)
	}
	stats := func(kind, rid, room, in string) string {
		return "[2026-06-01 08:00:00] ReqTimeStats(rid=" + rid + ", bootstrap_room=" + room + ", input_len=" + in + ", output_len=1, type=" + kind + "): entry_time=1780300000.000000\n"
	}
	return []Case{
		{Kind: "log-hole", Text: append([]byte("{\"pdgate_gap\":{\"from\":3,\"to\":5}}\n"), lines...)},
		{Kind: "log-foreign", Text: append([]byte("{\"pdgate_foreign\":{\"seq\":3,\"sha256\":\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}}\n"), lines...)},
		{Kind: "leg-missing", Text: []byte(stats("decode", "d1", "7", "100"))},
		{Kind: "room-used-twice", Text: []byte(stats("prefill", "p1", "7", "100") + stats("decode", "d1", "7", "100") + stats("decode", "d2", "7", "100"))},
	}
}
