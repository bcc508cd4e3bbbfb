package bench

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// A request of the load: 1,000 tokens in, 100 out, in pages as the reference
// engine has them.
const (
	loadModel    = "ref"
	loadTenant   = "bench"
	loadLayout   = "bench.v1"
	loadPrompt   = 1000
	loadMost     = 100
	pageTokens   = 64
	tokenBytes   = 192
	promptPages  = (loadPrompt + pageTokens - 1) / pageTokens
	requestPages = (loadPrompt + loadMost + pageTokens - 1) / pageTokens
	loadLease    = time.Minute
)

// step is one command of a lifecycle, and what the log must say of it.
type step struct {
	role    events.Role
	command events.CommandType
	event   events.Type
	data    func(*life, *load) events.CommandData
}

// steps is a lifecycle: five transitions, each sent when the one before it is
// answered, and then both workers' pages, at once. The owner may release as soon
// as the KV has left, the decode worker when it is done.
var steps = []step{
	{events.RoleGateway, events.CmdAdmit, events.TypeAdmitted, func(*life, *load) events.CommandData {
		return &events.Admit{Tenant: loadTenant, Model: loadModel, PromptTokens: loadPrompt, MaxTokens: loadMost, PromptDigest: someDigest}
	}},
	{events.RolePrefill, events.CmdPrefilled, events.TypePrefilled, func(x *life, l *load) events.CommandData {
		return &events.Prefill{
			WorkerEpoch: l.prefillEpoch, Tenant: loadTenant, PromptTokens: loadPrompt, Pages: x.runs(promptPages), PageTokens: pageTokens,
			Layout: loadLayout, KVBytes: promptPages * pageTokens * tokenBytes, KVDigest: someSum, LeaseMS: loadLease.Milliseconds(),
		}
	}},
	{events.RoleDecode, events.CmdGrant, events.TypeTransferGranted, func(x *life, l *load) events.CommandData {
		return &events.GrantTransfer{WorkerEpoch: l.decodeEpoch, GrantEpoch: 1, Pages: x.runs(requestPages), ReservedTokens: loadPrompt + loadMost, Layout: loadLayout}
	}},
	{events.RoleDecode, events.CmdTransferred, events.TypeTransferred, func(x *life, l *load) events.CommandData {
		return &events.Transfer{WorkerEpoch: l.decodeEpoch, GrantEpoch: 1, KVRequest: x.id, KVBytes: promptPages * pageTokens * tokenBytes, KVDigest: someSum, DurationUS: 500}
	}},
	{events.RoleDecode, events.CmdDecoded, events.TypeDecoded, func(_ *life, l *load) events.CommandData {
		return &events.DecodeDone{WorkerEpoch: l.decodeEpoch, PromptTokens: loadPrompt, CompletionTokens: loadMost, FinishReason: events.FinishLength, OutputDigest: someDigest}
	}},
	{events.RolePrefill, events.CmdReleased, events.TypeReleased, func(x *life, l *load) events.CommandData {
		return x.release(sitePrefill, events.RolePrefill, l.prefillEpoch, promptPages)
	}},
	{events.RoleDecode, events.CmdReleased, events.TypeReleased, func(x *life, l *load) events.CommandData {
		return x.release(siteDecode, events.RoleDecode, l.decodeEpoch, requestPages)
	}},
}

// transitions is how many of the steps follow each other.
const transitions = 5

var (
	someDigest = events.Digest([]byte("bench"), events.KindPrompt, nil)
	someSum    = "kvsum64:" + strings.Repeat("ab", 8)
)

// runs are the pages of the slot that the lifecycle is in. Generations rise, so
// that no two requests hold the same page of the same generation.
func (x *life) runs(pages uint32) []events.PageRun {
	return []events.PageRun{{Start: uint32(x.slot) * requestPages, Count: pages, Generation: x.generation}}
}

func (x *life) release(worker string, role events.Role, epoch uint64, pages int) *events.Release {
	return &events.Release{Worker: worker, WorkerEpoch: epoch, Role: role, Generation: x.generation, Pages: pages, Drained: true, Scrubbed: true, Reason: "done"}
}

// workers registers both workers of a site, which nobody is, and keeps them
// alive until stop.
func (s *site) workers(ctx context.Context, prefill, decode *nats.Conn, pages int) (prefillEpoch, decodeEpoch uint64, stop func(), err error) {
	beats, cancel := context.WithCancel(ctx)
	var done []chan struct{}
	stop = func() {
		cancel()
		for _, d := range done {
			<-d
		}
	}
	join := func(nc *nats.Conn, role events.Role, name string) (uint64, error) {
		epoch := uint64(time.Now().UnixMicro())
		c, err := client.New(ctx, client.Config{Conn: nc, Role: role, Principal: name, Partitions: s.b.Partitions, Logger: s.b.Logger})
		if err != nil {
			return 0, err
		}
		a, err := c.Register(ctx, name, &events.Register{
			Model: loadModel, Epoch: epoch, PublicKey: base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize)), Address: "tcp://127.0.0.1:1",
			Engine: "bench", Version: "1", ContextTokens: 1 << 17, MaxInputTokens: 1 << 17, PoolPages: pages, PageTokens: pageTokens, TokenBytes: tokenBytes, Layout: loadLayout,
		})
		if err == nil {
			err = a.Err()
		}
		if err != nil {
			return 0, fmt.Errorf("register %s: %w", name, err)
		}
		d := make(chan struct{})
		done = append(done, d)
		go func() { // ends with stop
			defer close(d)
			t := time.NewTicker(500 * time.Millisecond)
			defer t.Stop()
			for {
				_ = c.Heartbeat(events.Heartbeat{Epoch: epoch, Model: loadModel, FreePages: pages, SentAt: time.Now().UTC()})
				select {
				case <-beats.Done():
					return
				case <-t.C:
				}
			}
		}()
		return epoch, nil
	}
	if prefillEpoch, err = join(prefill, events.RolePrefill, sitePrefill); err == nil {
		decodeEpoch, err = join(decode, events.RoleDecode, siteDecode)
	}
	if err == nil {
		err = s.admits(ctx)
	}
	if err != nil {
		stop()
	}
	return prefillEpoch, decodeEpoch, stop, err
}

// admits waits until every partition admits: a replica decides on the workers
// that it has followed so far.
func (s *site) admits(ctx context.Context) error {
	nc, err := s.connect(ctx, keyring.Gateway(siteGateway))
	if err != nil {
		return err
	}
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleGateway, Principal: siteGateway, Partitions: s.b.Partitions, Logger: s.b.Logger})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for p := 0; p < s.b.Partitions; {
		id := newID(p, s.b.Partitions)
		a, err := c.Admit(ctx, id, steps[0].data(nil, nil).(*events.Admit))
		if err != nil {
			return fmt.Errorf("first admission: %w", err)
		}
		if a.Type != events.TypeAdmitted {
			continue // no worker is known yet
		}
		if _, err := c.Cancel(ctx, id, &events.Cancel{Reason: events.CodeClientGone}); err != nil {
			return fmt.Errorf("first admission: %w", err)
		}
		p++
	}
	return nil
}

// newID is a request id that lies in the partition.
func newID(partition, partitions int) string { return newIDAt(time.Now(), partition, partitions) }

// newIDAt is newID for a request of another time.
func newIDAt(at time.Time, partition, partitions int) string {
	for {
		u := uuid.Must(uuid.NewV7())
		var ms [8]byte
		binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
		copy(u[:6], ms[2:])
		if id := u.String(); events.PartitionOf(id, partitions) == partition {
			return id
		}
	}
}
