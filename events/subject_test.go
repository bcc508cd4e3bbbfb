package events

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAddressesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		role := rapid.SampledFrom(allRoles).Draw(t, "role")
		who := drawText(t, "principal", "name")
		c := rapid.SampledFrom(allCommandTypes).Draw(t, "command")
		p := rapid.IntRange(OpsPartition, MaxPartitions-1).Draw(t, "partition")
		q := rapid.SampledFrom(AllQueries()).Draw(t, "query")
		for subject, want := range map[string]Address{
			CommandSubject(role, who, c, p):    {Role: role, Principal: who, Verb: string(c), Partition: p},
			CommandSubjectAny(role, who, c, p): {Role: role, Principal: who, Verb: string(c), Partition: p, Any: true},
			QuerySubject(role, who, q):         {Role: role, Principal: who, Verb: q, Query: true},
			HeartbeatSubject(role, who):        {Role: role, Principal: who, Verb: "heartbeat"},
		} {
			got, err := ParseAddress(subject)
			if err != nil {
				t.Fatalf("%s: %v", subject, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", subject, diff)
			}
		}
		if got, err := ParseLogSubject(LogSubject(p)); err != nil || got != p {
			t.Fatalf("log subject of %d: %d, %v", p, got, err)
		}
	})
}

func TestParseAddressRefuses(t *testing.T) {
	for _, bad := range []string{
		"", "pdgate.v1", "pdgate.v1.", "pdgate.v1.gateway", "pdgate.v1.gateway.gw1", "pdgate.v2.gateway.gw1.admit.3",
		"pdgate.v1.gateway..admit.3", "pdgate.v1.gateway.*.admit.3", "pdgate.v1.gateway.gw1.admit", "pdgate.v1.gateway.gw1.admit.03",
		"pdgate.v1.gateway.gw1.admit.-1", "pdgate.v1.gateway.gw1.admit.x", "pdgate.v1.gateway.gw1.admit.3.4", "pdgate.v1.gateway.gw1.admit.any",
		"pdgate.v1.gateway.gw1.admit.any.x", "pdgate.v1.gateway.gw1.admit.65536", "pdgate.log.3",
	} {
		if a, err := ParseAddress(bad); err == nil {
			t.Errorf("%q parses as %+v", bad, a)
		}
	}
	for _, bad := range []string{"", "pdgate.log", "pdgate.log.", "pdgate.log.x", "pdgate.log.1.2", "pdgate.log.01", "xpdgate.log.1", "ops"} {
		if p, err := ParseLogSubject(bad); err == nil {
			t.Errorf("%q parses as %d", bad, p)
		}
	}
}

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "gw-1", "org/model:7b", strings.Repeat("x", 64)} {
		if !ValidName(good) || !ValidModel(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"", "a.b", "a b", "*", ">", "é", "a\x00", "~", strings.Repeat("x", 65)} {
		if ValidName(bad) {
			t.Errorf("%q is a name", bad)
		}
	}
	for _, bad := range []string{"", ".a", "a.", "a..b", "a~b", "a*", strings.Repeat("x.", 32) + "x"} {
		if ValidModel(bad) {
			t.Errorf("%q is a model", bad)
		}
	}
	if ValidModel("llama-3.1") == false || Token("llama-3.1") != "llama-3~1" {
		t.Error("llama-3.1 is no model")
	}
}

// A model's name and a request stay within their tokens: what a client may ask
// for cannot reach another subject.
func TestSubjectsKeepTheirShape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model, who := drawText(t, "model", "model"), drawText(t, "name", "name")
		for subject, tokens := range map[string]int{
			NotifySubject(model, 3):                          4,
			WorkSubject(model, RolePrefill):                  4,
			PromptSubject(who, RoleDecode, who, requestID):   6,
			OutputSubject(who, who, requestID):               5,
			ReplicaSubject(who):                              3,
			WorkConsumer(model, RoleDecode):                  1,
			CommandSubject(RoleGateway, who, CmdAdmit, 3):    6,
			CommandSubjectAny(RoleGateway, who, CmdAdmit, 3): 7,
			QuerySubject(RoleGateway, who, QueryGet):         6,
			HeartbeatSubject(RoleDecode, who):                5,
		} {
			got := strings.Split(subject, ".")
			if len(got) != tokens || strings.ContainsAny(subject, "*> \t\r\n") {
				t.Fatalf("%q has %d tokens, want %d", subject, len(got), tokens)
			}
		}
	})
}
