package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// bus is a running up with a plain connection for each of its users, as any NATS
// program that holds a key file would open it.
type bus struct {
	*up
	t          *testing.T
	as         map[string]*nats.Conn
	partitions int
}

func newBus(t *testing.T) *bus {
	t.Helper()
	b := &bus{up: startUp(t, t.TempDir()), t: t, as: map[string]*nats.Conn{}}
	for name, u := range map[string]keyring.User{
		"operator": keyring.Operator, "gw1": keyring.Gateway("gw1"),
		"p1": keyring.Worker(events.RolePrefill, "p1"), "d1": keyring.Worker(events.RoleDecode, "d1"),
	} {
		seed, err := nats.NkeyOptionFromSeed(b.ring.Path(u))
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(b.nats, seed, nats.CustomInboxPrefix(u.InboxPrefix()), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		b.as[name] = nc
	}
	b.partitions = b.info().Partitions
	return b
}

func (b *bus) info() *events.InfoView {
	b.t.Helper()
	m, err := b.as["operator"].Request(events.QuerySubject(events.RoleOperator, "operator", events.QueryInfo), []byte("{}"), patience)
	if err != nil {
		b.t.Fatal(err)
	}
	v := new(events.InfoView)
	if err := json.Unmarshal(m.Data, v); err != nil {
		b.t.Fatal(err)
	}
	return v
}

// freshID is an id that nobody has used.
func freshID(t *testing.T) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// code is the error of a reply: from the headers, and checked against the body.
func code(t *testing.T, m *nats.Msg) (string, string) {
	t.Helper()
	name := m.Header.Get(micro.ErrorHeader)
	if name == "" {
		return "", ""
	}
	var e events.Error
	if err := json.Unmarshal(m.Data, &e); err != nil || string(e.Code) != name || fmt.Sprint(e.HTTPStatus()) != m.Header.Get(micro.ErrorCodeHeader) {
		t.Errorf("headers %v do not fit the body %s", m.Header, m.Data)
	}
	return name, e.Message
}

// TestBusInput sends commands, queries and what else users of the bus may send,
// wrong in every way. Each is refused with the member's name, nothing of it is
// recorded, and the service goes on.
func TestBusInput(t *testing.T) {
	b := newBus(t)
	id := freshID(t)
	p := events.PartitionOf(id, b.partitions)
	digest := "hmac-sha256:" + strings.Repeat("0", 64)
	admit := func(id string) string {
		return `{"request_id":"` + id + `","data":{"tenant":"t1","model":"ref","prompt_tokens":10,"max_tokens":4,"prompt_digest":"` + digest + `"}}`
	}
	gw := events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, p)
	gwAny := events.CommandSubjectAny(events.RoleGateway, "gw1", events.CmdAdmit, p)
	query := func(name string) string { return events.QuerySubject(events.RoleOperator, "operator", name) }
	before := b.info().LogSeq

	for _, tt := range []struct {
		name, user, subject, payload string
		code, message                string // of the refusal
	}{
		{"empty", "gw1", gw, "", "malformed", ""},
		{"not JSON", "gw1", gw, secretWord, "malformed", ""},
		{"cut", "gw1", gw, admit(id)[:40], "malformed", ""},
		{"two documents", "gw1", gw, admit(id) + admit(id), "malformed", ""},
		{"an array", "gw1", gw, "[" + admit(id) + "]", "malformed", ""},
		{"unknown member", "gw1", gw, strings.Replace(admit(id), `{"tenant"`, `{"priority":1,"tenant"`, 1), "malformed", "priority"},
		{"unknown member outside", "gw1", gw, `{"role":"lifecycle",` + admit(id)[1:], "malformed", "role"},
		{"member twice", "gw1", gw, strings.Replace(admit(id), `{"tenant"`, `{"tenant":"t2","tenant"`, 1), "malformed", "tenant"},
		{"member missing", "gw1", gw, strings.Replace(admit(id), `"max_tokens":4,`, "", 1), "malformed", "max_tokens"},
		{"number as a text", "gw1", gw, strings.Replace(admit(id), ":4,", `:"4",`, 1), "malformed", "max_tokens"},
		{"number too large", "gw1", gw, strings.Replace(admit(id), ":4,", `:99999999999999999999,`, 1), "malformed", "max_tokens"},
		{"number negative", "gw1", gw, strings.Replace(admit(id), ":4,", `:-4,`, 1), "malformed", "max_tokens"},
		{"name with a dot", "gw1", gw, strings.Replace(admit(id), "t1", "t.1", 1), "malformed", "tenant"},
		{"not UTF-8", "gw1", gw, strings.Replace(admit(id), "t1", "\xff", 1), "malformed", ""},
		{"digest of another kind", "gw1", gw, strings.Replace(admit(id), "hmac-sha256", "md5", 1), "malformed", "prompt_digest"},
		{"id that is none", "gw1", gwAny, admit("7"), "malformed", "request_id"},
		{"id of another version", "gw1", gwAny, admit("2f5b6c1e-8b1f-4c8e-9d9a-000000000000"), "malformed", "request_id"},
		{"huge", "gw1", gw, strings.Replace(admit(id), "t1", strings.Repeat("t", 900<<10), 1), "malformed", "tenant"},
		{"huge, deep", "gw1", gw, strings.Repeat(`{"data":`, 100_000), "malformed", ""},
		{"another partition", "gw1", events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, (p+1)%b.partitions), admit(id), "malformed", "partition"},
		{"partition that is none", "gw1", strings.TrimRight(gwAny, "0123456789") + "99999999", admit(id), "malformed", "partition"},
		{"partition that is a word", "gw1", strings.Replace(gwAny, "any."+fmt.Sprint(p), "any.x", 1), admit(id), "malformed", ""},
		{"query, not JSON", "operator", query(events.QueryGet), "x", "malformed", ""},
		{"query, unknown member", "operator", query(events.QueryList), `{"order":"asc"}`, "malformed", "order"},
		{"query, limit", "operator", query(events.QueryList), `{"limit":100000}`, "malformed", "limit"},
		{"query, state", "operator", query(events.QueryList), `{"state":"` + secretWord + `"}`, "malformed", "state"},
		{"query, tenant that is SQL", "operator", query(events.QueryList), `{"tenant":"' OR 1=1 --"}`, "malformed", "tenant"},
		{"query, no id", "operator", query(events.QueryGet), `{}`, "malformed", "request_id"},
		{"query, unknown id", "operator", query(events.QueryHistory), `{"request_id":"` + id + `"}`, "not_found", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := b.as[tt.user].Request(tt.subject, []byte(tt.payload), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			got, message := code(t, m)
			if got != tt.code || !strings.Contains(message, tt.message) {
				t.Errorf("%q: %s, want %q with %q", got, message, tt.code, tt.message)
			}
			if strings.Contains(message, secretWord) || len(message) > 1024 {
				t.Errorf("the message quotes what was sent, or is as long: %.2000s", message)
			}
		})
	}
	if _, err := b.as["gw1"].Request(gw, make([]byte, 2<<20), time.Second); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("a payload above the server's limit: %v", err)
	}
	if after := b.info().LogSeq; after != before {
		t.Errorf("the log grew from %d to %d: something of it was recorded", before, after)
	}
	t.Run("replies", func(t *testing.T) { b.replies(gwAny, admit) })
	t.Run("rights", func(t *testing.T) { b.rights() })
	t.Run("beside commands", func(t *testing.T) { b.beside() })
	t.Run("by the book", func(t *testing.T) { b.byTheBook() })

	b.lists(t, b.ask(t, 3))
	audit := newAuditor(t, connect(t, b.nats, b.ring, keyring.Admin), b.ring)
	audit.settled(settleIn)
	for _, problem := range audit.judge(nil, nil) {
		t.Error(problem)
	}
	b.stop(t)
}

// replies names reply subjects that a service must not publish to.
func (b *bus) replies(subject string, admit func(string) string) {
	t := b.t
	notices, err := b.as["operator"].SubscribeSync(events.NotifyAll)
	if err != nil {
		t.Fatal(err)
	}
	defer notices.Unsubscribe()
	if err := b.as["operator"].Flush(); err != nil {
		t.Fatal(err)
	}
	before := b.info().LogSeq
	id := freshID(t)
	anyOf := func(id string) string {
		return strings.TrimRight(subject, "0123456789") + fmt.Sprint(events.PartitionOf(id, b.partitions))
	}
	for _, reply := range []string{
		"pdgate.notify.ref." + id, "pdgate.log.0", "pdgate.log.ops", events.WorkSubject("ref", events.RolePrefill),
		"$JS.API.STREAM.DELETE." + events.LogStream, events.CommandSubjectAny(events.RoleLifecycle, "lifecycle", events.CmdFail, 0),
		events.ReplicaSubject("lc2"), "_INBOXES.x", "x",
	} {
		for _, payload := range []string{"x", admit(freshID(t)), `{"request_id":"ref","data":{}}`} {
			if err := b.as["gw1"].PublishRequest(subject, reply, []byte(payload)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The same connection's next command comes after them all.
	m, err := b.as["gw1"].Request(anyOf(id), []byte("x"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := code(t, m); got != "malformed" {
		t.Errorf("refused as %q", got)
	}
	if after := b.info().LogSeq; after != before {
		t.Errorf("the log grew from %d to %d", before, after)
	}
	if m, err := notices.NextMsg(100 * time.Millisecond); err == nil {
		t.Errorf("a notice was published by a reply: %s", m.Subject)
	}
}

// rights tries what each user's permissions forbid: the server says so, and the
// message arrives nowhere.
func (b *bus) rights() {
	id := freshID(b.t)
	any := func(r events.Role, name string, c events.CommandType) string {
		return events.CommandSubjectAny(r, name, c, events.PartitionOf(id, b.partitions))
	}
	for user, subjects := range map[string][]string{
		"p1": {
			any(events.RolePrefill, "p1", events.CmdAdmit), any(events.RoleGateway, "gw1", events.CmdAdmit), any(events.RolePrefill, "p2", events.CmdPrefilled),
			any(events.RoleLifecycle, "lifecycle", events.CmdFail), events.HeartbeatSubject(events.RolePrefill, "p2"), events.HeartbeatSubject(events.RoleDecode, "d1"),
			"pdgate.log.0", "pdgate.notify.ref." + id, events.WorkSubject("ref", events.RoleDecode), events.OutputSubject("gw1", "p1", id),
			events.PromptSubject("gw1", events.RoleDecode, "d1", id), events.ReplicaSubject("lc1"),
			"$JS.API.CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer("ref", events.RoleDecode),
			"$JS.API.STREAM.DELETE." + events.WorkStream, "$JS.API.STREAM.PURGE." + events.LogStream, "$JS.API.STREAM.MSG.GET." + events.WorkStream,
			"$JS.ACK." + events.WorkStream + "." + events.WorkConsumer("ref", events.RoleDecode) + ".1.1.1.1.0", "_INBOX.gateway-gw1.x", "$SYS.REQ.SERVER.PING",
		},
		"d1":       {any(events.RoleDecode, "d1", events.CmdPrefilled), any(events.RoleDecode, "d1", events.CmdAdmit), events.OutputSubject("gw1", "d2", id), "pdgate.log.ops"},
		"gw1":      {any(events.RoleGateway, "gw1", events.CmdDecoded), any(events.RoleGateway, "gw2", events.CmdAdmit), any(events.RoleOperator, "operator", events.CmdQuarantine), "pdgate.log.0"},
		"operator": {any(events.RoleOperator, "operator", events.CmdAdmit), any(events.RoleOperator, "root", events.CmdCancel), "$JS.API.STREAM.DELETE." + events.LogStream, "pdgate.log.ops"},
	} {
		nc := b.as[user]
		for _, s := range subjects {
			if err := nc.Publish(s, []byte("{}")); err != nil {
				b.t.Fatal(err)
			}
			if err := nc.Flush(); err != nil { // the server's word comes before its pong
				b.t.Fatal(err)
			}
			if err := nc.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+s+`"`) {
				b.t.Errorf("%s may publish to %s (%v)", user, s, err)
			}
		}
	}
}

// beside sends what is not answered: heartbeats, output, and prompts' requests.
func (b *bus) beside() {
	t := b.t
	beat := events.HeartbeatSubject(events.RolePrefill, "p1")
	for _, payload := range []string{"", "x", "{}", `{"epoch":-1}`, `{"epoch":1,"model":"ref","free_pages":1,"held_pages":0,"running":0,"sent_at":"yesterday"}`, strings.Repeat("9", 500<<10)} {
		if err := b.as["p1"].Publish(beat, []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	id := freshID(t)
	for _, payload := range []string{"", "x", strings.Repeat("\x00", 12), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" + secretWord, strings.Repeat("z", 900<<10)} {
		if err := b.as["d1"].Publish(events.OutputSubject("gw1", "d1", id), []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	for _, payload := range []string{"", "x", `{"part":"prompt","offset":-1}`, `{"part":"prompt","offset":0}`, `{"part":"` + secretWord + `","offset":0}`} {
		m, err := b.as["p1"].Request(events.PromptSubject("gw1", events.RolePrefill, "p1", id), []byte(payload), 5*time.Second)
		if err != nil {
			t.Errorf("%q: %v", payload, err)
			continue
		}
		if m.Header.Get(micro.ErrorHeader) == "" || len(m.Data) > 0 {
			t.Errorf("a prompt that nobody has: %v, %d bytes", m.Header, len(m.Data))
		}
	}
}

var documented = regexp.MustCompile(`(?m)^nats --context operator req (\S+) '(.*)'$`)

// byTheBook sends the operator's examples of docs/nats-api.md as they stand.
func (b *bus) byTheBook() {
	doc, err := os.ReadFile("../../docs/nats-api.md")
	if err != nil {
		b.t.Fatal(err)
	}
	id := b.ask(b.t, 1)[0]
	all := documented.FindAllStringSubmatch(string(doc), -1)
	if len(all) < 8 {
		b.t.Errorf("%d examples were found", len(all))
	}
	for _, m := range all {
		payload := strings.ReplaceAll(m[2], `'$ID'`, id)
		reply, err := b.as["operator"].Request(m[1], []byte(payload), 10*time.Second)
		if err != nil {
			b.t.Errorf("%s: %v", m[1], err)
			continue
		}
		got := reply.Header.Get(micro.ErrorHeader)
		if want := map[bool]string{true: "illegal_state"}[strings.Contains(m[1], ".cancel.")]; got != want {
			b.t.Errorf("%s %s: %q, want %q: %s", m[1], payload, got, want, reply.Data)
		}
	}
}
