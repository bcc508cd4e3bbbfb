// Package command is the command line of verify: it reads files and hands them to
// package audit.
package command

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pdgate/pdgate/events/audit"
)

// exitUsage is the exit code of a wrong command line and of what cannot be read.
// All others are the report's.
const exitUsage = 2

const usage = `usage:
  %[1]s bundle FILE                              everything in an exported bundle
  %[1]s proof FILE [--leaf FILE | --line TEXT]   that one event is in the log
  %[1]s receipt RECEIPT --proof FILE             that the event of a receipt is
  %[1]s checkpoint FILE                          a log's signed tree head
  %[1]s consistency OLD NEW (--proof FILE | --tiles DIR)
                                                 that a log only grew

Who signs is named by --policy FILE (log, witness, group and quorum lines), or by
--vkey KEY for the log's key alone. All take --json, and --strict, which makes
notes findings.

exit codes: 0 verified; 1 verified, with findings; 2 usage, or unreadable;
3 incomplete or inconclusive; 4 not verified
`

// errUsage is a mistake in the command line.
var errUsage = errors.New("wrong usage")

type command struct {
	name           string
	stdout, stderr io.Writer
	args           []string

	policy, vkey, start, proof, tiles, leaf, line string
	asJSON, strict, ownKey, midway                bool
}

// Run verifies what args name, and returns the exit code.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{name: name, stdout: stdout, stderr: stderr}
	report, err := c.run(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, usage, name)
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "%s: %v\n\n"+usage, name, err, name)
		return exitUsage
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return exitUsage
	}
	if err := c.print(report); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return max(exitUsage, report.Exit)
	}
	return report.Exit
}

func (c *command) print(r *audit.Report) error {
	if !c.asJSON {
		_, err := r.WriteTo(c.stdout)
		return err
	}
	e := json.NewEncoder(c.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

func (c *command) run(args []string) (*audit.Report, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("%w: say what to verify", errUsage)
	}
	verbs := map[string]func() (*audit.Report, error){"bundle": c.bundle, "proof": c.oneProof, "receipt": c.receipt,
		"checkpoint": c.checkpoint, "consistency": c.consistency}
	verb := args[0]
	if verb == "help" || verb == "-h" || verb == "-help" || verb == "--help" {
		return nil, flag.ErrHelp
	}
	f := verbs[verb]
	if f == nil {
		return nil, fmt.Errorf("%w: %q is none of bundle, proof, receipt, checkpoint, consistency", errUsage, verb)
	}
	if err := c.parse(verb, args[1:]); err != nil {
		return nil, err
	}
	want := 1
	if verb == "consistency" {
		want = 2
	}
	if len(c.args) != want {
		return nil, fmt.Errorf("%w: %s takes %d arguments, not %d", errUsage, verb, want, len(c.args))
	}
	return f()
}

// parse reads flags, which may stand between and behind the arguments.
func (c *command) parse(verb string, args []string) error {
	f := flag.NewFlagSet(verb, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.policy, "policy", "", "")
	f.StringVar(&c.vkey, "vkey", "", "")
	f.BoolVar(&c.asJSON, "json", false, "")
	f.BoolVar(&c.strict, "strict", false, "")
	switch verb {
	case "bundle":
		f.StringVar(&c.start, "start", "", "")
		f.BoolVar(&c.ownKey, "own-key", false, "")
		f.BoolVar(&c.midway, "midway", false, "")
	case "proof", "receipt":
		f.StringVar(&c.leaf, "leaf", "", "")
		f.StringVar(&c.line, "line", "", "")
	case "consistency":
		f.StringVar(&c.tiles, "tiles", "", "")
	}
	if verb == "receipt" || verb == "consistency" {
		f.StringVar(&c.proof, "proof", "", "")
	}
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		if f.NArg() == 0 {
			return nil
		}
		c.args = append(c.args, f.Arg(0))
		args = f.Args()[1:]
	}
}

// options reads the policy. Without one, and with need, that is a usage error.
func (c *command) options(need bool) (audit.Options, error) {
	o := audit.Options{Strict: c.strict, OwnKey: c.ownKey, Midway: c.midway}
	switch {
	case c.policy != "" && c.vkey != "":
		return o, fmt.Errorf("%w: want --policy or --vkey, not both", errUsage)
	case c.policy != "":
		text, err := read(c.policy, audit.MaxPolicy)
		if err != nil {
			return o, err
		}
		if o.Policy, err = audit.ParsePolicy(text); err != nil {
			return o, err
		}
		if o.Policy.Log == nil {
			return o, errors.New("policy: want a log line")
		}
	case c.vkey != "":
		key, err := audit.ParseKey(c.vkey)
		if err != nil {
			return o, err
		}
		o.Policy = audit.KeyPolicy(key)
	case need:
		return o, fmt.Errorf("%w: want --policy or --vkey: whose signature would count?", errUsage)
	}
	return o, nil
}

// read reads a small file whole.
func read(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("%s: want %d bytes at most", path, limit)
	}
	return b, err
}

// givenLeaf is the event's line, if the command line has one.
func (c *command) givenLeaf() ([]byte, error) {
	switch {
	case c.leaf != "" && c.line != "":
		return nil, fmt.Errorf("%w: want --leaf or --line, not both", errUsage)
	case c.line != "":
		return []byte(strings.TrimSuffix(c.line, "\n")), nil
	case c.leaf != "":
		b, err := read(c.leaf, audit.MaxLeaf+1)
		return []byte(strings.TrimSuffix(string(b), "\n")), err
	}
	return nil, nil
}
