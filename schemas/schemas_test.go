package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pdgate/pdgate/events"
)

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	b, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parse(t *testing.T, b []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNamesAndRead(t *testing.T) {
	names := Names()
	if !slices.IsSorted(names) {
		t.Error("names are not sorted")
	}
	want := []string{"asyncapi", "openapi", "queries/get.reply", "messages/answer"}
	for _, typ := range events.AllTypes() {
		want = append(want, "events/"+string(typ))
	}
	for _, c := range events.AllCommandTypes() {
		want = append(want, "commands/"+string(c))
	}
	for _, name := range want {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not named", name)
		}
	}
	for _, name := range names {
		if b, err := Read(name); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	for _, name := range []string{"nothing", "", "../go.mod", "events"} {
		if _, err := Read(name); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// goldens pairs every golden file of package events with its schema.
func goldens(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../events/testdata/golden/*.json")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		name = strings.TrimSuffix(name, ".lean")
		switch kind, rest, _ := strings.Cut(name, "."); {
		case kind == "command" && !strings.HasPrefix(rest, "denied"):
			name = "commands/" + rest
		case kind == "query":
			name = "queries/" + rest
		case kind == "digest", kind == "signed_grant": // no message of its own; a grant that is none
			continue
		case kind == name || name == "answer.denied":
			name = "messages/" + kind
		default:
			name = "events/" + name
		}
		out[f] = name
	}
	return out
}

// Each schema takes its golden files, and nothing that is one member away from
// them: one less that is required, one more, one of another type.
func TestGoldensValidate(t *testing.T) {
	seen := make(map[string]bool)
	for file, name := range goldens(t) {
		seen[name] = true
		s := compile(t, name)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		value := parse(t, b)
		if name == "messages/answer" { // the sample's grant is none
			if g, ok := value.(map[string]any)["grant"].(map[string]any); ok {
				signed, err := os.ReadFile("../events/testdata/golden/grant.json")
				if err != nil {
					t.Fatal(err)
				}
				g["grant"] = parse(t, signed)
			}
		}
		if err := s.Validate(value); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		var schema map[string]any
		raw, _ := Read(name)
		if err := json.Unmarshal(raw, &schema); err != nil {
			t.Fatal(err)
		}
		mutate(t, file, s, value, value, schema)
	}
	for _, name := range Names() {
		if !seen[name] && !strings.HasSuffix(name, ".reply") && name != "asyncapi" && name != "openapi" && name != "messages/signed_grant" {
			t.Errorf("%s has no golden file", name)
		}
	}
}

// mutate walks the value v, part of root, beside its schema.
func mutate(t *testing.T, where string, s *jsonschema.Schema, root, v any, schema map[string]any) {
	t.Helper()
	o, ok := v.(map[string]any)
	if !ok {
		return
	}
	refused := func(what string) {
		t.Helper()
		if s.Validate(root) == nil {
			t.Errorf("%s: valid %s", where, what)
		}
	}
	o["unheard_of"] = json.Number("1")
	refused("with a member more")
	delete(o, "unheard_of")
	required, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(o)) {
		was := o[key]
		if slices.Contains(required, any(key)) {
			delete(o, key)
			refused("without " + key)
		}
		for _, other := range []any{nil, []any{map[string]any{}}, json.Number("1.5"), json.Number("-1")} {
			o[key] = other
			refused("with another type of " + key)
		}
		if _, isText := was.(string); !isText {
			o[key] = "text"
			refused("with text as " + key)
		}
		o[key] = was
		if sub, ok := properties[key].(map[string]any); ok {
			mutate(t, where+" "+key, s, root, was, sub)
		}
	}
}

// The service's own checks and the schemas agree on what a kind of value is.
func TestSchemasAgreeWithChecks(t *testing.T) {
	base, err := os.ReadFile("../events/testdata/golden/command.register.json")
	if err != nil {
		t.Fatal(err)
	}
	s := compile(t, "commands/register")
	for _, tc := range []struct {
		field string
		value any
	}{
		{"address", "tcp://h:1"}, {"address", "tcp://[::1]:7001"}, {"address", "unix:///x"}, {"address", "unix://x"}, {"address", "tcp://h"},
		{"address", "tcp://h:"}, {"address", "tcp:///h:1"}, {"address", "http://h:1"}, {"address", ""},
		{"model", "a.b"}, {"model", "a..b"}, {"model", ".a"}, {"model", "a."}, {"model", "a b"}, {"model", strings.Repeat("x", 65)},
		{"engine", "ref"}, {"engine", "a.b"}, {"engine", ""}, {"engine", strings.Repeat("x", 64)}, {"engine", strings.Repeat("x", 65)},
		{"version", "v1 (x)"}, {"version", ""}, {"version", "a\nb"}, {"version", "é"}, {"version", "a\x7f"},
		{"public_key", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}, {"public_key", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9="},
		{"public_key", "AAECAwQ="}, {"public_key", ""},
		{"epoch", 0}, {"epoch", 1}, {"epoch", uint64(1<<64 - 1)}, {"max_input_tokens", 0}, {"pool_pages", 0}, {"pool_pages", uint64(1 << 63)},
	} {
		var c map[string]any
		d := json.NewDecoder(bytes.NewReader(base))
		d.UseNumber()
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		c["data"].(map[string]any)[tc.field] = tc.value
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		_, byHand := events.DecodeCommand(events.CmdRegister, b)
		bySchema := s.Validate(parse(t, b))
		if (byHand == nil) != (bySchema == nil) {
			t.Errorf("%s %v: by hand %v, by schema %v", tc.field, tc.value, byHand, bySchema)
		}
	}
}

// Answers to queries are written by encoding/json; what it makes of the views
// is what their schemas say.
func TestRepliesValidate(t *testing.T) {
	view := events.RequestView{RequestID: "01890a5d-ac96-774b-bcce-b302099a8057", State: events.Failed, Tenant: "acme", Model: "m",
		FinishReason: events.FinishStop, Error: events.NewError(events.CodeWorkerLost, "x"), Position: "1.0", Events: 2,
		Held: []events.Holding{{Worker: "p1", Epoch: 3, Role: events.RolePrefill, Generation: 7, Pages: 2}}}
	for name, v := range map[string]any{
		"get":     view,
		"history": events.HistoryView{RequestID: view.RequestID, Events: []json.RawMessage{[]byte(`{"id":"x"}`)}, Positions: []string{"1.0"}},
		"list":    events.ListView{Requests: []events.RequestView{view, {State: events.Rejected}}, NextCursor: "c"},
		"workers": events.WorkersView{Workers: []events.WorkerView{{WorkerJoined: events.WorkerJoined{Worker: "p1", Role: events.RolePrefill}}}},
		"info":    events.InfoView{GrantKeys: []string{"k"}, Models: []events.ModelView{{Model: "m"}}},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		s := compile(t, "queries/"+name+".reply")
		value := parse(t, b)
		if err := s.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for key := range value.(map[string]any) {
			was := value.(map[string]any)[key]
			value.(map[string]any)[key] = map[string]any{}
			if key != "error" && s.Validate(value) == nil {
				t.Errorf("%s: valid with an object as %s", name, key)
			}
			value.(map[string]any)[key] = was
		}
	}
}
