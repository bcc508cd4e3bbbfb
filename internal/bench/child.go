package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/pdgate/pdgate/internal/keyring"
)

// childConfig is what a child process is told, as one line of JSON on its
// standard input.
type childConfig struct {
	Kind       string        `json:"kind"`
	Dir        string        `json:"dir,omitempty"`  // its own
	Keys       string        `json:"keys,omitempty"` // the key directory
	Names      keyring.Names `json:"names"`          // of the key directory
	URL        string        `json:"url,omitempty"`  // of the NATS server
	Fsync      bool          `json:"fsync,omitempty"`
	Name       string        `json:"name,omitempty"` // of a replica
	Partitions int           `json:"partitions,omitempty"`
	Retain     int64         `json:"retain,omitempty"`  // lifecycle: bytes of the log that stay; 0: all
	Answers    []int         `json:"answers,omitempty"` // echo: bytes of the answer to each step
	File       string        `json:"file,omitempty"`    // replay: the log; audit: leaves, or a bundle
	Raw        bool          `json:"raw,omitempty"`     // replay: read only; audit: without proofs
	Profile    string        `json:"profile,omitempty"`
}

// Kinds of children.
const (
	kindNATS      = "nats"      // the server; ready: its URL
	kindLifecycle = "lifecycle" // a replica of the service
	kindEcho      = "echo"      // a service that answers as many bytes, and does nothing
	kindReplay    = "replay"    // reads a log file; ready: a replayed
	kindFollow    = "follow"    // reads a log stream; ready: a replayed
	kindAudit     = "audit"     // an auditor that catches up with the log; ready: an audited
	kindHash      = "hash"      // hashes a file of leaves; ready: an audited
	kindExport    = "export"    // writes a bundle of an auditor's directory; ready: an audited
	kindVerify    = "verify"    // verifies a bundle; ready: an audited
)

// Lines that a child answers with its [Usage].
const (
	askUsage  = "usage"
	askRested = "rested" // after a garbage collection
)

// RunChild is the body of a child process: it does what the first line of stdin
// says, writes one line of JSON when it is ready, and ends when stdin does.
func RunChild(ctx context.Context, stdin io.Reader, stdout io.Writer, log *slog.Logger) error {
	in := bufio.NewReader(stdin)
	first, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var cfg childConfig
	if err := json.Unmarshal(first, &cfg); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	body := children[cfg.Kind]
	if body == nil {
		return fmt.Errorf("kind %q is not known", cfg.Kind)
	}
	stop, err := profile(cfg.Profile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := json.NewEncoder(stdout)
	ready := make(chan any, 1)
	read := make(chan error, 1)
	go func() { // ends with stdin, which the one that measures holds open
		defer cancel()
		read <- func() error {
			select {
			case v := <-ready:
				if err := out.Encode(v); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
			for {
				l, err := in.ReadBytes('\n')
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err == nil {
					switch string(bytes.TrimSpace(l)) {
					case askUsage:
						err = out.Encode(usage())
					case askRested:
						err = out.Encode(rested())
					}
				}
				if err != nil {
					return err
				}
			}
		}()
	}()
	err = body(ctx, cfg, log, func(v any) { ready <- v })
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil {
		err = <-read
	}
	return errors.Join(err, stop())
}

// child is a process of a measurement.
type child struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs *tail
}

// tail keeps the end of what a child wrote to its standard error.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - 4096; n > 0 {
		t.b = t.b[n:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// stopPatience is how long a child may take to end.
const stopPatience = 15 * time.Second

// start runs a child, and waits until it is ready; into takes its ready line.
func (b *bench) start(ctx context.Context, name string, cfg childConfig, into any, env ...string) (*child, error) {
	if len(b.Child) == 0 {
		return nil, errors.New("no command line for child processes")
	}
	if cfg.Profile == "" {
		cfg.Profile = b.profileOf(name)
	}
	c := &child{name: name, cmd: exec.CommandContext(ctx, b.Child[0], b.Child[1:]...), errs: &tail{}}
	c.cmd.Env = append(append(os.Environ(), b.ChildEnv...), env...)
	c.cmd.Stderr = c.errs
	// A signal to the group, from a terminal, must not take the child away in the
	// middle: it ends with its standard input.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.out = bufio.NewReader(out)
	c.cmd.Cancel = func() error { return c.in.Close() }
	c.cmd.WaitDelay = stopPatience
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	line, err := json.Marshal(cfg)
	if err == nil {
		_, err = c.in.Write(append(line, '\n'))
	}
	if err == nil {
		err = c.read(into)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), c.stop())
	}
	return c, nil
}

// read takes one line.
func (c *child) read(into any) error {
	l, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s ended early: %w", c.name, err)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(l, into)
}

// usage asks what the process has used so far.
func (c *child) usage() (Usage, error) { return c.ask(askUsage) }

// rested is the usage after a garbage collection.
func (c *child) rested() (Usage, error) { return c.ask(askRested) }

func (c *child) ask(line string) (u Usage, err error) {
	if _, err = io.WriteString(c.in, line+"\n"); err == nil {
		err = c.read(&u)
	}
	if err != nil {
		err = fmt.Errorf("usage of %s: %w", c.name, err)
	}
	return u, err
}

// stop ends the process, and says what it has to say about it.
func (c *child) stop() error {
	_ = c.in.Close() // it may have ended by itself
	patience := time.AfterFunc(stopPatience, func() { _ = c.cmd.Process.Kill() })
	defer patience.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.name, err, c.errs)
	}
	return nil
}

// kill ends the process at once. A stopped one too.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the only error is that it is gone
	_ = c.in.Close()
	_ = c.cmd.Wait() // says that it was killed
}

// pause makes the process hang: its connections stay up and nothing answers.
func (c *child) pause() error { return c.cmd.Process.Signal(syscall.SIGSTOP) }
