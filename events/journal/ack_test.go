package journal

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseAck(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       Reply
		say        string // part of the error
	}{
		{"stored", `{"stream":"PDGATE","seq":17}`, Reply{Kind: Stored, Seq: 17}, ""},
		{"stored, with a domain", `{"stream":"PDGATE", "domain":"hub","seq":18446744073709551615}`, Reply{Kind: Stored, Seq: 1<<64 - 1}, ""},
		{"refused", `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 16"},"stream":"PDGATE","seq":0}`, Reply{Kind: Refused, Hint: 16, Code: 10071}, ""},
		{"refused without a hint", `{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"PDGATE","seq":0}`, Reply{Kind: Refused, Code: 10164}, ""},
		{"disk full", `{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"},"stream":"PDGATE","seq":0}`, Reply{Code: 10047}, "free disk space"},
		{"no leader", `{"error":{"code":500,"err_code":10009,"description":"JetStream cluster can not handle request"}}`, Reply{Code: 10009}, "no leader"},
		{"store failed", `{"error":{"code":503,"err_code":10077,"description":"write /x: no space left on device"}}`, Reply{Code: 10077}, "no space left on device"},
		{"an error this build does not know", `{"error":{"code":500,"err_code":19999,"description":"odd"}}`, Reply{Code: 19999}, "odd"},
		{"an error beside a sequence is no success", `{"error":{"code":500},"stream":"PDGATE","seq":5}`, Reply{}, "JetStream error 0"},
		{"duplicate id is not a conflict", `{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`, Reply{Code: 10158}, "duplicate"},
		{"no responders", "", Reply{Code: 503}, "nobody listens"},
		{"sequence 0", `{"stream":"PDGATE","seq":0}`, Reply{}, "not a JetStream acknowledgement"},
		{"no sequence", `{"stream":"PDGATE","seq":}`, Reply{}, "not a JetStream acknowledgement"},
		{"another stream", `{"stream":"OTHER","seq":5}`, Reply{}, "not a JetStream acknowledgement"},
		{"too large a number", `{"stream":"PDGATE","seq":99999999999999999999}`, Reply{}, "not a JetStream acknowledgement"},
		{"garbage", `{"seq`, Reply{}, "not a JetStream acknowledgement"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := parseAck([]byte(c.data))
			if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Reply{}, "Err")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if (got.Kind == Unknown) != (got.Err != nil) {
				t.Errorf("kind %v with error %v", got.Kind, got.Err)
			}
			if c.say != "" && (got.Err == nil || !contains(got.Err.Error(), c.say)) {
				t.Errorf("error %v, want it to say %q", got.Err, c.say)
			}
		})
	}
}

func FuzzParseAck(f *testing.F) {
	f.Add([]byte(`{"stream":"PDGATE","seq":17}`))
	f.Add([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 16"}}`))
	f.Add([]byte(`{"error":{"description":"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := parseAck(b)
		if r.Kind == Stored && r.Seq == 0 || (r.Kind == Unknown) != (r.Err != nil) {
			t.Fatalf("%q: %+v", b, r)
		}
	})
}
