package auditor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// Signed is the last signed tree, as it stands in the stream events.AuditStream
// under the subject events.AuditSigned. Lifecycle reads it there.
type Signed struct {
	Origin string `json:"origin"`
	Size   int64  `json:"size"` // 0: nothing is signed yet
	// CompleteUntil is the last stream sequence whose leaves are all in the signed
	// tree. What is above it must stay in the stream.
	CompleteUntil uint64    `json:"complete_until"`
	LegalHold     bool      `json:"legal_hold"` // nothing may be taken off the stream
	Signer        string    `json:"signer"`     // name of the replica
	Time          time.Time `json:"time"`       // by its clock
	Checkpoint    string    `json:"checkpoint"` // the signed note
}

// DecodeSigned reads a Signed strictly.
func DecodeSigned(b []byte) (*Signed, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var s Signed
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("signed tree: %w", err)
	}
	if s.Origin == "" || s.Size < 0 || (s.Size == 0) != (s.Checkpoint == "") {
		return nil, errors.New("signed tree: want an origin, and a checkpoint for a size above 0")
	}
	return &s, nil
}

// register keeps the last signed tree under a compare-and-swap.
type register struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

// errMoved means that somebody else wrote, or may have: read again.
var errMoved = errors.New("the last signed tree has changed")

const registerTimeout = 5 * time.Second

func openRegister(ctx context.Context, nc *nats.Conn, replicas int) (*register, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("auditor: %w", err)
	}
	for {
		s, err := ensureRegister(ctx, js, replicas)
		if err == nil {
			return &register{js, s}, nil
		}
		// A server or a cluster that is starting is silent.
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
		if ctx.Err() != nil || !silent {
			return nil, fmt.Errorf("open stream %s in the auditor's account: %w: does the server run with the configuration of this pdgate (pdgate nats --print-config)?", events.AuditStream, err)
		}
	}
}

func ensureRegister(ctx context.Context, js jetstream.JetStream, replicas int) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	s, err := js.Stream(ctx, events.AuditStream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s, err
	}
	s, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        events.AuditStream,
		Description: "pdgate: the last signed trees of the log. The newest one counts.",
		Subjects:    []string{events.AuditSigned},
		Storage:     jetstream.FileStorage,
		Replicas:    replicas,
		Discard:     jetstream.DiscardOld,
		MaxMsgs:     64, // the newest counts; the others are for people
		DenyDelete:  true,
		DenyPurge:   true,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another replica's, just now
		return js.Stream(ctx, events.AuditStream)
	}
	return s, err
}

// get reads the register from the stream's leader. rev is 0 where it is empty.
func (r *register) get(ctx context.Context) (s *Signed, rev uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	m, err := r.stream.GetLastMsgForSubject(ctx, events.AuditSigned)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the last signed tree: %w", err)
	}
	s, err = DecodeSigned(m.Data)
	return s, m.Sequence, err
}

// swap replaces revision rev. Only a nil error is certain; after any other one the
// caller reads again.
func (r *register) swap(ctx context.Context, s *Signed, rev uint64) (uint64, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return 0, fmt.Errorf("encode signed tree: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	ack, err := r.js.Publish(ctx, events.AuditSigned, b, jetstream.WithExpectLastSequencePerSubject(rev), jetstream.WithExpectStream(events.AuditStream))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errMoved, err)
	}
	return ack.Sequence, nil
}
