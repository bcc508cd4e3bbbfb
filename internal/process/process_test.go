// Package process tests pdgate as people run it: the real binary, a process for
// each part, real signals and real files. What it looks at afterwards is the log
// and what clients were given, never the inside of a process.
//
// The parts of the harness: a proc is one process, a cluster is a set of them
// that share keys, a load keeps clients busy and judges every answer, and an
// auditor reads the log. Processes are in groups of their own, die with the test
// (by a signal of the kernel's when it is killed), and listen on loopback only.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds every wait: the machine may run other things too.
const patience = 60 * time.Second

// bin is the binary under test. It is built once, when the first test needs it.
var bin struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	defer func() { os.RemoveAll(bin.dir) }()
	go spawner()
	code := m.Run()
	close(spawn)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// pdgate is the path of the binary.
func pdgate(t *testing.T) string {
	t.Helper()
	bin.once.Do(func() {
		if bin.err = readSources(); bin.err != nil {
			return
		}
		if bin.dir, bin.err = os.MkdirTemp("", "pdgate-process-"); bin.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", filepath.Join(bin.dir, "pdgate"), "github.com/pdgate/pdgate/services/pdgate")
		if out, err := cmd.CombinedOutput(); err != nil {
			bin.err = fmt.Errorf("build pdgate: %w\n%s", err, out)
		}
	})
	if bin.err != nil {
		t.Fatal(bin.err)
	}
	return filepath.Join(bin.dir, "pdgate")
}

// readSources looks at every directory of the module. The go command keeps a test's
// result for as long as what the test itself has looked at stays the same, and
// would not know that the binary depends on the rest.
func readSources() error {
	return filepath.WalkDir(filepath.Join("..", ".."), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		return err
	})
}

// spawn takes the starts of processes to one thread that lives as long as the
// tests: the kernel sends a child its parent-death signal when the thread that
// started it ends, not when the process does.
var spawn = make(chan func())

func spawner() {
	runtime.LockOSThread()
	for f := range spawn {
		f()
	}
}

// proc is one process of the test's own.
type proc struct {
	name string
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // how it ended; to be read after done

	quiet          bool // a failure elsewhere is none of its business
	stdout, stderr tail
}

// tail keeps what a process wrote, up to a bound that no healthy one reaches.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const maxTail = 16 << 20

func (o *tail) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b.Len() < maxTail {
		o.b.Write(p)
	}
	return len(p), nil
}

func (o *tail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start runs a program until it ends by itself or the test does.
func start(t *testing.T, env []string, name string, command ...string) *proc {
	t.Helper()
	return startWith(t, nil, env, name, command...)
}

// startWith is start with a last word about the command.
func startWith(t *testing.T, change func(*exec.Cmd), env []string, name string, command ...string) *proc {
	t.Helper()
	p := &proc{name: name, done: make(chan struct{})}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	// Settings of the machine's own must not reach the process.
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	if change != nil {
		change(cmd)
	}
	started := make(chan error)
	spawn <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.pid = cmd.Process.Pid
	go func() { // ends with the process
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && !p.quiet {
			t.Logf("%s wrote:\n%s", name, last(p.stderr.String(), 25))
		}
	})
	return p
}

// kill ends the process and all that it started, at once, and waits for the end.
func (p *proc) kill() {
	select {
	case <-p.done: // its group may be another's by now
	default:
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.done
	}
}

func (p *proc) signal(s syscall.Signal) error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %w", p.name, p.err)
	default:
		return syscall.Kill(p.pid, s)
	}
}

// ended waits for the end and says how long it took.
func (p *proc) ended(limit time.Duration) (time.Duration, error) {
	begin := time.Now()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.done:
		return time.Since(begin), nil
	case <-t.C:
		return limit, fmt.Errorf("%s has not ended after %v", p.name, limit)
	}
}

// code is the exit code; -1 for an end by a signal. It is to be asked after done.
func (p *proc) code() int {
	var e *exec.ExitError
	switch {
	case p.err == nil:
		return 0
	case errors.As(p.err, &e):
		return e.ExitCode()
	}
	return -2
}

// died is the signal that ended the process; 0 if none did.
func (p *proc) died() syscall.Signal {
	var e *exec.ExitError
	if errors.As(p.err, &e) {
		if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return s.Signal()
		}
	}
	return 0
}

// run runs pdgate to its end.
func run(t *testing.T, env []string, args ...string) *proc {
	t.Helper()
	p := start(t, env, "pdgate "+strings.Join(args, " "), append([]string{pdgate(t)}, args...)...)
	if _, err := p.ended(patience); err != nil {
		t.Fatal(err)
	}
	p.quiet = true
	return p
}

// await polls until f is content.
func await(t *testing.T, what string, limit time.Duration, f func() bool) {
	t.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// freeAddress is a loopback address that nobody listens on. Its port lies below
// those that the kernel gives to outgoing connections, so that it is still free
// when a killed server comes back to it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 18_000+rand.IntN(14_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// last is the end of a text, in lines.
func last(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// read is a file's content, trimmed; "" if there is none.
func read(path ...string) string {
	b, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b))
}

func matches(t *testing.T, pattern, s string) bool {
	t.Helper()
	re, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return re.MatchString(s)
}
