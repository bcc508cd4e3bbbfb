package lifecycle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
)

// recorded runs a replica with a state directory over some traffic, and stops it
// so that it leaves a snapshot.
func recorded(t *testing.T) (r *rig, dir string) {
	t.Helper()
	r, dir = newRig(t), t.TempDir()
	a := r.start("lc1", func(c *Config) { c.StateDir = dir })
	r.populate().traffic(4)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	return r, dir
}

// refusedStart starts a replica that must not come up, and returns why not.
func (r *rig) refusedStart(name string, change func(*Config)) string {
	r.t.Helper()
	x := r.begin(name, change)
	select {
	case <-x.Ready():
		r.t.Fatal("the replica has started")
	case err := <-x.done:
		x.done <- err // for stop
		if err == nil {
			r.t.Fatal("the replica ended without an error")
		}
		return err.Error()
	case <-time.After(4 * evidenceWait):
		r.t.Fatal("the replica neither starts nor ends")
	}
	return ""
}

// TestLogWithoutItsEnd: a replica that has seen more than the log holds does not
// start, and touches neither the snapshot nor the read side.
func TestLogWithoutItsEnd(t *testing.T) {
	for name, spoil := range map[string]func(*rig){
		"gone": func(*rig) {},
		"another": func(r *rig) { // longer than the one that was lost
			x := r.start("lc2", nil)
			r.populate().traffic(12)
			if err := x.stop(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := recorded(t)
			js, err := jetstream.New(r.connect(keyring.Admin))
			if err != nil {
				t.Fatal(err)
			}
			if err := js.DeleteStream(t.Context(), events.LogStream); err != nil {
				t.Fatal(err)
			}
			spoil(r)
			before := files(t, dir)
			why := r.refusedStart("lc1", func(c *Config) { c.StateDir = dir })
			if !strings.Contains(why, snapshotName) || !strings.Contains(why, "restore the stream") {
				t.Errorf("refused: %s", why)
			}
			if files(t, dir) != before {
				t.Error("the state directory was changed")
			}
			if err := os.Remove(filepath.Join(dir, snapshotName)); err != nil {
				t.Fatal(err)
			}
			if err := r.start("lc1", func(c *Config) { c.StateDir = dir }).stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWrongLogKey: another key makes the whole log look foreign. Nothing may be
// appended under it.
func TestWrongLogKey(t *testing.T) {
	r, dir := recorded(t)
	before := files(t, dir)
	why := r.refusedStart("lc1", func(c *Config) {
		c.StateDir = dir
		c.LogKey = []byte("another key of thirty-two bytes!")
		j, err := journal.OpenJetStream(t.Context(), r.connect(keyring.LifecycleLog), journal.Config{Key: c.LogKey})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.Close() })
		c.Journal = j
	})
	if !strings.Contains(why, "log-mac.key") {
		t.Errorf("refused: %s", why)
	}
	if files(t, dir) != before {
		t.Error("the state directory was changed")
	}
	if err := r.start("lc1", func(c *Config) { c.StateDir = dir }).stop(); err != nil {
		t.Error(err)
	}
}

// TestWrongDigestSecret: another secret would orphan every digest of the log.
func TestWrongDigestSecret(t *testing.T) {
	r, dir := recorded(t)
	before := files(t, dir)
	why := r.refusedStart("lc1", func(c *Config) { c.StateDir, c.DigestSecret = dir, []byte("another secret of some length") })
	if !strings.Contains(why, "digest-secret.key") {
		t.Errorf("refused: %s", why)
	}
	if files(t, dir) != before {
		t.Error("the state directory was changed")
	}
	if err := r.start("lc1", func(c *Config) { c.StateDir = dir }).stop(); err != nil {
		t.Error(err)
	}
}

// files is the content of a directory, as text to compare.
func files(t *testing.T, dir string) string {
	t.Helper()
	all := map[string][]byte{}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if all[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
