package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// settings runs a command that has one flag of each kind, and returns what it
// was given.
func settings(t *testing.T, file string, env []string, args ...string) (map[string]any, string, int) {
	t.Helper()
	a := &app{stdin: strings.NewReader(""), env: env}
	var out, errOut bytes.Buffer
	a.stdout, a.stderr = &out, &errOut
	var got map[string]any
	root := &cobra.Command{Use: "pdgate", SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }}
	f := root.PersistentFlags()
	f.StringVar(&a.config, "config", "", "")
	f.StringVar(&a.logLevel, "log-level", "info", "")
	f.StringVar(&a.logFormat, "log-format", "text", "")
	run := &cobra.Command{Use: "run"}
	text := run.Flags().String("listen", "default", "")
	number := run.Flags().Int("pool-tokens", 1, "")
	yes := run.Flags().Bool("full", false, "")
	names := run.Flags().StringSlice("models", []string{"ref"}, "")
	span := run.Flags().Duration("drain", 0, "")
	run.RunE = func(*cobra.Command, []string) error {
		got = map[string]any{"listen": *text, "pool-tokens": *number, "full": *yes, "models": *names, "drain": span.String()}
		return nil
	}
	root.AddCommand(run)
	if file != "" {
		path := filepath.Join(t.TempDir(), "pdgate.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	root.SetArgs(append([]string{"run"}, args...))
	root.SetErr(&errOut)
	if err := root.Execute(); err != nil {
		return nil, err.Error(), exitUsage
	}
	return got, "", exitOK
}

// TestPrecedence gives each setting in file, environment and command line, and
// takes the later one away each time.
func TestPrecedence(t *testing.T) {
	file := "listen: file\npool-tokens: 2\nfull: true\nmodels: [a, b]\ndrain: 2s\n"
	env := []string{"PDGATE_LISTEN=env", "PDGATE_POOL_TOKENS=3", "PDGATE_FULL=true", "PDGATE_MODELS=c,d", "PDGATE_DRAIN=3s", "OTHER=x", "PDGATE_UNKNOWN=1"}
	args := []string{"--listen", "flag", "--pool-tokens=4", "--full=false", "--models", "e", "--drain", "4s"}
	of := func(l string, n int, f bool, m []string, d string) map[string]any {
		return map[string]any{"listen": l, "pool-tokens": n, "full": f, "models": m, "drain": d}
	}
	for _, tt := range []struct {
		name string
		file string
		env  []string
		args []string
		want map[string]any
	}{
		{"defaults", "", nil, nil, of("default", 1, false, []string{"ref"}, "0s")},
		{"file", file, nil, nil, of("file", 2, true, []string{"a", "b"}, "2s")},
		{"environment", "", env, nil, of("env", 3, true, []string{"c", "d"}, "3s")},
		{"environment over file", file, env, nil, of("env", 3, true, []string{"c", "d"}, "3s")},
		{"flags over both", file, env, args, of("flag", 4, false, []string{"e"}, "4s")},
		{"flags that repeat the defaults over both", file, env, []string{"--listen", "default", "--pool-tokens=1", "--full=false", "--models", "ref", "--drain", "0s"},
			of("default", 1, false, []string{"ref"}, "0s")},
		{"file that repeats the default, environment over it", "listen: default\n", []string{"PDGATE_LISTEN=env"}, nil, of("env", 1, false, []string{"ref"}, "0s")},
		{"environment that repeats the default over file", "listen: file\n", []string{"PDGATE_LISTEN=default"}, nil, of("default", 1, false, []string{"ref"}, "0s")},
		{"empty variables are not set", file, []string{"PDGATE_LISTEN=", "PDGATE_POOL_TOKENS="}, nil, of("file", 2, true, []string{"a", "b"}, "2s")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, msg, code := settings(t, tt.file, tt.env, tt.args...)
			if code != exitOK {
				t.Fatal(msg)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct {
		file string
		env  []string
		want string
	}{
		{"lisen: x\n", nil, `unknown key "lisen" (did you mean "listen"?)`},
		{"config: other.yaml\n", nil, `unknown key "config"`},
		{"help: true\n", nil, `unknown key "help"`},
		{"listen: a\nlisten: b\n", nil, "listen"},
		{"pool-tokens: 1.5\n", nil, `pool-tokens: "1.5" is not a valid int`},
		{"pool-tokens: [1, 2]\n", nil, "pool-tokens"},
		{"full: maybe\n", nil, `full: "maybe" is not a valid bool`},
		{"", []string{"PDGATE_FULL=maybe"}, "environment variable PDGATE_FULL"},
		{"full: true\n", []string{"PDGATE_FULL=maybe"}, "environment variable PDGATE_FULL"},
		{"- a\n", nil, "pdgate.yaml"},
	} {
		_, msg, code := settings(t, tt.file, tt.env)
		if code == exitOK || !strings.Contains(msg, tt.want) {
			t.Errorf("%q %v: %q, want %q in it", tt.file, tt.env, msg, tt.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"listn", "listen", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
