package auditor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

// Variables that make the test binary an auditor that kills itself.
const (
	victimVar = "PDGATE_TEST_VICTIM" // the commit point it dies before
	timesVar  = "PDGATE_TEST_TIMES"  // how often it passes that point before
	urlVar    = "PDGATE_TEST_URL"
	keysVar   = "PDGATE_TEST_KEYS"
	dirVar    = "PDGATE_TEST_DIR"
)

// quick are the settings of an auditor that is killed: small batches, and heads
// saved with each commit, so that every commit point comes often.
func quick(cfg *Config) {
	cfg.Batch, cfg.Origin, cfg.headsAfter = 300, "example.com/log", 1
	cfg.Interval, cfg.Takeover, cfg.Witnesses = 5*time.Millisecond, 100*time.Millisecond, 5*time.Second
}

// victim runs an auditor in a process of its own, until SIGKILL takes it: from its
// own hand before the commit point, or from its parent's.
func victim() error {
	ring, err := keyring.Load(os.Getenv(keysVar))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx := context.Background()
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: os.Getenv(urlVar), Ring: ring, User: keyring.Auditor, Logger: log})
	if err != nil {
		return err
	}
	key, err := ring.AuditKey()
	if err != nil {
		return err
	}
	logKey, err := ring.LogKey()
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(os.Getenv(timesVar))
	if err != nil {
		return err
	}
	cfg := Config{Name: "a1", Dir: os.Getenv(dirVar), Conn: nc, Domain: broker.AuditDomain, LogKey: logKey, Key: key, Logger: log}
	quick(&cfg)
	cfg.step = func(p string) error {
		if p == os.Getenv(victimVar) {
			if left--; left < 0 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // nothing follows the signal
			}
		}
		return nil
	}
	a, err := New(cfg)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// TestSigkill: an auditor's process that SIGKILL ends before any of its commit points
// leaves a directory and a register from which another one goes on to the same tree.
func TestSigkill(t *testing.T) {
	ring := newSite(t, nil).ring
	for _, point := range []string{"tile", "index", "directories", "state", "prune", "heads", "sign", "record", "checkpoint"} {
		for times := range 2 {
			if testing.Short() && times > 0 {
				continue
			}
			t.Run(fmt.Sprint(point, " ", times), func(t *testing.T) {
				s := newServerAt(t, ring, -1)
				s.openLog()
				s.fill(700)
				y := &tenancy{s, map[string]map[int]audit.Head{}}
				for range 20 {
					y.add("acme", "globex")
				}
				dir := t.TempDir()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				var said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &said, &said
				cmd.Env = append(os.Environ(), victimVar+"="+point, timesVar+"="+strconv.Itoa(times), urlVar+"="+s.broker.ClientURL(), keysVar+"="+ring.Dir(), dirVar+"="+dir)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				s.until("the process is killed", func() bool {
					// A point that comes once for all comes again when there is more.
					s.fill(50)
					y.add("acme", "initech")
					select {
					case err := <-ended:
						ended <- err
						return true
					default:
						return false
					}
				})
				<-ended
				if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || w.Signal() != syscall.SIGKILL {
					t.Fatalf("%v: %s", cmd.ProcessState, said.String())
				}
				before := signedNow(t, s)
				cfg := s.config("a1", dir)
				quick(&cfg)
				r := s.start(cfg)
				r.signedAll()
				if before != nil && before.Size > 0 {
					old, err := r.open([]byte(before.Checkpoint))
					if err != nil {
						t.Fatal(err)
					}
					if want := head(s.leaves[:old.Tree.N]); old.Tree != want {
						t.Errorf("a fork was signed: %v, want %v", old.Tree, want)
					}
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
