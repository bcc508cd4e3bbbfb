package events

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two older versions of model.restored.v1 that never were: the first named the
// model "name", the second gave no reason.
type restoredA struct{ Name string }

func (*restoredA) EventType() Type { return "model.restored.a" }
func (v *restoredA) appendJSON(b []byte) ([]byte, error) {
	b, _ = appendString(append(b, `{"name":`...), v.Name)
	return append(b, '}'), nil
}

func (v *restoredA) readJSON(p *parser) {
	var o object
	for p.member(&o) {
		if string(o.key) == "name" && p.field(&o, 0) {
			v.Name = p.string()
		}
	}
	p.close(&o, 1, []string{"name"})
}

type restoredB struct{ Model string }

func (*restoredB) EventType() Type { return "model.restored.b" }
func (v *restoredB) appendJSON(b []byte) ([]byte, error) {
	b, _ = appendString(append(b, `{"model":`...), v.Model)
	return append(b, '}'), nil
}

func (v *restoredB) readJSON(p *parser) {
	var o object
	for p.member(&o) {
		if string(o.key) == "model" && p.field(&o, 0) {
			v.Model = p.string()
		}
	}
	p.close(&o, 1, []string{"model"})
}

func olderForms() map[Type]form {
	all := maps.Clone(forms)
	all["model.restored.a"] = form{
		fresh: func() payload { return new(restoredA) },
		up:    func(d payload) payload { return &restoredB{d.(*restoredA).Name} },
	}
	all["model.restored.b"] = form{
		fresh: func() payload { return new(restoredB) },
		up:    func(d payload) payload { return &ModelRestored{Model: d.(*restoredB).Model, Reason: "unknown"} },
	}
	return all
}

func TestOlderVersionsAreUpcast(t *testing.T) {
	const head = `{"specversion":"1.0","id":"m.2","source":"s","type":"TYPE","subject":"m",` +
		`"time":"2026-01-02T03:04:05.678901Z","datacontenttype":"application/json","data":DATA}`
	want := &Event{ID: "m.2", Source: "s", Type: TypeModelRestored, Subject: "m", Time: sampleTime, N: 2,
		Data: &ModelRestored{Model: "m", Reason: "unknown"}}
	for typ, data := range map[string]string{
		"model.restored.a":  `{"name":"m"}`,
		"model.restored.b":  `{"model":"m"}`,
		"model.restored.v1": `{"model":"m","reason":"unknown"}`,
	} {
		line := []byte(strings.NewReplacer("TYPE", typ, "DATA", data).Replace(head))
		got, err := decode(line, olderForms())
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", typ, diff)
		}
		// Without its form the same bytes are an error, never a skip.
		if typ == "model.restored.v1" {
			continue
		}
		if _, err := Decode(line); !errors.Is(err, ErrUnknownType) {
			t.Errorf("%s: error %v, want ErrUnknownType", typ, err)
		}
	}
	// An older version's data is as strict as a newer one's.
	line := strings.NewReplacer("TYPE", "model.restored.a", "DATA", `{"model":"m"}`).Replace(head)
	if _, err := decode([]byte(line), olderForms()); err == nil {
		t.Error("version a takes version b's data")
	}
	// An older version is never written.
	if _, err := Append(nil, &Event{ID: "m", Source: "s", Subject: "m", Type: "model.restored.a", Data: &restoredA{}}); err == nil {
		t.Error("an older version is written")
	}
}

// A chain that ends nowhere, or at a type that is not the newest, breaks every
// reader of the old bytes.
func TestEveryVersionReachesTheNewest(t *testing.T) {
	check := func(all map[Type]form) (bad []Type) {
		for typ, f := range all {
			d := f.fresh()
			if d.EventType() != typ {
				bad = append(bad, typ)
				continue
			}
			for steps := 0; all[d.EventType()].up != nil && steps <= len(all); steps++ {
				d = all[d.EventType()].up(d)
			}
			if !d.EventType().Known() || all[d.EventType()].up != nil {
				bad = append(bad, typ)
			}
		}
		return bad
	}
	if bad := check(forms); bad != nil {
		t.Errorf("versions without a way to the newest: %v", bad)
	}
	if bad := check(olderForms()); bad != nil {
		t.Errorf("versions without a way to the newest: %v", bad)
	}
	loop := olderForms()
	loop["model.restored.b"] = form{fresh: loop["model.restored.b"].fresh, up: func(payload) payload { return new(restoredA) }}
	if bad := check(loop); len(bad) != 2 {
		t.Errorf("a loop is not seen: %v", bad)
	}
}
