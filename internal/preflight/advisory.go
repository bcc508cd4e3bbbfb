package preflight

import (
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

//go:embed advisories.yaml
var advisoriesFile []byte

// advisory is one public report about versions of an engine.
type advisory struct {
	ID     string `yaml:"id"`
	Engine string `yaml:"engine"`
	From   string `yaml:"from"`
	Below  string `yaml:"below"`
	Roles  string `yaml:"roles"` // "disaggregated" or empty
	Level  Level  `yaml:"level"`
	Text   string `yaml:"text"`
	Fix    string `yaml:"fix"`
	Source string `yaml:"source"`

	from, below version
}

// advisories are those of the embedded file, which a test reads too.
var advisories = sync.OnceValues(func() ([]advisory, error) { return parseAdvisories(advisoriesFile) })

func parseAdvisories(b []byte) ([]advisory, error) {
	var file struct {
		Advisories []advisory `yaml:"advisories"`
	}
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("advisories: %w", err)
	}
	for i := range file.Advisories {
		a := &file.Advisories[i]
		if err := a.check(); err != nil {
			return nil, fmt.Errorf("advisory %q: %w", a.ID, err)
		}
	}
	return file.Advisories, nil
}

func (a *advisory) check() (err error) {
	switch {
	case a.ID == "" || a.Engine == "" || a.Text == "" || a.Fix == "" || !strings.HasPrefix(a.Source, "https://"):
		return errors.New("id, engine, text, fix and an https source are needed")
	case a.Level != Red && a.Level != Amber:
		return fmt.Errorf("level %q: want RED or AMBER", a.Level)
	case a.Roles != "" && a.Roles != "disaggregated":
		return fmt.Errorf("roles %q: want disaggregated, or none", a.Roles)
	case a.From == "" && a.Below == "":
		return errors.New("from or below is needed")
	}
	if a.From != "" {
		if a.from, err = parseVersionNumber(a.From); err != nil {
			return fmt.Errorf("from: %w", err)
		}
	}
	if a.Below != "" {
		if a.below, err = parseVersionNumber(a.Below); err != nil {
			return fmt.Errorf("below: %w", err)
		}
	}
	return nil
}

// applies says whether the advisory is about the node, which has version v.
func (a *advisory) applies(f *Facts, v version) bool {
	return a.Engine == f.Engine && (a.Roles == "" || f.disaggregated()) &&
		(a.From == "" || v.compare(a.from) >= 0) && (a.Below == "" || v.compare(a.below) < 0)
}

// version is a Python package's: a release, and where it stands around it.
type version struct {
	release [4]int
	phase   int // -2: dev; -1: a pre-release; 0: the release; 1: after it
}

// parseVersionNumber reads what the engines call themselves: 0.5.20,
// 0.5.18.post1, 0.5.20rc1, 0.29.1.dev7+g1a2b3c4. Anything else has no place in an
// order.
func parseVersionNumber(s string) (version, error) {
	var v version
	bad := fmt.Errorf("version %q: want numbers and dots, with rc, dev or post behind them", short(s))
	rest, _, _ := strings.Cut(strings.TrimPrefix(s, "v"), "+") // a local build's name orders nothing
	parts := 0
	for parts < len(v.release) {
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		if n == 0 || n > 9 {
			return version{}, bad
		}
		v.release[parts], _ = strconv.Atoi(rest[:n]) // at most nine digits
		parts++
		rest = rest[n:]
		if len(rest) < 2 || rest[0] != '.' || rest[1] < '0' || rest[1] > '9' {
			break
		}
		rest = rest[1:]
	}
	suffix := strings.TrimLeft(rest, ".-_")
	word := strings.TrimRight(suffix, "0123456789.")
	switch {
	case parts < 2:
		return version{}, bad
	case rest == "":
	case strings.HasPrefix(word, "dev"):
		v.phase = -2
	case word == "rc" || word == "a" || word == "b" || strings.HasPrefix(word, "rc"):
		v.phase = -1
	case strings.HasPrefix(word, "post"):
		v.phase = 1
	default:
		return version{}, bad
	}
	return v, nil
}

func (v version) compare(o version) int {
	for i := range v.release {
		if d := v.release[i] - o.release[i]; d != 0 {
			return d
		}
	}
	return v.phase - o.phase
}
