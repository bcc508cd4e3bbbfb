package events

import (
	"bytes"
	"crypto/ed25519"
	"testing"
)

// What decodes encodes to the same bytes, whatever the bytes are.
func FuzzDecode(f *testing.F) {
	for _, e := range append(fullEvents(), leanEvents()...) {
		b, err := Append(nil, e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"specversion":"1.0","id":"\ud83d\ude00"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Decode(line)
		if err != nil {
			if e != nil {
				t.Fatal("an event and an error")
			}
			return
		}
		again, err := Append(nil, e)
		if err != nil {
			t.Fatalf("%q decodes and does not encode: %v", line, err)
		}
		if !bytes.Equal(line, again) {
			t.Fatalf("%q encodes as %q", line, again)
		}
	})
}

// What decodes as a command encodes to a canonical one with the same key.
func FuzzDecodeCommand(f *testing.F) {
	for i, c := range append(fullCommands(), leanCommands()...) {
		b, err := AppendCommand(nil, c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i%len(allCommandTypes)), b)
	}
	f.Fuzz(func(t *testing.T, typ uint8, payload []byte) {
		c, err := DecodeCommand(allCommandTypes[int(typ)%len(allCommandTypes)], payload)
		if err != nil {
			return
		}
		key := c.Key()
		b, err := AppendCommand(nil, c)
		if err != nil {
			t.Fatalf("%q decodes and does not encode: %v", payload, err)
		}
		again, err := DecodeCommand(c.Type, b)
		if err != nil {
			t.Fatalf("%q encodes as %q, which does not decode: %v", payload, b, err)
		}
		if c.Key() != key || again.Key() != key {
			t.Fatalf("%q changes its key", payload)
		}
	})
}

// Whatever is in a grant, Open accepts signed canonical bytes only.
func FuzzGrantOpen(f *testing.F) {
	private := testKey(1)
	trusted := private.Public().(ed25519.PublicKey)
	s, err := SignGrant(private, sampleGrant())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(s.Grant), s.Signature, false)
	f.Add([]byte(s.Grant), s.Signature, true)
	f.Add([]byte(`{"request_id":""}`), []byte{}, true)
	f.Fuzz(func(t *testing.T, grant, signature []byte, sign bool) {
		g := &SignedGrant{Grant: grant, Signature: signature}
		if sign {
			g.Signature = ed25519.Sign(private, append([]byte(grantContext), grant...))
		}
		got, err := g.Open(trusted)
		if err != nil {
			return
		}
		if !sign && !bytes.Equal(grant, s.Grant) {
			t.Fatalf("%q opens without a signature", grant)
		}
		again, err := got.appendJSON(nil)
		if err != nil || !bytes.Equal(again, grant) {
			t.Fatalf("%q encodes as %q, %v", grant, again, err)
		}
	})
}

// The lines of a split, put together again, are what was split.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("a\nb\n"))
	f.Add([]byte("\n"))
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, lines []byte) {
		var again []byte
		err := Split(lines, func(_ int, e []byte) error {
			if bytes.IndexByte(e, '\n') >= 0 {
				t.Fatalf("line %q", e)
			}
			again = append(append(again, e...), '\n')
			return nil
		})
		if err == nil && !bytes.Equal(lines, again) {
			t.Fatalf("%q comes back as %q", lines, again)
		}
	})
}

// A subject that parses is the one that its builder makes.
func FuzzParseAddress(f *testing.F) {
	f.Add(CommandSubject(RoleGateway, "gw1", CmdAdmit, 3))
	f.Add(CommandSubjectAny(RoleDecode, "d1", CmdRegister, OpsPartition))
	f.Add(QuerySubject(RoleOperator, "ann", QueryList))
	f.Add(HeartbeatSubject(RolePrefill, "p1"))
	f.Add("pdgate.v1.x.y.any.any.0")
	f.Fuzz(func(t *testing.T, subject string) {
		a, err := ParseAddress(subject)
		if err != nil {
			return
		}
		var again string
		switch {
		case a.Query:
			again = QuerySubject(a.Role, a.Principal, a.Verb)
		case a.Any:
			again = CommandSubjectAny(a.Role, a.Principal, CommandType(a.Verb), a.Partition)
		case a.Verb == beatToken && subject == HeartbeatSubject(a.Role, a.Principal):
			again = subject
		default:
			again = CommandSubject(a.Role, a.Principal, CommandType(a.Verb), a.Partition)
		}
		if again != subject {
			t.Fatalf("%q parses as %+v, which is %q", subject, a, again)
		}
	})
}
