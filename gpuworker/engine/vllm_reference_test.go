package engine

import (
	"strings"
	"testing"
	"time"
)

func TestCheckReference(t *testing.T) {
	const good = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r-1","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"future":{}}`
	for _, ok := range []string{
		good, strings.Replace(good, "[[1,2]]", "[1]", 1), strings.Replace(good, "[[1,2]]", `["1"]`, 1), strings.Replace(good, "[[1,2]]", "[[],[3]]", 1),
		strings.Replace(good, `"remote_request_id":"r-1",`, "", 1), strings.Replace(good, `"do_remote_decode":false,`, "", 1),
	} {
		if _, err := checkReference([]byte(ok)); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, change := range [][2]string{
		{good, ""}, {good, "null"}, {good, "[]"}, {good, `"x"`}, {`"do_remote_prefill":true`, `"do_remote_prefill":false`}, {`"do_remote_prefill":true,`, ""},
		{`"do_remote_decode":false`, `"do_remote_decode":true`}, {"[[1,2]]", "[]"}, {"[[1,2]]", "[[]]"}, {"[[1,2]]", "null"}, {"[[1,2]]", "[null]"}, {"[[1,2]]", `"1"`},
		{`"e"`, `""`}, {`"e"`, "null"}, {`"e"`, "1"}, {`"10.0.0.1"`, `""`}, {`"10.0.0.1"`, `"a b"`}, {"5600", "0"}, {"5600", "70000"}, {"5600", "null"}, {`"r-1"`, `""`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if _, err := checkReference([]byte(bad)); err == nil {
			t.Errorf("%s is complete", bad)
		}
	}
}

func TestSeen(t *testing.T) {
	var s seen
	if s.again([]byte("a")) || !s.again([]byte("a")) || s.again([]byte("b")) {
		t.Error("what was seen is not known")
	}
	for i := range mostSeen {
		s.again([]byte{byte(i), byte(i >> 8), byte(i >> 16), 1})
	}
	if len(s.have) != mostSeen || s.again([]byte("a")) {
		t.Errorf("%d are remembered", len(s.have))
	}
}

func TestPairs(t *testing.T) {
	now := time.Unix(1000, 0)
	p := NewPairs(PairsConfig{Failures: 3, Window: time.Minute, Cooldown: time.Minute, Clock: func() time.Time { return now }})
	fail := func(n int) {
		for range n {
			p.Failed("p1", "d1")
		}
	}
	fail(2)
	now = now.Add(2 * time.Minute)
	fail(2) // the first two are too old
	if p.Barred("p1", "d1") {
		t.Error("barred early")
	}
	fail(1)
	if !p.Barred("p1", "d1") || !p.Any("d1") || p.Barred("p1", "d2") || p.Barred("p2", "d1") || p.Any("d2") {
		t.Error("want this pair barred, and no other")
	}
	now = now.Add(time.Minute)
	if p.Barred("p1", "d1") {
		t.Error("barred for too long")
	}
	fail(1) // on trial
	if !p.Barred("p1", "d1") || p.Stats()[0].Bars != 2 {
		t.Errorf("a failed trial: %+v", p.Stats())
	}
	now = now.Add(time.Minute)
	p.Worked("p1", "d1")
	fail(2)
	if p.Barred("p1", "d1") {
		t.Error("barred again before its count")
	}
	var none *Pairs
	none.Failed("a", "b")
	if none.Barred("a", "b") || none.Any("b") || none.Stats() != nil {
		t.Error("nil remembers")
	}
}
