package lifecycle

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

var documented = regexp.MustCompile(`(?m)^nats --context (\w+) (req|pub) (\S+) '(.*)'$`)

// Every request in docs/nats-api.md is sent, in order and as the user it names,
// to a real service behind the real permissions.
func TestDocumentedCommands(t *testing.T) {
	doc, err := os.ReadFile("../../docs/nats-api.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.start("lc1", nil)
	users := map[string]*nats.Conn{}
	for name, u := range map[string]keyring.User{
		"operator": keyring.Operator, "canary": keyring.Canary, "auditor": keyring.AuditorBus, "gw1": keyring.Gateway("gw1"),
		"p1": keyring.Worker(events.RolePrefill, "p1"), "d1": keyring.Worker(events.RoleDecode, "d1"),
	} {
		users[name] = r.connect(u)
	}
	words := strings.NewReplacer(
		"'$ID'", newID(t), "'$EPOCH'", fmt.Sprint(time.Now().UnixMicro()),
		"'$KEY'", base64.StdEncoding.EncodeToString(make([]byte, 32)), "'$H'", "hmac-sha256:"+strings.Repeat("0", 64),
	)
	// What is denied or refused on purpose, and nothing else: restore and the
	// life's steps must be carried out.
	expected := map[string][]string{
		"operator.query.get": {"not_found"}, "operator.query.history": {"not_found"}, "operator.cancel": {"unknown_request"},
		"p1.reject": {"illegal_state"}, "d1.fail": {"illegal_state"}, "gw1.cancel": {"illegal_state"},
	}
	seen := map[events.CommandType]bool{}
	queries := map[string]bool{}
	for _, m := range documented.FindAllStringSubmatch(string(doc), -1) {
		nc, subject, body := users[m[1]], m[3], words.Replace(m[4])
		if nc == nil {
			t.Fatalf("%s: no such user", m[0])
		}
		if strings.Contains(body, "$") || !json.Valid([]byte(body)) {
			t.Errorf("%s: payload is not JSON: %s", m[0], body)
		}
		a, err := events.ParseAddress(subject)
		if err != nil {
			t.Errorf("%s: %v", m[0], err)
			continue
		}
		if m[2] == "pub" {
			if err := nc.Publish(subject, []byte(body)); err != nil {
				t.Error(err)
			}
			continue
		}
		key := a.Principal + "." + a.Verb
		if a.Query {
			key = a.Principal + ".query." + a.Verb
			queries[a.Verb] = true
		} else {
			seen[events.CommandType(a.Verb)] = true
		}
		got, err := nc.Request(subject, []byte(body), 5*time.Second)
		if err != nil {
			t.Errorf("%s: %v", m[0], err)
			continue
		}
		code, want := got.Header.Get(micro.ErrorHeader), strings.Join(expected[key], "")
		if code != want {
			t.Errorf("%s\n%q, want %q: %s", m[0], code, want, got.Data)
		}
	}
	for _, c := range events.AllCommandTypes() {
		if !seen[c] && c != events.CmdTrim { // nobody may send it
			t.Errorf("no example of %s", c)
		}
	}
	for _, q := range events.AllQueries() {
		if !queries[q] {
			t.Errorf("no example of query %s", q)
		}
	}
	if rep := r.check(); rep.Open != 0 || rep.Requests != 1 {
		t.Errorf("report: %+v", rep)
	}
}
