package audit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// MaxPolicy bounds a policy file in bytes.
const MaxPolicy = 64 << 10

// Policy says whose signatures make a checkpoint good: the log's, and those of a
// quorum of witnesses. It is read from the format that Sigsum, Tessera and
// torchwood share, with '#' before comments:
//
//	log <log's verifier key>
//	witness <name> <witness's verifier key> [<URL>]
//	group <name> <number, "any" or "all"> <member>…
//	quorum <name of a witness or a group, or "none">
type Policy struct {
	Log note.Verifier // nil: the policy names no log

	quorumOf  *component // nil: none is asked for
	witnesses []note.Verifier
}

// component is a witness, or a group of which some must be satisfied.
type component struct {
	name    string
	witness note.Verifier // nil: a group
	need    int
	members []*component
	used    bool // as a member of a group
}

// KeyPolicy asks for the log's signature alone.
func KeyPolicy(log note.Verifier) *Policy { return &Policy{Log: log} }

// ParsePolicy reads a policy. What it does not know is an error, and so is a key
// or a component that would count twice.
func ParsePolicy(text []byte) (*Policy, error) {
	if len(text) > MaxPolicy {
		return nil, fmt.Errorf("policy of %d bytes: want %d at most", len(text), MaxPolicy)
	}
	p := &Policy{}
	known := map[string]*component{}
	quorum := ""
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if err := p.line(f, known, &quorum); err != nil {
			return nil, fmt.Errorf("policy: line %d: %w", i+1, err)
		}
	}
	switch q := known[quorum]; {
	case quorum == "":
		return nil, errors.New(`policy: want a quorum line; "quorum none" asks for no witness`)
	case quorum == "none":
	case q == nil:
		return nil, fmt.Errorf("policy: quorum %q is no witness and no group", quorum)
	default:
		p.quorumOf = q
	}
	return p, nil
}

func (p *Policy) line(f []string, known map[string]*component, quorum *string) error {
	switch {
	case f[0] == "log" && len(f) >= 2:
		if p.Log != nil {
			return errors.New("want one log")
		}
		v, err := ParseKey(f[1])
		if err != nil {
			return err
		}
		p.Log = v
		return nil
	case f[0] == "witness" && len(f) >= 3:
		v, err := NewWitness(f[2])
		if err != nil {
			return err
		}
		if _, err := p.Verifier(v.Name(), v.KeyHash()); err == nil {
			return fmt.Errorf("the key of witness %s stands twice", f[1])
		}
		p.witnesses = append(p.witnesses, v)
		return define(known, &component{name: f[1], witness: v})
	case f[0] == "group" && len(f) >= 4:
		return group(f, known)
	case f[0] == "quorum" && len(f) == 2:
		if *quorum != "" {
			return errors.New("want one quorum")
		}
		*quorum = f[1]
		return nil
	}
	return errors.New("want log, witness, group or quorum, with its arguments")
}

func group(f []string, known map[string]*component) error {
	g := &component{name: f[1]}
	for _, name := range f[3:] {
		m := known[name]
		if m == nil {
			return fmt.Errorf("group %s: %q stands nowhere above", g.name, name)
		}
		if m.used {
			return fmt.Errorf("group %s: %q is in a group already, and would count twice", g.name, name)
		}
		m.used = true
		g.members = append(g.members, m)
	}
	switch f[2] {
	case "any":
		g.need = 1
	case "all":
		g.need = len(g.members)
	default:
		n, err := strconv.Atoi(f[2])
		if err != nil || n < 1 || n > len(g.members) {
			return fmt.Errorf("group %s: want any, all, or a number from 1 to %d", g.name, len(g.members))
		}
		g.need = n
	}
	return define(known, g)
}

func define(known map[string]*component, c *component) error {
	if known[c.name] != nil || c.name == "none" {
		return fmt.Errorf("the name %q is taken", c.name)
	}
	known[c.name] = c
	return nil
}

// Verifier makes a policy the known keys of note.Open.
func (p *Policy) Verifier(name string, hash uint32) (note.Verifier, error) {
	if p.Log != nil && p.Log.Name() == name && p.Log.KeyHash() == hash {
		return p.Log, nil
	}
	i := slices.IndexFunc(p.witnesses, func(v note.Verifier) bool { return v.Name() == name && v.KeyHash() == hash })
	if i < 0 {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	return p.witnesses[i], nil
}

// ErrQuorum means that witnesses that the policy asks for did not sign.
var ErrQuorum = errors.New("witness quorum is not met")

func (p *Policy) quorum(n *note.Note) error {
	if p.quorumOf == nil || p.quorumOf.satisfied(n) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrQuorum, p.quorumOf.name)
}

func (c *component) satisfied(n *note.Note) bool {
	if c.witness != nil {
		return signedBy(n, c.witness)
	}
	have := 0
	for _, m := range c.members {
		if m.satisfied(n) {
			have++
		}
	}
	return have >= c.need
}

// ParseKey reads a log's verifier key, "<name>+<hash>+<key>", in its one spelling.
func ParseKey(vkey string) (note.Verifier, error) {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, fmt.Errorf("log key: %w", err)
	}
	key64, ok := strings.CutPrefix(vkey, keyName(v)+"+")
	if _, err := base64.StdEncoding.Strict().DecodeString(key64); !ok || err != nil {
		return nil, errors.New("log key: want the hash in lower case and strict base64")
	}
	return v, nil
}

func keyName(v note.Verifier) string { return fmt.Sprintf("%s+%08x", v.Name(), v.KeyHash()) }

// WantsWitnesses says whether the policy asks for cosignatures.
func (p *Policy) WantsWitnesses() bool { return p.quorumOf != nil }

func (p *Policy) name() string {
	if p.Log == nil {
		return "of the policy, which names none"
	}
	return p.Log.Name()
}
