package audit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func TestCheckpointIsStrict(t *testing.T) {
	root := tlog.RecordHash([]byte("x"))
	c := &Checkpoint{Origin: testOrigin, Tree: tlog.Tree{N: 3, Hash: root}, CompleteUntil: 9, Other: []string{"somebody else's"}}
	text := c.Text()
	if got, err := ParseCheckpoint(text); err != nil || got.Text() != text || got.CompleteUntil != 9 || len(got.Other) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	head := testOrigin + "\n3\n" + root.String() + "\n"
	if got, err := ParseCheckpoint(head); err != nil || got.CompleteUntil != 0 {
		t.Errorf("without extension lines: %+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "\n3\n" + root.String() + "\n", strings.TrimSuffix(head, "\n"), testOrigin + "\n3\n",
		strings.Replace(head, "\n3\n", "\n03\n", 1), strings.Replace(head, "\n3\n", "\n+3\n", 1), strings.Replace(head, "\n3\n", "\n-3\n", 1),
		strings.Replace(head, "\n3\n", "\n0\n", 1), strings.Replace(head, "=", "", 1), head + "\n", head + "x\n\n",
		head + "pdgate complete-until 0\n", head + "pdgate complete-until 09\n", head + "pdgate complete-until x\n",
		head + "pdgate complete-until 1\npdgate complete-until 2\n", head + "other\npdgate complete-until 2\n",
		"a b" + head, "a+b" + head, head + strings.Repeat("x", MaxCheckpoint) + "\n",
	} {
		if _, err := ParseCheckpoint(bad); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%.80q: %v", bad, err)
		}
	}
	signer, _ := logKey(t, testOrigin, "log")
	if _, err := SignCheckpoint(&Checkpoint{Origin: testOrigin, Tree: tlog.Tree{N: 1}, Other: []string{"two\nlines\n"}}, signer); err == nil {
		t.Error("signed a checkpoint that does not parse")
	}
}

func TestCheckpointSignatures(t *testing.T) {
	w1, w2 := newCosigner("w1.example"), newCosigner("w2.example")
	l := newTestLog(t, "log", w1, w2)
	l.fill(20)
	signed := l.sign()
	open := func(policy string) error {
		t.Helper()
		p, err := ParsePolicy([]byte(policy))
		if err != nil {
			t.Fatal(err)
		}
		c, err := OpenCheckpoint(signed, p)
		if err != nil {
			return err
		}
		return c.QuorumErr
	}
	log, one, two := "log "+l.vkey+"\n", "witness a "+w1.vkey+"\n", "witness b "+w2.vkey+" https://w.example/\n"
	third := "witness c " + newCosigner("w3.example").vkey + "\n"
	for policy, want := range map[string]error{
		log + "quorum none\n":                                                  nil,
		log + one + "quorum a\n":                                               nil,
		log + one + two + "group g all a b # both\nquorum g\n":                 nil,
		log + third + "quorum c\n":                                             ErrQuorum,
		log + one + third + "group g any a c\nquorum g\n":                      nil,
		log + one + third + "group g all a c\nquorum g\n":                      ErrQuorum,
		log + one + two + third + "group g 2 a b c\nquorum g\n":                nil,
		log + one + two + third + "group g 3 a b c\nquorum g\n":                ErrQuorum,
		log + one + two + third + "group h all b c\ngroup g any a h\nquorum g": nil,
		log + one + two + third + "group h all b c\ngroup g all a h\nquorum g": ErrQuorum,
		one + "quorum a\n":                                                     ErrSignature, // whose log?
		"log " + other(t).vkey + "\n" + one + "quorum a\n":                     ErrSignature,
		two + "quorum b\n":                                                     ErrSignature,
	} {
		if err := open(policy); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", policy, err, want)
		}
	}
	// A cosignature of a known witness that is wrong is worse than none.
	w1.time++
	signed = bytes.Replace(signed, []byte("— w1.example "), []byte("— w1.example  "), 1)
	if err := open(log + one + "quorum none\n"); err == nil {
		t.Error("a malformed note was taken")
	}
	wrong := *w1
	wrong.priv = w2.priv
	n, err := note.Sign(&note.Note{Text: (&Checkpoint{Origin: testOrigin, Tree: l.tree.Head()}).Text()}, l.signer, &wrong)
	if err != nil {
		t.Fatal(err)
	}
	signed = n
	if err := open(log + one + "quorum none\n"); !errors.Is(err, ErrSignature) {
		t.Errorf("a witness's wrong signature: %v", err)
	}
	if err := open(log + "quorum none\n"); err != nil {
		t.Errorf("an unknown key's signature: %v", err)
	}
	// The key of one log under another's name.
	foreign, err := note.Sign(&note.Note{Text: (&Checkpoint{Origin: "example.org/other", Tree: l.tree.Head()}).Text()}, l.signer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCheckpoint(foreign, l.policy()); !errors.Is(err, ErrSignature) {
		t.Errorf("a checkpoint of another origin: %v", err)
	}
	if _, err := OpenCheckpoint(make([]byte, MaxCheckpoint+1), l.policy()); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("a checkpoint without end: %v", err)
	}
}

func TestPolicyIsStrict(t *testing.T) {
	_, vkey := logKey(t, testOrigin, "log")
	w := newCosigner("w.example").vkey
	for _, bad := range []string{
		"", "log " + vkey, "quorum x", "quorum none\nquorum none", "log x\nquorum none", "log " + vkey + "\nlog " + vkey + "\nquorum none",
		"witness a " + vkey + "\nquorum none", "witness a\nquorum none", "witness none " + w + "\nquorum none",
		"witness a " + w + "\nwitness b " + w + "\nquorum none",
		"witness a " + w + "\ngroup a any a\nquorum a", "witness a " + w + "\ngroup g any a a\nquorum g", "witness a " + w + "\ngroup g 0 a\nquorum g",
		"witness a " + w + "\ngroup g 2 a\nquorum g", "group g any b\nquorum g", "witness a " + w + "\ngroup g any a\ngroup h any a\nquorum g",
		"trust me\nquorum none", "quorum none none", "log " + strings.ToUpper(vkey[:len(vkey)-44]) + vkey[len(vkey)-44:] + "\nquorum none",
		strings.Repeat("#", MaxPolicy+1),
		"witness a " + strings.Replace(w, "w.example+", "v.example+", 1) + "\nquorum none",
	} {
		if _, err := ParsePolicy([]byte(bad)); err == nil {
			t.Errorf("%.200q was taken", bad)
		}
	}
}

func TestProofIsStrict(t *testing.T) {
	l := newTestLog(t, "log")
	l.fill(300)
	checkpoint := l.sign()
	head := l.tree.Head()
	for _, extra := range [][]byte{nil, {}, l.leaves[7]} {
		p, err := ProveLeaf(head, 7, l.tiles().Hashes(head), checkpoint)
		if err != nil {
			t.Fatal(err)
		}
		p.Extra = extra
		q, err := ParseProof(p.Text())
		if err != nil || !bytes.Equal(q.Text(), p.Text()) || (q.Extra == nil) != (extra == nil) {
			t.Fatalf("%v", err)
		}
		if _, err := q.Verify(l.policy(), l.leaves[7]); err != nil {
			t.Error(err)
		}
		if _, err := q.Verify(l.policy(), l.leaves[8]); !errors.Is(err, ErrNotIncluded) {
			t.Errorf("another leaf: %v", err)
		}
		if _, err := q.Verify(other(t).policy(), l.leaves[7]); !errors.Is(err, ErrSignature) {
			t.Errorf("another log: %v", err)
		}
	}
	if _, err := ProveLeaf(head, 300, nil, nil); err == nil {
		t.Error("a proof of a leaf that is not there")
	}
	p, err := ProveLeaf(head, 7, l.tiles().Hashes(head), checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	text := string(p.Text())
	for _, bad := range []string{"", strings.Replace(text, "@v1", "@v2", 1), strings.Replace(text, "index 7", "index 07", 1),
		strings.Replace(text, "index 7", "index -7", 1), strings.Replace(text, "index 7\n", "", 1), strings.Replace(text, "\n\n", "\n", 1),
		strings.Replace(text, "index 7", "extra !\nindex 7", 1), strings.Replace(text, "=\n", "\n", 1),
		proofHeader + "\nindex 7\n" + strings.Repeat(head.Hash.String()+"\n", maxPath+1) + "\n" + string(checkpoint),
		text + strings.Repeat("x", MaxProof)} {
		if _, err := ParseProof([]byte(bad)); !errors.Is(err, ErrProof) {
			t.Errorf("%.60q: %v", bad, err)
		}
	}
}

func TestReports(t *testing.T) {
	w := newWorld(t, "log")
	o := Options{Policy: w.trusted()}
	end, err := OpenCheckpoint(w.end, o.Policy)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ProveLeaf(end.Tree, 7, w.tiles().Hashes(end.Tree), w.end)
	if err != nil {
		t.Fatal(err)
	}
	prove := func(from int64, now tlog.Tree) (*Consistency, error) {
		return ProveConsistency(from, now, w.tiles().Hashes(now))
	}
	rec := Receipt{Hash: hashOf(w.leaves[7])}
	rec.Position.Seq = 8
	late := rec
	late.Position.Seq = 1 << 40
	gone := dropCosignature(w.end, "w1.example")
	with := *p
	with.Extra = w.leaves[7]
	strange := *p
	strange.Extra = bytes.Replace(w.leaves[7], []byte("failed.v1"), []byte("failed.v9"), 1)
	for name, x := range map[string]struct {
		r    *Report
		exit int
	}{
		"proof":                        {VerifyProof(p.Text(), w.leaves[7], o), 0},
		"proof with its leaf":          {VerifyProof(with.Text(), nil, o), 0},
		"proof without a leaf":         {VerifyProof(p.Text(), nil, o), 3},
		"proof of another leaf":        {VerifyProof(p.Text(), w.leaves[8], o), 4},
		"proof with a changed leaf":    {VerifyProof(strange.Text(), nil, o), 4},
		"no proof":                     {VerifyProof(nil, w.leaves[8], o), 4},
		"proof of another log":         {VerifyProof(p.Text(), w.leaves[7], Options{Policy: other(t).policy()}), 4},
		"receipt":                      {VerifyReceipt(rec, with.Text(), nil, o), 0},
		"receipt of another event":     {VerifyReceipt(Receipt{rec.Position, someHash}, with.Text(), nil, o), 4},
		"receipt after the checkpoint": {VerifyReceipt(late, with.Text(), nil, o), 4},
		"receipt without a proof":      {VerifyReceipt(rec, nil, nil, o), 4},
		"checkpoint":                   {VerifyCheckpoint(w.end, o), 0},
		"checkpoint without a witness": {VerifyCheckpoint(gone, o), 1},
		"no checkpoint":                {VerifyCheckpoint(nil, o), 4},
		"consistency":                  {VerifyConsistency(w.start, w.end, prove, o), 0},
		"consistency, turned round":    {VerifyConsistency(w.end, w.start, prove, o), 4},
		"consistency of two logs":      {VerifyConsistency(other(t).start, w.end, prove, o), 4},
		"consistency without a proof": {VerifyConsistency(w.start, w.end, func(int64, tlog.Tree) (*Consistency, error) {
			return nil, fmt.Errorf("none")
		}, o), 4},
	} {
		if x.r.Exit != x.exit {
			t.Errorf("%s: exit %d, want %d: %+v", name, x.r.Exit, x.exit, x.r.Problems)
		}
		if (x.exit == 0) != (len(x.r.Proven) > 0) && x.exit != 1 {
			t.Errorf("%s: proven: %q", name, x.r.Proven)
		}
	}
	var b strings.Builder
	r := NewReport("x\x1b[2Jy")
	for range maxProblems + 5 {
		r.Add(Broken, "where\u009b", "%s", strings.Repeat("y", 1000))
	}
	r.Close(false)
	if _, err := r.WriteTo(&b); err != nil || strings.ContainsAny(b.String(), "\x1b\u009b") || !strings.Contains(b.String(), "and 5 more") || b.Len() > 60_000 {
		t.Errorf("a report of %d bytes that could steer a terminal: %v", b.Len(), err)
	}
}
