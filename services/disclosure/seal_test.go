package disclosure

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

const (
	request = "01890a5d-ac96-774b-bcce-b302099a8057"
	other   = "01890a5d-ac96-774b-bcce-b302099a8058"
)

var acme = events.NewTenantKey(bytes.Repeat([]byte{7}, 32))

func fieldsOf(key events.DigestKey, id string) []events.Disclosure {
	return []events.Disclosure{key.Disclose(events.AdmissionID(id), events.FieldLabel, "order 7"), key.Disclose(events.AdmissionID(id), events.FieldUser, "alice@example.com")}
}

func TestSeal(t *testing.T) {
	want := fieldsOf(acme, request)
	b, err := seal(acme, "acme", want)
	if err != nil {
		t.Fatal(err)
	}
	again, err := seal(acme, "acme", want)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(b, again) {
		t.Error("a nonce was used twice")
	}
	for _, plain := range []string{"order", "alice", "example"} {
		if bytes.Contains(b, []byte(plain)) {
			t.Errorf("what is stored shows %q", plain)
		}
	}
	got, err := open(acme, "acme", b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := seal(acme, "acme", nil); err == nil {
		t.Error("nothing was sealed")
	}
	if _, err := seal(acme, "acme", append(fieldsOf(acme, request), fieldsOf(acme, other)...)); err == nil {
		t.Error("two events share one message")
	}
}

// What was moved, changed or is under another key does not open.
func TestOpenRefuses(t *testing.T) {
	sealedOf := func() message {
		b, err := seal(acme, "acme", fieldsOf(acme, request))
		if err != nil {
			t.Fatal(err)
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, tt := range map[string]struct {
		key    events.DigestKey
		tenant string
		change func(*message)
	}{
		"another key":    {events.NewTenantKey(bytes.Repeat([]byte{8}, 32)), "acme", func(*message) {}},
		"no key":         {events.DigestKey{}, "acme", func(*message) {}},
		"another tenant": {acme, "globex", func(*message) {}},
		"another event":  {acme, "acme", func(m *message) { m.Event = events.AdmissionID(other) }},
		"another field":  {acme, "acme", func(m *message) { m.Fields[0].Field = events.FieldUser }},
		"swapped":        {acme, "acme", func(m *message) { m.Fields[0].Box, m.Fields[1].Box = m.Fields[1].Box, m.Fields[0].Box }},
		"a flipped bit":  {acme, "acme", func(m *message) { m.Fields[1].Box[20] ^= 1 }},
		"cut off":        {acme, "acme", func(m *message) { m.Fields[1].Box = m.Fields[1].Box[:11] }},
	} {
		m := sealedOf()
		tt.change(&m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := open(tt.key, tt.tenant, b); !errors.Is(err, ErrSealed) || got != nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	for _, b := range []string{"", "null", "{", "[]", `"x"`} {
		if got, err := open(acme, "acme", []byte(b)); got != nil || !errors.Is(err, ErrSealed) {
			t.Errorf("%q: %v %v", b, got, err)
		}
	}
}
