package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// ocsfSpec is what OCSF requires: of each class, of each object that is written by
// its path, what an object must have at least one of, and the enumerated
// activities. The file names where each was read.
type ocsfSpec struct {
	Version    string
	Sources    map[string]string
	Required   map[string][]string
	OneOf      map[string][]string `json:"one_of"`
	Activities map[string][]string
}

var ocsf = func() (s ocsfSpec) {
	b, err := os.ReadFile("testdata/ocsf-required.json")
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		panic(err)
	}
	return s
}()

func checkOCSF(t *testing.T, line []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	class := fmt.Sprint(v["class_uid"])
	want := ocsf.Required[class]
	if want == nil {
		t.Fatalf("class %s", class)
	}
	for _, name := range want {
		if v[name] == nil {
			t.Errorf("class %s: %s is missing: %s", class, name, line)
		}
	}
	activity := fmt.Sprint(v["activity_id"])
	if !slices.Contains(ocsf.Activities[class], activity) || fmt.Sprint(v["type_uid"]) != class+"0"+activity || fmt.Sprint(v["category_uid"]) != class[:1] {
		t.Errorf("class %s: activity, category and type_uid do not fit: %s", class, line)
	}
	checkObjects(t, "", v)
	if s := v["metadata"].(map[string]any)["version"]; s != ocsf.Version {
		t.Errorf("version %v", s)
	}
	return v
}

// checkObjects looks for what each object must have.
func checkObjects(t *testing.T, path string, v map[string]any) {
	t.Helper()
	for _, name := range ocsf.Required[path] {
		if path != "" && v[name] == nil {
			t.Errorf("%s: %s is missing", path, name)
		}
	}
	if one := ocsf.OneOf[path]; one != nil && !slices.ContainsFunc(one, func(name string) bool { return v[name] != nil }) {
		t.Errorf("%s has none of %q", path, one)
	}
	for name, o := range v {
		if o, ok := o.(map[string]any); ok && name != "unmapped" {
			checkObjects(t, strings.TrimPrefix(path+"."+name, "."), o)
		}
	}
}

func TestOCSF(t *testing.T) {
	all := testLog(t)
	lines := bytes.Split(bytes.TrimSuffix(write(t, OCSF, all), []byte("\n")), []byte("\n"))
	if len(lines) != len(all)-1 { // but the epoch
		t.Fatalf("%d lines of %d leaves", len(lines), len(all))
	}
	findings := 0
	for i, line := range lines {
		v := checkOCSF(t, line)
		meta := v["metadata"].(map[string]any)
		if fmt.Sprint(meta["sequence"]) != fmt.Sprint(all[i].Seq) {
			t.Errorf("line %d: %s", i, line)
		}
		if fmt.Sprint(v["class_uid"]) == "2006" {
			findings++
		}
		e, err := events.Decode(all[i].Raw)
		if err != nil {
			continue // a marker
		}
		var raw struct{ Data json.RawMessage }
		if err := json.Unmarshal(all[i].Raw, &raw); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(line, append([]byte(`"data":`), raw.Data...)) {
			t.Errorf("line %d: the data is not the event's: %s", i, line)
		}
		if meta["uid"] != e.ID || fmt.Sprint(v["time"]) != fmt.Sprint(e.Time.UnixMilli()) || meta["event_code"] != string(e.Type) {
			t.Errorf("line %d: %s", i, line)
		}
	}
	if findings != 5 { // three denials, a gap, a foreign message
		t.Errorf("%d findings", findings)
	}
}

// Every type of event fits its class, with as little in it as there can be.
func TestOCSFLean(t *testing.T) {
	for _, d := range []events.Data{
		&events.RequestAdmitted{}, &events.RequestRejected{Error: events.Error{Code: events.CodeInternal}}, &events.RequestPrefilled{}, &events.TransferGranted{},
		&events.RequestTransferred{}, &events.RequestDecoded{FinishReason: events.FinishStop},
		&events.RequestFailed{Error: events.Error{Code: events.CodeInternal}, From: events.Admitted}, &events.RequestCancelled{Reason: events.CodeCancelled, From: events.Admitted},
		&events.RequestReleased{Role: events.RoleDecode}, &events.CommandDenied{Command: events.CmdAdmit, Code: events.CodeMalformed},
		&events.WorkerJoined{Role: events.RoleDecode}, &events.WorkerLeft{}, &events.ModelQuarantined{}, &events.ModelRestored{}, &events.TenantErased{},
		&events.CanaryRan{Verdict: events.CanaryClean}, &events.CanaryRan{Verdict: events.CanaryForeign}, &events.AuditRead{},
	} {
		raw, err := events.Append(nil, &events.Event{ID: "e", Source: "s", Type: d.EventType(), Subject: "x", Data: d})
		if err != nil {
			t.Fatal(err)
		}
		checkOCSF(t, write(t, OCSF, []Record{{Seq: 1, Raw: raw}}))
	}
}
