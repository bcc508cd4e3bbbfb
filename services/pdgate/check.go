package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/broker"
)

// The packages check their configurations themselves, and name their own
// fields. These checks come first, and name the flag.

// firstOf is the first complaint.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func atLeast(flag string, n, least int) error {
	if n < least {
		return fmt.Errorf("%s %d: want %d or more", flag, n, least)
	}
	return nil
}

func checkDuration(flag string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s %v: want 0s or more", flag, d)
	}
	return nil
}

func (e *engineFlags) check() error {
	var err error
	if e.model != "" {
		err = checkModels("model", e.model)
	}
	return firstOf(err, atLeast("threads", e.threads, 0), atLeast("max-input", e.maxInput, 0), atLeast("context", e.context, 0))
}

// checkDataPlane judges an address for pulls; empty is the default.
func checkDataPlane(flag, address string) error {
	at, tcp := strings.CutPrefix(address, "tcp://")
	path, unix := strings.CutPrefix(address, "unix://")
	_, _, err := net.SplitHostPort(at)
	if address == "" || tcp && err == nil || unix && filepath.IsAbs(path) {
		return nil
	}
	return fmt.Errorf("%s %q: want tcp://HOST:PORT or unix:///PATH", flag, address)
}

// checkName judges the name of a part: it is a token of subjects, and part of
// the names of files.
func checkName(flag, name string) error {
	if !events.ValidName(name) || strings.ContainsAny(name, "/:") {
		return fmt.Errorf("%s %q: want 1 to 64 letters, digits, '-' and '_'", flag, name)
	}
	return nil
}

func checkNames(flag string, names []string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if err := checkName(flag, n); err != nil {
			return err
		}
		if seen[n] {
			return fmt.Errorf("%s: %q is given twice", flag, n)
		}
		seen[n] = true
	}
	return nil
}

func checkModels(flag string, names ...string) error {
	for _, n := range names {
		if !events.ValidModel(n) {
			return fmt.Errorf("%s %q: want 1 to 64 letters, digits, '-', '_', ':', '/', and '.' inside", flag, n)
		}
	}
	return nil
}

func checkDurability(flag, d string) error {
	if d != string(broker.FsyncAlways) && d != string(broker.FsyncInterval) {
		return fmt.Errorf("%s %q: want %s or %s%s", flag, d, broker.FsyncAlways, broker.FsyncInterval,
			didYouMean(d, []string{string(broker.FsyncAlways), string(broker.FsyncInterval)}))
	}
	return nil
}

// checkMemory asks the kernel for the memory of pools of so many tokens, and
// gives it back: Go ends the process where it cannot have what it asks for.
func checkMemory(flag string, tokens int, cfg engine.Config) error {
	eng, err := engine.New(cfg)
	if err != nil {
		return err
	}
	const most = 1 << 46 // bytes; more than any address space holds
	per := eng.Info().TokenBytes
	if tokens > most/per {
		return fmt.Errorf("%s %d: no machine has the memory", flag, tokens)
	}
	b, err := syscall.Mmap(-1, 0, tokens*per, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%s %d: %d MB of KV are more than this machine has memory: %w", flag, tokens, tokens*per>>20, err)
	}
	return syscall.Munmap(b)
}
