package auditor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events/audit"
)

// witnesses asks each witness of the policy to cosign (C2SP tlog-witness). Nothing
// waits for them but the cosigned checkpoint.
type witnesses struct {
	a      *Auditor
	policy *audit.Policy
	list   []*witness
	client *http.Client

	mu      sync.Mutex
	current *checkpoint       // to be cosigned; mu
	lines   map[string]string // signature lines for it, by the witness's name; mu
}

type witness struct {
	name string
	url  string
	key  note.Verifier
	wake chan struct{}

	cosigned atomic.Int64 // when it last cosigned, in Unix nanoseconds; 0: never
}

// newWitnesses reads a policy. Witnesses without a URL are for verifiers alone.
func newWitnesses(a *Auditor, policy []byte) (*witnesses, error) {
	w := &witnesses{a: a, lines: map[string]string{}}
	if policy == nil {
		return w, nil
	}
	var err error
	if w.policy, err = audit.ParsePolicy(policy); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(policy)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "witness" {
			continue
		}
		u, err := url.Parse(f[3])
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("policy: witness %s: want an http or https URL", f[1])
		}
		key, err := audit.NewWitness(f[2])
		if err != nil {
			return nil, fmt.Errorf("policy: witness %s: %w", f[1], err)
		}
		w.list = append(w.list, &witness{name: f[1], url: strings.TrimSuffix(f[3], "/") + "/add-checkpoint", key: key, wake: make(chan struct{}, 1)})
	}
	w.client = &http.Client{
		Timeout:       a.cfg.Witnesses,
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return w, nil
}

// start is for when the log has its name.
func (w *witnesses) start() error {
	if w.policy == nil {
		return nil
	}
	switch log := w.policy.Log; {
	case log == nil:
		w.policy.Log = w.a.verifier
	case log.Name() != w.a.verifier.Name() || log.KeyHash() != w.a.verifier.KeyHash():
		return fmt.Errorf("policy: its log is %s+%08x, this one is %s: take the key from the file %s", log.Name(), log.KeyHash(), w.a.vkey, keyFile)
	}
	c, err := w.a.saved(cosignedFile)
	if err == nil && c != nil {
		w.a.cosigned.Store(c)
	}
	return err
}

// push makes c the checkpoint to be cosigned; the one before it is given up.
func (w *witnesses) push(c *checkpoint) {
	w.mu.Lock()
	w.current = c
	clear(w.lines)
	w.mu.Unlock()
	for _, one := range w.list {
		select {
		case one.wake <- struct{}{}:
		default:
		}
	}
}

func (w *witnesses) run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, one := range w.list {
		group.Go(func() { w.serve(ctx, one) })
	}
	group.Wait()
	<-ctx.Done()
	if w.client != nil {
		w.client.CloseIdleConnections()
	}
	return ctx.Err()
}

const (
	witnessRetryMin = time.Second
	witnessRetryMax = time.Minute
)

// serve asks one witness for each checkpoint, and again while it does not answer.
func (w *witnesses) serve(ctx context.Context, one *witness) {
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	known := int64(0) // size that the witness last saw
	wait := witnessRetryMin
	for {
		select {
		case <-ctx.Done():
			return
		case <-one.wake:
		case <-retry.C:
		}
		w.mu.Lock()
		c := w.current
		w.mu.Unlock()
		line, err := w.ask(ctx, one, c, &known)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errRefused):
			w.a.cfg.Logger.Error("ALARM: a witness saw another history of this log, or says so", "witness", one.name, "size", c.Tree.N, "err", err)
			w.a.metrics.refused()
		case err != nil:
			w.a.cfg.Logger.Warn("a witness did not cosign; asked again", "witness", one.name, "size", c.Tree.N, "in", wait, "err", err)
			retry.Reset(wait)
			wait = min(2*wait, witnessRetryMax)
			continue
		default:
			one.cosigned.Store(time.Now().UnixNano())
			if err := w.add(one, c, line); err != nil {
				w.a.cfg.Logger.Error("cosigned checkpoint is not kept", "err", err)
			}
		}
		wait = witnessRetryMin
	}
}

// errRefused is a witness's answer that the tree does not continue what it saw.
var errRefused = errors.New("the witness refuses the consistency proof")

// ask sends one checkpoint, and once more if the witness knows another size than
// thought. It returns the signature line.
func (w *witnesses) ask(ctx context.Context, one *witness, c *checkpoint, known *int64) (string, error) {
	for range 2 {
		if *known > c.Tree.N {
			return "", fmt.Errorf("it has seen %d leaves already", *known)
		}
		body, err := w.request(c, *known)
		if err != nil {
			return "", err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, one.url, bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		resp, err := w.client.Do(req)
		if err != nil {
			return "", err
		}
		answer, err := io.ReadAll(io.LimitReader(resp.Body, audit.MaxCheckpoint))
		resp.Body.Close()
		if err != nil {
			return "", err
		}
		switch resp.StatusCode {
		case http.StatusOK:
			line, err := cosignature(c.note, answer, w.a.verifier, one.key)
			if err == nil {
				*known = c.Tree.N
			}
			return line, err
		case http.StatusConflict:
			size, err := strconv.ParseInt(strings.TrimSuffix(string(answer), "\n"), 10, 64)
			if err != nil || size < 0 || size == *known {
				return "", errors.New("answer 409 without a size")
			}
			*known = size
		case http.StatusUnprocessableEntity:
			return "", errRefused
		default:
			return "", fmt.Errorf("answer %d; 404 means that it does not know the log, 403 that it has another key of it (file %s)", resp.StatusCode, keyFile)
		}
	}
	return "", errors.New("it named two sizes")
}

// request is the body of add-checkpoint: the size that the witness knows, the proof
// from there, and the checkpoint.
func (w *witnesses) request(c *checkpoint, old int64) ([]byte, error) {
	b := fmt.Appendf(nil, "old %d\n", old)
	if old > 0 && old < c.Tree.N {
		proof, err := tlog.ProveTree(c.Tree.N, old, w.a.store.tiles.Hashes(w.a.committed.Load().head()))
		if err != nil {
			return nil, fmt.Errorf("consistency proof: %w", err)
		}
		for _, h := range proof {
			b = fmt.Appendf(b, "%s\n", h)
		}
	}
	return append(append(b, '\n'), c.note...), nil
}

// cosignature takes the witness's line out of its answer, verified.
func cosignature(signed, answer []byte, log, key note.Verifier) (string, error) {
	n, err := note.Open(append(bytes.Clone(signed), answer...), note.VerifierList(log, key))
	if err != nil {
		return "", fmt.Errorf("its cosignature: %w", err)
	}
	for _, s := range n.Sigs {
		if s.Name == key.Name() && s.Hash == key.KeyHash() {
			return "— " + s.Name + " " + s.Base64 + "\n", nil
		}
	}
	return "", errors.New("its answer has no cosignature by the policy's key")
}

// add keeps a cosignature. With a quorum of them the checkpoint is the cosigned one.
func (w *witnesses) add(one *witness, c *checkpoint, line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != c {
		return nil
	}
	w.lines[one.name] = line
	signed := bytes.Clone(c.note)
	for _, o := range w.list {
		signed = append(signed, w.lines[o.name]...)
	}
	opened, err := audit.OpenCheckpoint(signed, w.policy)
	if err != nil {
		return err
	}
	if opened.QuorumErr != nil {
		return nil
	}
	path := filepath.Join(w.a.cfg.Dir, cosignedFile)
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(signed)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(w.a.cfg.Dir)
	}
	if err != nil {
		return err
	}
	w.a.cosigned.Store(&checkpoint{Checkpoint: opened.Checkpoint, note: signed, time: time.Now()})
	return nil
}
