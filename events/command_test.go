package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandGolden(t *testing.T) {
	for suffix, all := range map[string][]*Command{"": fullCommands(), ".lean": leanCommands()} {
		seen := make(map[CommandType]bool)
		for _, c := range all {
			seen[c.Type] = true
			b, err := AppendCommand(nil, c)
			if err != nil {
				t.Fatalf("%s: %v", c.Type, err)
			}
			golden(t, "command."+string(c.Type)+suffix, b)
			got, err := DecodeCommand(c.Type, b)
			if err != nil {
				t.Fatalf("%s: %v", c.Type, err)
			}
			if diff := cmp.Diff(c, got); diff != "" {
				t.Errorf("%s comes back changed (-want +got):\n%s", c.Type, diff)
			}
		}
		for _, typ := range allCommandTypes {
			if !seen[typ] {
				t.Errorf("%s has no golden%s sample", typ, suffix)
			}
		}
	}
}

// What a person types is the same command as what a worker sends: members in
// any order, white space, other escapes, zero values written out.
func TestCommandKeyIsOfTheContent(t *testing.T) {
	for _, c := range fullCommands() {
		b, err := AppendCommand(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		var loose map[string]any
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(&loose); err != nil {
			t.Fatal(err)
		}
		typed, err := json.MarshalIndent(loose, " ", "\t") // members sorted, with white space, '<' escaped
		if err != nil {
			t.Fatal(err)
		}
		typed = append([]byte("\n"), append(typed, '\r', '\n')...)
		got, err := DecodeCommand(c.Type, typed)
		if err != nil {
			t.Fatalf("%v\n%s", err, typed)
		}
		if !bytes.Equal(got.Raw, c.Raw) || got.Key() != c.Key() {
			t.Errorf("%s: Raw is\n%s, the sender's is\n%s", c.Type, got.Raw, c.Raw)
		}
	}
	lean := leanCommands()[0]
	b, _ := AppendCommand(nil, lean)
	zeros := bytes.Replace(b, []byte(`"data":{`), []byte(`"data":{"stream":false,"group":"","choice":0,"timeout_ms":0,`), 1)
	got, err := DecodeCommand(CmdAdmit, zeros)
	if err != nil {
		t.Fatal(err)
	}
	if got.Key() != lean.Key() {
		t.Error("zero values that are written out change the key")
	}
}

func TestCommandKeyTellsCommandsApart(t *testing.T) {
	base := func() *Command {
		c := fullCommands()[0]
		c.Role, c.Principal = RoleGateway, "gw1"
		return c
	}
	keys := map[string]string{}
	for name, change := range map[string]func(*Command){
		"nothing":   func(c *Command) {},
		"role":      func(c *Command) { c.Role = RoleOperator },
		"principal": func(c *Command) { c.Principal = "gw2" },
		"subject":   func(c *Command) { c.Subject = groupID },
		"data":      func(c *Command) { c.Data.(*Admit).Choice = 2 },
		"boundary":  func(c *Command) { c.Role, c.Principal = "gatewayg", "w1" },
	} {
		c := base()
		change(c)
		if _, err := AppendCommand(nil, c); err != nil {
			t.Fatal(err)
		}
		if other := keys[c.Key()]; other != "" {
			t.Errorf("changing %s and %s gives one key", name, other)
		}
		keys[c.Key()] = name
	}
	c := base()
	c.Traceparent = ""
	if _, err := AppendCommand(nil, c); err != nil {
		t.Fatal(err)
	}
	if keys[c.Key()] != "nothing" {
		t.Error("the trace is part of the key: a retry under another trace would be another command")
	}
}

func TestDecodeCommandRefuses(t *testing.T) {
	const (
		admit = iota
		reject
		prefilled
		grant
		transferred
		decoded
		fail
		cancel
		released
		register
		leave
		quarantine
	)
	for _, tc := range []struct {
		name     string
		command  int
		old, new string
		field    string
	}{
		{"doubled", admit, `"data":`, `"request_id":"x","data":`, "request_id"},
		{"doubled in data", admit, `"tenant":`, `"model":"m","tenant":`, "data.model"},
		{"unknown", admit, `"data":`, `"role":"operator","data":`, "role"},
		{"unknown in data", admit, `"tenant":`, `"prompt":"x","tenant":`, "data.prompt"},
		{"in another case", admit, `"tenant":`, `"Tenant":`, "data.Tenant"},
		{"missing", admit, `"request_id":"` + requestID + `",`, ``, "request_id"},
		{"missing in data", admit, `"tenant":"acme",`, ``, "data.tenant"},
		{"mistyped", admit, `"prompt_tokens":681000`, `"prompt_tokens":"681000"`, "data.prompt_tokens"},
		{"fraction", admit, `"prompt_tokens":681000`, `"prompt_tokens":681000.0`, "data.prompt_tokens"},
		{"null", admit, `"tenant":"acme"`, `"tenant":null`, "data.tenant"},
		{"trailing", admit, `"timeout_ms":60000}}`, `"timeout_ms":60000}}x`, ""},
		{"request id", admit, requestID + `","trace`, `01890a5d-ac96-474b-bcce-b302099a8057","trace`, "request_id"},
		{"request id in upper case", admit, requestID + `","trace`, strings.ToUpper(requestID) + `","trace`, "request_id"},
		{"trace", admit, traceID, "00-x", "traceparent"},
		{"trace of zeros", admit, "4bf92f3577b34da6a3ce929d0e0e4736", strings.Repeat("0", 32), "traceparent"},
		{"tenant", admit, `"acme"`, `"acme corp"`, "data.tenant"},
		{"model", admit, `"llama-3.1"`, `"llama..3"`, "data.model"},
		{"no prompt", admit, `"prompt_tokens":681000`, `"prompt_tokens":0`, "data.prompt_tokens"},
		{"negative", admit, `"max_tokens":256`, `"max_tokens":-256`, "data.max_tokens"},
		{"digest", admit, `"prompt_digest":"hmac-sha256:`, `"prompt_digest":"sha256:`, "data.prompt_digest"},
		{"group", admit, groupID, "g1", "data.group"},
		{"epoch", reject, `"worker_epoch":3`, `"worker_epoch":0`, "data.worker_epoch"},
		{"code", reject, `"context_length_exceeded"`, `"too_long"`, "data.error.code"},
		{"status", reject, `"http_status":400`, `"http_status":200`, "data.error.http_status"},
		{"empty run", prefilled, `[4096,1,7]`, `[4096,0,7]`, "data.pages[1]"},
		{"generation", prefilled, `[4096,1,7]`, `[4096,1,0]`, "data.pages[1]"},
		{"run beyond the end", prefilled, `[4294967295,1,`, `[4294967295,2,`, "data.pages[2]"},
		{"overlap", prefilled, `[4096,1,7]`, `[11,2,7]`, "data.pages"},
		{"no pages", prefilled, `"pages":[[0,12,7],[4096,1,7],[4294967295,1,18446744073709551615]]`, `"pages":[]`, ""},
		{"digest of KV", prefilled, `"kvsum64:00ff10ee20dd30cc"`, `"kvsum64:00FF10EE20DD30CC"`, "data.kv_digest"},
		{"lease", prefilled, `"lease_ms":30000`, `"lease_ms":0`, "data.lease_ms"},
		{"layout", prefilled, `"ref/64x192/1"`, `""`, "data.layout"},
		{"grant epoch", grant, `"grant_epoch":1`, `"grant_epoch":0`, "data.grant_epoch"},
		{"KV's request", transferred, `"kv_request":"` + requestID, `"kv_request":"x`, "data.kv_request"},
		{"finish reason", decoded, `"stop"`, `"abort"`, "data.finish_reason"},
		{"stage", fail, `"transfer"`, `"tra\u0000nsfer"`, "data.stage"},
		{"reason", cancel, `"client_gone"`, `"gone"`, "data.reason"},
		{"role that holds no pages", released, `"role":"prefill"`, `"role":"operator"`, "data.role"},
		{"released generation", released, `"generation":7`, `"generation":0`, "data.generation"},
		{"key", register, workerKey, workerKey[:40], "data.public_key"},
		{"key with slack bits", register, "Hh8=", "Hh9=", "data.public_key"},
		{"address", register, "tcp://10.0.0.7:7001", "http://10.0.0.7:7001", "data.address"},
		{"port", register, "tcp://10.0.0.7:7001", "tcp://10.0.0.7:0", "data.address"},
		{"user in the address", register, "tcp://10.0.0.7:7001", "tcp://u@10.0.0.7:7001", "data.address"},
		{"pool", register, `"pool_pages":16384`, `"pool_pages":0`, "data.pool_pages"},
		{"worker", leave, `"request_id":"p1"`, `"request_id":"p.1"`, "request_id"},
		{"model as subject", quarantine, `"request_id":"llama-3.1"`, `"request_id":"llama>"`, "request_id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fullCommands()[tc.command]
			b, err := AppendCommand(nil, c)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(b), tc.old); n != 1 {
				t.Fatalf("%q stands %d times in %s", tc.old, n, b)
			}
			got, err := DecodeCommand(c.Type, []byte(strings.Replace(string(b), tc.old, tc.new, 1)))
			if tc.name == "no pages" { // stands for an engine that keeps its own
				if err != nil {
					t.Fatal(err)
				}
				got.Data.(*Prefill).Reference = ""
				tc.field, err = "data.pages", got.Check()
			}
			var f *FieldError
			if !errors.As(err, &f) || f.Field != tc.field {
				t.Fatalf("error %v, want one of field %q", err, tc.field)
			}
		})
	}
	if _, err := DecodeCommand("explode", []byte(`{}`)); err == nil {
		t.Error("an unknown command decodes")
	}
	if _, err := DecodeCommand(CmdCancel, nil); err == nil {
		t.Error("nothing is a command")
	}
}

func TestAppendCommandRefuses(t *testing.T) {
	c := fullCommands()[0]
	c.Type = CmdCancel
	if _, err := AppendCommand(nil, c); err == nil {
		t.Error("another type's data is sent")
	}
	for _, d := range []CommandData{nil, (*Cancel)(nil), &Cancel{Reason: "gone"}} {
		if b, err := AppendCommand([]byte("x"), &Command{Type: CmdCancel, Subject: requestID, Data: d}); err == nil || string(b) != "x" {
			t.Errorf("%v: %q, %v", d, b, err)
		}
	}
}

// Who may send what, spelled out: a row that widens is a hole.
func TestRoleMatrix(t *testing.T) {
	want := map[CommandType]string{
		CmdAdmit: "gateway", CmdReject: "prefill", CmdPrefilled: "prefill", CmdGrant: "decode", CmdTransferred: "decode",
		CmdDecoded: "decode", CmdFail: "gateway prefill decode", CmdCancel: "gateway operator", CmdReleased: "prefill decode",
		CmdRegister: "prefill decode", CmdLeave: "prefill decode", CmdQuarantine: "operator canary", CmdRestore: "operator", CmdErase: "operator", CmdNotify: "operator", CmdCanary: "canary", CmdAudit: "auditor",
	}
	for _, c := range allCommandTypes {
		for _, r := range append(AllRoles(), "", "root") {
			if may := strings.Contains(" "+want[c]+" ", " "+string(r)+" ") && r != ""; r.May(c) != may {
				t.Errorf("%q may %s: %v, want %v", r, c, r.May(c), may)
			}
		}
	}
	for _, r := range AllRoles() {
		for _, c := range r.Allowed() {
			if !c.Known() {
				t.Errorf("%s is allowed an unknown %q", r, c)
			}
		}
	}
}
