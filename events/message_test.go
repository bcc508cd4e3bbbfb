package events

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMessageGolden(t *testing.T) {
	work := sampleWork()
	lean := *work
	lean.Role, lean.Layout, lean.Traceparent, lean.GrantEpoch = RolePrefill, "", "", 0
	lean.Lease = time.Time{}
	grant := sampleGrant()
	signed := &SignedGrant{Grant: []byte(`{"a":1}`), Signature: []byte{1, 2, 3}}
	beat := &Heartbeat{Epoch: 3, Model: "llama-3.1", FreePages: 16_000, HeldPages: 384, Running: 2, SentAt: sampleTime}
	for name, m := range map[string]message{
		"work": work, "work.lean": &lean, "heartbeat": beat, "answer": sampleAnswer(), "answer.denied": deniedAnswer(),
		"grant": grant, "signed_grant": signed, "prompt_request": &PromptRequest{Part: "prompt", Offset: 524_288},
		"query.get": &GetQuery{RequestID: requestID}, "query.history": &HistoryQuery{RequestID: requestID},
		"query.list":      &ListQuery{Tenant: "acme", State: Rejected, Model: "llama-3.1", Since: sampleTime, Until: sampleTime, Limit: 10, Cursor: "c"},
		"query.list.lean": &ListQuery{}, "query.workers": &WorkersQuery{}, "query.info": &InfoQuery{},
	} {
		b, err := appendMessage(nil, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		golden(t, name, b)
	}
}

func TestMessagesComeBack(t *testing.T) {
	same := func(name string, want, got any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	wb, _ := AppendWork(nil, sampleWork())
	w, err := DecodeWork(wb)
	same("work", sampleWork(), w, err)
	for _, a := range []*Answer{sampleAnswer(), deniedAnswer(), {Subject: "p1", Type: TypeWorkerJoined, ID: "x", Position: "1.0", Hash: "h"}} {
		ab, _ := AppendAnswer(nil, a)
		got, err := DecodeAnswer(ab)
		same("answer", a, got, err)
	}
	h := &Heartbeat{Epoch: 3, Model: "m", SentAt: sampleTime}
	hb, _ := AppendHeartbeat(nil, h)
	hh, err := DecodeHeartbeat(hb)
	same("heartbeat", h, hh, err)
	r := &PromptRequest{Part: "sampling"}
	rb, _ := AppendPromptRequest(nil, r)
	rr, err := DecodePromptRequest(rb)
	same("prompt request", r, rr, err)
	s := &SignedGrant{Grant: []byte(`{"a":[1,"<é",true,{}]}`), Signature: []byte{1, 2, 3}}
	sb, _ := AppendSignedGrant(nil, s)
	ss, err := DecodeSignedGrant(sb)
	same("signed grant", s, ss, err)

	q, err := DecodeList(nil)
	same("empty list query", &ListQuery{Limit: DefaultListLimit}, q, err)
	q, err = DecodeList([]byte(` { "state": "rejected", "since": "2026-01-02T04:04:05+01:00" } `))
	same("list query", &ListQuery{State: Rejected, Since: sampleTime.Truncate(1e9), Limit: DefaultListLimit}, q, err)
	_, err = DecodeWorkers(nil)
	same("workers", nil, nil, err)
	_, err = DecodeInfo([]byte("{}"))
	same("info", nil, nil, err)
	g, err := DecodeGet([]byte(`{"request_id":"` + requestID + `"}`))
	same("get", &GetQuery{requestID}, g, err)
	hq, err := DecodeHistory([]byte(`{"request_id":"` + requestID + `"}`))
	same("history", &HistoryQuery{requestID}, hq, err)
}

func TestMessagesRefuse(t *testing.T) {
	work, _ := AppendWork(nil, sampleWork())
	answer, _ := AppendAnswer(nil, sampleAnswer())
	beat, _ := AppendHeartbeat(nil, &Heartbeat{Epoch: 3, Model: "m", SentAt: sampleTime})
	decode := map[string]func([]byte) error{
		"work":      func(b []byte) error { _, err := DecodeWork(b); return err },
		"answer":    func(b []byte) error { _, err := DecodeAnswer(b); return err },
		"heartbeat": func(b []byte) error { _, err := DecodeHeartbeat(b); return err },
		"prompt":    func(b []byte) error { _, err := DecodePromptRequest(b); return err },
		"signed":    func(b []byte) error { _, err := DecodeSignedGrant(b); return err },
		"get":       func(b []byte) error { _, err := DecodeGet(b); return err },
		"history":   func(b []byte) error { _, err := DecodeHistory(b); return err },
		"list":      func(b []byte) error { _, err := DecodeList(b); return err },
		"workers":   func(b []byte) error { _, err := DecodeWorkers(b); return err },
		"info":      func(b []byte) error { _, err := DecodeInfo(b); return err },
	}
	swap := func(b []byte, old, new string) string {
		if strings.Count(string(b), old) != 1 {
			t.Fatalf("%q does not stand once in %s", old, b)
		}
		return strings.Replace(string(b), old, new, 1)
	}
	for _, tc := range []struct{ what, payload, field string }{
		{"work", swap(work, `"role":"decode"`, `"role":"operator"`), "role"},
		{"work", swap(work, `"digest_key":"0f`, `"digest_key":"0F`), "digest_key"},
		{"work", swap(work, `"max_tokens":256`, `"max_tokens":0`), "max_tokens"},
		{"work", swap(work, `"tenant":"acme",`, ``), "tenant"},
		{"work", swap(work, `"tenant":"acme",`, `"tenant":"acme","tenant":"b",`), "tenant"},
		{"work", string(work) + "1", ""},
		{"answer", swap(answer, `"state":"prefilled"`, `"state":"limbo"`), "state"},
		{"answer", swap(answer, `"kv_key"`, `"kvkey"`), "kvkey"},
		{"answer", swap(answer, `"signature":"`, `"signature":"*`), "grant.signature"},
		{"answer", swap(answer, `"grant":{"request_id":"r"}`, `"grant":{"request_id":r}`), "grant.grant.request_id"},
		{"heartbeat", swap(beat, `"epoch":3`, `"epoch":0`), "epoch"},
		{"heartbeat", swap(beat, `"running":0`, `"running":-1`), "running"},
		{"heartbeat", swap(beat, `2026-01-02T`, `2026-13-02T`), "sent_at"},
		{"prompt", `{"part":"other","offset":0}`, "part"},
		{"prompt", `{"part":"prompt"}`, "offset"},
		{"prompt", ``, ""},
		{"signed", `{"grant":{},"signature":""}{}`, ""},
		{"signed", `{"grant":` + strings.Repeat("[", 99) + `,"signature":""}`, "grant"},
		{"get", ``, "request_id"},
		{"get", `{"request_id":"x"}`, "request_id"},
		{"history", `{"request_id":"x"}`, "request_id"},
		{"list", `{"limit":1001}`, "limit"},
		{"list", `{"state":"limbo"}`, "state"},
		{"list", `{"tenants":"x"}`, "tenants"},
		{"list", `{"since":"yesterday"}`, "since"},
		{"workers", `{"x":1}`, "x"},
		{"info", `[]`, ""},
	} {
		err := decode[tc.what]([]byte(tc.payload))
		var f *FieldError
		if !errors.As(err, &f) || f.Field != tc.field {
			t.Errorf("%s %s: error %v, want one of field %q", tc.what, tc.payload, err, tc.field)
		}
	}
	if _, err := AppendAnswer(nil, &Answer{Type: TypeFailed, Grant: &SignedGrant{Grant: []byte(`{"a":1}}`)}}); err == nil {
		t.Error("an answer carries a grant that breaks out of its place")
	}
}

func TestFrames(t *testing.T) {
	p := PromptChunk{Total: 10, Offset: 3, Bytes: []byte("abc")}
	b := AppendPromptChunk(nil, p)
	got, err := ParsePromptChunk(b)
	if err != nil || cmp.Diff(p, got) != "" {
		t.Errorf("%+v, %v", got, err)
	}
	o := OutputChunk{Index: 7, Tokens: 3, Text: []byte("abc")}
	c := AppendOutputChunk(nil, o)
	gotO, err := ParseOutputChunk(c)
	if err != nil || cmp.Diff(o, gotO) != "" {
		t.Errorf("%+v, %v", gotO, err)
	}
	if _, err := ParsePromptChunk(c); err != ErrFrame {
		t.Errorf("output as prompt: %v", err)
	}
	if _, err := ParseOutputChunk(b); err != ErrFrame {
		t.Errorf("prompt as output: %v", err)
	}
	for i := range 20 {
		if _, err := ParsePromptChunk(b[:i]); err != ErrFrame {
			t.Errorf("prompt frame of %d bytes: %v", i, err)
		}
	}
	for i := range 12 {
		if _, err := ParseOutputChunk(c[:i]); err != ErrFrame {
			t.Errorf("output frame of %d bytes: %v", i, err)
		}
	}
	for _, bad := range []PromptChunk{{Total: 5, Offset: 3, Bytes: []byte("abc")}, {Total: -1}, {Total: 5, Offset: -3}, {Total: 1<<63 - 1, Offset: 1<<63 - 1, Bytes: []byte("abc")}} {
		if _, err := ParsePromptChunk(AppendPromptChunk(nil, bad)); err != ErrFrame {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
