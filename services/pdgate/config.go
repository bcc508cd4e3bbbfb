package main

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envPrefix begins the environment variables: PDGATE_NATS_LISTEN is the flag
// --nats-listen.
const envPrefix = "PDGATE_"

// configure merges the sources of cmd's settings. The file comes first, then the
// environment, then the command line; later wins. What the merge yields goes
// through the flags themselves, so a value is parsed and refused in the same way
// wherever it came from.
func (a *app) configure(cmd *cobra.Command) error {
	flags := cmd.Flags()
	path := a.config
	if path == "" {
		path = lookup(a.env, envPrefix+"CONFIG")
	}
	k := koanf.New("\x00") // no key nests
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			return fmt.Errorf("configuration file %s: %w", path, err)
		}
		if err := checkKeys(k, path, cmd.Root()); err != nil {
			return err
		}
	}
	if err := k.Load(env.Provider("\x00", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return a.env },
		TransformFunc: func(name, value string) (string, any) {
			if value == "" {
				return "", nil // set to nothing is not set
			}
			return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-"), value
		},
	}), nil); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	// The provider merges a flag that was given, and the default of one that no
	// earlier source names.
	if err := k.Load(posflag.Provider(flags, "\x00", k), nil); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || first != nil || !k.Exists(f.Name) {
			return
		}
		value, err := text(k, f.Name)
		if err == nil && value != f.DefValue && value != f.Value.String() {
			err = f.Value.Set(value)
		}
		if err != nil {
			source := "environment variable " + envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if lookup(a.env, strings.Fields(source)[2]) == "" {
				source = path
			}
			if errors.As(err, new(*strconv.NumError)) {
				err = fmt.Errorf("%q is not a valid %s", value, f.Value.Type())
			}
			first = fmt.Errorf("%s: %s: %w", source, f.Name, err)
		}
	})
	return first
}

// text is a key's value in the form that a flag parses.
func text(k *koanf.Koanf, name string) (string, error) {
	switch v := k.Get(name).(type) {
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = fmt.Sprint(e)
		}
		return strings.Join(parts, ","), nil
	case []string:
		return strings.Join(v, ","), nil
	case map[string]any:
		return "", fmt.Errorf("want a value or a list, not a mapping")
	case nil:
		return "", nil
	default:
		return fmt.Sprint(v), nil
	}
}

// checkKeys refuses a key of the file that no command has: one file may serve
// all of them, and a misspelt key must not be a setting that silently is not
// there.
func checkKeys(k *koanf.Koanf, path string, root *cobra.Command) error {
	known := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		add := func(f *pflag.Flag) { known[f.Name] = true }
		c.LocalFlags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	delete(known, "help")
	delete(known, "config")
	names := make([]string, 0, len(known))
	for n := range known {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, key := range k.Keys() {
		key, _, _ = strings.Cut(key, "\x00")
		if !known[key] {
			return fmt.Errorf("configuration file %s: unknown key %q%s", path, key, didYouMean(key, names))
		}
	}
	return nil
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
