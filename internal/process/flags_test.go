package process

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// servers are the commands that run until they are stopped.
var servers = []string{"up", "nats", "lifecycle", "gateway", "worker"}

// refused runs a command that must not start, and wants one line that matches.
func refused(t *testing.T, code int, want string, env []string, args ...string) {
	t.Helper()
	p := run(t, env, args...)
	out := p.stderr.String()
	line := ""
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, "pdgate: ") {
			line = strings.TrimSpace(l)
		}
	}
	matched, err := regexp.MatchString(want, line)
	if err != nil {
		t.Fatal(err)
	}
	if p.code() != code || !matched {
		t.Errorf("pdgate %s\nexit code %d, want %d; want a line that matches %q, got:\n%s", strings.Join(args, " "), p.code(), code, want, out)
	}
	checkLog(t, p)
}

// TestFlagTypes gives every flag of every server command that is not a text a
// value that it cannot have, from the command line, the environment and a file.
// Each time the flag is named, and nothing is created.
func TestFlagTypes(t *testing.T) {
	flag := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+) (int|duration)\b`)
	n := 0
	for _, server := range servers {
		help := run(t, nil, server, "--help").stdout.String()
		found := flag.FindAllStringSubmatch(help, -1)
		if len(found) == 0 && server != "nats" {
			t.Errorf("%s has no flags with numbers: the help text is not understood:\n%s", server, help)
		}
		for i, f := range found {
			name := f[1]
			data := filepath.Join(t.TempDir(), "data")
			switch i % 3 { // each source is tried often enough
			case 0:
				refused(t, 2, `--`+name+`\b.*`, nil, server, "--data", data, "--"+name, "many")
			case 1:
				refused(t, 2, `PDGATE_.*: `+name+`: `, []string{"PDGATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "=many"}, server, "--data", data)
			case 2:
				file := filepath.Join(t.TempDir(), "pdgate.yaml")
				if err := os.WriteFile(file, []byte(name+": many\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				refused(t, 2, `pdgate.yaml: `+name+`: `, nil, server, "--data", data, "--config", file)
			}
			if _, err := os.Stat(data); err == nil {
				t.Errorf("%s --%s: the data directory was created", server, name)
			}
			n++
		}
	}
	t.Logf("%d flags", n)
}

// TestFlagValues gives flags values of the right type that make no sense.
func TestFlagValues(t *testing.T) {
	for _, tt := range []struct {
		args string // the command line, without --data
		want string
	}{
		{"up --concurrency -1", `concurrency -1: want 0 or more`},
		{"up --queue-limit -1", `queue-limit -1: want 0 or more`},
		{"up --threads -1", `threads -1: want 0 or more`},
		{"up --max-input -1", `max-input -1: want 0 or more`},
		{"up --context -1", `context -1: want 0 or more`},
		{"up --durability fsnc", `durability "fsnc": want fsync or interval \(did you mean "fsync"\?\)`},
		{"up --model ..", `model ".."`},
		{"up --engine vllmm", `engine "vllmm" is none of ref`},
		{"up --prefill-workers 65", `prefill-workers 65: want 1 to 64`},
		{"up --decode-workers 0", `decode-workers 0: want 1 to 64`},
		{"up --pool-tokens -1", `pool-tokens -1: want 0 or more`},
		{"up --decode-pool-tokens -1", `decode-pool-tokens -1`},
		{"up --pool-tokens 99999999999", `pool-tokens 99999999999: \d+ MB of KV are more than this machine has memory`},
		{"up --decode-pool-tokens 9223372036854775807", `decode-pool-tokens 9223372036854775807: no machine has the memory`},
		{"up --nats-listen 127.0.0.1", `nats-listen "127.0.0.1": want HOST:PORT`},
		{"up --nats-listen 127.0.0.1:70000", `nats-listen "127.0.0.1:70000": want HOST:PORT`},
		{"nats --nats-listen :x", `nats-listen ":x": want HOST:PORT`},
		{"nats --gateways a,a", `gateways: "a" is given twice`},
		{"nats --prefill a.b", `prefill "a.b": want 1 to 64 letters`},
		{"nats --decode ../x", `decode "../x": want 1 to 64 letters`},
		{"nats --models ref,*", `models "\*"`},
		{"nats --durability never", `durability "never": want fsync or interval`},
		{"lifecycle --name a.b", `name "a.b": want`},
		{"lifecycle --name ../../x", `name "../../x": want`},
		{"lifecycle --partitions -1", `partitions -1: want 0 or more`},
		{"lifecycle --partitions 1000000", `partitions 1000000: want at most`},
		{"lifecycle --replicas 0", `replicas 0: want 1 or more`},
		{"lifecycle --queue-limit -1", `queue-limit -1: want 0 or more`},
		{"gateway --name gw>", `name "gw>": want`},
		{"gateway --drain -1s", `drain -1s: want 0s or more`},
		{"worker", `role "": want --role prefill or --role decode`},
		{"worker --role gateway", `role "gateway": want`},
		{"worker --role prefill --name *", `name "\*": want`},
		{"worker --role prefill --listen-kv 127.0.0.1:1", `listen-kv "127.0.0.1:1": want tcp://HOST:PORT or unix:///PATH`},
		{"worker --role prefill --listen-kv unix://relative", `listen-kv "unix://relative"`},
		{"worker --role prefill --advertise-kv tcp://host", `advertise-kv "tcp://host"`},
		{"worker --role decode --pool-tokens -1", `pool-tokens -1: want 1 or more`},
		{"worker --role decode --concurrency -2", `concurrency -2: want 0 or more`},
		{"up --config none.yaml", `configuration file none.yaml`},
		{"up --log-level loud", `log-level "loud" is none of`},
		{"up --log-format xml", `log-format "xml" is neither`},
	} {
		t.Run(strings.ReplaceAll(tt.args, "/", "|"), func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			refused(t, 2, tt.want, nil, append(strings.Fields(tt.args), "--data", data)...)
			if _, err := os.Stat(data); err == nil {
				t.Error("the data directory was created")
			}
		})
	}
}
