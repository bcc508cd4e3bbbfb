package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// removable are the guards between the public bug and the client, in the order
// in which a request meets them.
var removable = []struct {
	name   string
	remove func(*guards)
}{
	{"admission", func(g *guards) { g.machine.NoAdmissionLimit = true }},
	{"pool", func(g *guards) { g.bigPool = true }},
	{"refused", func(g *guards) { g.worker.NoRefusedCheck = true }},
	{"token-count", func(g *guards) { g.machine.NoTokenCount = true }},
}

func guardNames() []string {
	var names []string
	for _, r := range removable {
		names = append(names, r.name)
	}
	return names
}

func guardsWithout(names []string) (guards, error) {
	var g guards
next:
	for _, n := range names {
		for _, r := range removable {
			if r.name == n {
				r.remove(&g)
				continue next
			}
		}
		return g, fmt.Errorf("guard %q is none of %s%s", n, strings.Join(guardNames(), ", "), didYouMean(n, guardNames()))
	}
	return g, nil
}

// peel runs the guarded half with one guard less each time. It ends with none of
// them, where the answer is wrong; foreign text must not come out even then,
// because the length of what was prefilled travels with the KV.
func (in *incident) peel(ctx context.Context, a *app) error {
	if in.threads == 0 {
		in.threads = runtime.GOMAXPROCS(0)
	}
	t := newTable(a.stdout)
	fmt.Fprintln(t, "WITHOUT\tANSWER\tFOREIGN TEXT\tSTOPPED BY")
	for i := range len(removable) + 1 {
		names := guardNames()[:i]
		g, err := guardsWithout(names)
		if err != nil {
			return err
		}
		o, err := in.guarded(ctx, a, g)
		if err != nil {
			return err
		}
		without := "-"
		if i > 0 {
			without = strings.Join(names, ", ")
		}
		fmt.Fprintf(t, "%s\tHTTP %d\t%s\t%s\n", without, o.Status, o.foreign(), dash(o.StoppedBy))
		if o.Leaked != "" || i < len(removable) && o.Status != http.StatusBadRequest {
			return errors.Join(t.Flush(), fmt.Errorf("without %s the answer is HTTP %d", without, o.Status))
		}
	}
	return t.Flush()
}

// guarded runs the scene through every real part, in a directory of its own.
func (in *incident) guarded(ctx context.Context, a *app, g guards) (outcome, error) {
	s := &in.scene
	in.progress("behind pdgate: the same engine and pools, all parts in this process")
	dir, err := os.MkdirTemp("", "pdgate-incident-")
	if err != nil {
		return outcome{}, fmt.Errorf("temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	keys := map[string]string{} // by tenant
	log := slog.New(slog.DiscardHandler)
	if a.logLevel == "debug" {
		log = a.log
	}
	st := stack{
		dir: dir, natsPort: 0, listen: "127.0.0.1:0", durability: broker.FsyncAlways,
		engine: s.engine(in.threads), prefill: 1, decode: 1, prefillPool: s.prefillTokens, decodePool: s.decodeTokens,
		tenants:  func(dir string) (*gateway.Tenants, error) { return s.tenantsFile(dir, keys) },
		allowRed: true, // it is the configuration that preflight is there to find
		guards:   g, device: in.device, drain: time.Second, log: log,
	}
	st.engine.Model = st.engine.Name
	if g.bigPool {
		st.prefillPool = s.decodeTokens
	}
	var o outcome
	err = st.run(ctx, func(ctx context.Context, e endpoints) (err error) {
		if o, err = in.act(ctx, e, keys); err == nil && in.record != "" {
			err = recordGuarded(ctx, e, filepath.Join(in.record, "guarded.trace"), log)
		}
		return err
	})
	if err == nil {
		err = ctx.Err()
	}
	return o, err
}

// act is what the customers do.
func (in *incident) act(ctx context.Context, e endpoints, keys map[string]string) (outcome, error) {
	s := &in.scene
	var wg sync.WaitGroup
	errs := make([]error, len(s.victims))
	for i, c := range s.victims {
		in.progress("behind pdgate: %s sends %d tokens of records", c.tenant, len(c.prompt))
		wg.Go(func() {
			ans, err := complete(ctx, e.http, keys[c.tenant], "faulty", c)
			if err == nil && ans.status != http.StatusOK {
				err = fmt.Errorf("HTTP %d: %s", ans.status, ans.problem)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.tenant, err)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return outcome{}, err
		}
	}
	in.progress("behind pdgate: %s sends %d tokens", s.intruder.tenant, len(s.intruder.prompt))
	start := time.Now()
	ans, err := complete(ctx, e.http, keys[s.intruder.tenant], "faulty", s.intruder)
	if err != nil {
		return outcome{}, err
	}
	o := s.outcome(ans, time.Since(start))
	return o, explain(ctx, e, &o)
}

// explain reads the intruder's history from the log, and names the guard that
// ended it.
func explain(ctx context.Context, e endpoints, o *outcome) error {
	nc, err := e.dial(ctx, keyring.Operator)
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleOperator, Principal: keyring.Operator.Principal()})
	if err != nil {
		return err
	}
	h, err := c.History(ctx, o.RequestID)
	if err != nil {
		return fmt.Errorf("history of %s: %w", o.RequestID, err)
	}
	for _, raw := range h.Events {
		ev, err := events.Decode(raw)
		if err != nil {
			return err
		}
		o.History = append(o.History, strings.TrimSpace(shortType(ev.Type)+" "+summary(ev.Data)))
		if by := stoppedBy(ev.Data); by != "" && o.StoppedBy == "" {
			o.StoppedBy = by
		}
	}
	return nil
}

// stoppedBy names the guard that an event tells of.
func stoppedBy(d events.Data) string {
	switch d := d.(type) {
	case *events.RequestRejected:
		if d.Stage == "admission" {
			return "admission: the prompt is longer than any live prefill worker accepts"
		}
		if strings.HasPrefix(d.Error.Message, "KV pool") {
			return "pool: the prefill worker never starts what its pool cannot hold"
		}
		return "refused: the worker asks whether prefill refused, before anything else"
	case *events.CommandDenied:
		if d.Code == events.CodeTokenCountMismatch {
			return "token-count: prefill reports another number of tokens than was admitted"
		}
		return fmt.Sprintf("the state machine denied %s: %s", d.Command, d.Code)
	case *events.RequestFailed:
		return fmt.Sprintf("%s: %s", d.Stage, d.Error.Code)
	}
	return ""
}

// tenantsFile gives each customer a key.
func (s *scene) tenantsFile(dir string, keys map[string]string) (*gateway.Tenants, error) {
	var b strings.Builder
	b.WriteString("tenants:\n")
	for _, c := range append(append([]customer{}, s.victims...), s.intruder) {
		key, digest := gateway.GenerateKey()
		keys[c.tenant] = key
		fmt.Fprintf(&b, "  - name: %s\n    api_keys: [%s]\n", c.tenant, digest)
	}
	path := filepath.Join(dir, "tenants.yaml")
	if err := writeFile(path, b.String()); err != nil {
		return nil, err
	}
	return gateway.LoadTenants(path)
}

// answer is what a client of the HTTP API sees.
type answer struct {
	status    int
	text      string // of a completion
	problem   string // code and message of an error
	requestID string
}

// complete asks for a completion.
func complete(ctx context.Context, url, key, model string, c customer) (answer, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": string(c.prompt), "max_tokens": c.most, "temperature": 0})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return answer{}, fmt.Errorf("read answer: %w", err)
	}
	a := answer{status: resp.StatusCode, requestID: resp.Header.Get("X-Request-Id")}
	var v struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		a.problem = string(b[:min(len(b), 200)])
		return a, nil
	}
	if v.Error != nil {
		a.problem = v.Error.Code + ": " + v.Error.Message
	}
	if len(v.Choices) > 0 {
		a.text = v.Choices[0].Text
	}
	return a, nil
}
