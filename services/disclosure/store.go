package disclosure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// maxMessage is far above what two fields of [events.MaxField] bytes take.
const maxMessage = 8 << 10

// Keep makes the stream where it is missing, as lifecycle, and looks again until
// ctx ends: a stream that somebody removed comes back.
func Keep(ctx context.Context, bus *nats.Conn, replicas int, log *slog.Logger) error {
	js, err := jetstream.NewWithDomain(bus, events.DisclosureDomain)
	if err != nil {
		return fmt.Errorf("disclosures: %w", err)
	}
	said := ""
	for {
		wait := time.Minute
		if err := ensure(ctx, js, replicas); err != nil && ctx.Err() == nil {
			if wait = time.Second; said != err.Error() {
				said = err.Error()
				log.Warn("the stream of disclosures is not there", "err", err)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

func ensure(ctx context.Context, js jetstream.JetStream, replicas int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        events.DisclosureStream,
		Description: "Personal fields of requests, sealed under their tenants' keys",
		Subjects:    []string{events.DisclosureAll},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		MaxMsgSize:  maxMessage,
	})
	// One that is there and differs was changed by a person.
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", events.DisclosureStream, err)
	}
	return nil
}

// Writer is a gateway's side.
type Writer struct{ js jetstream.JetStream }

// NewWriter writes over a gateway's connection.
func NewWriter(nc *nats.Conn) (*Writer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("disclosures: %w", err)
	}
	return &Writer{js}, nil
}

// Put seals and stores the disclosures of one event, and returns when they are
// stored.
func (w *Writer) Put(ctx context.Context, key events.DigestKey, tenant, requestID string, fields []events.Disclosure) error {
	b, err := seal(key, tenant, fields)
	if err != nil {
		return err
	}
	if _, err := w.js.Publish(ctx, events.DisclosureSubject(tenant, requestID), b); err != nil {
		return fmt.Errorf("store disclosures: %w", err)
	}
	return nil
}

// Store is the side of who may read and purge. It is for one caller at a time.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream // nil: not looked up yet
}

// Open works over the eraser's connection.
func Open(nc *nats.Conn) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("disclosures: %w", err)
	}
	return &Store{js: js}, nil
}

// find looks the stream up; false where nobody made one.
func (s *Store) find(ctx context.Context) (bool, error) {
	if s.stream != nil {
		return true, nil
	}
	st, err := s.js.Stream(ctx, events.DisclosureStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", events.DisclosureStream, err)
	}
	s.stream = st
	return true, nil
}

// Get opens the disclosures of a request. What does not open is passed over;
// ErrSealed says that nothing else was there.
func (s *Store) Get(ctx context.Context, key events.DigestKey, tenant, requestID string) ([]events.Disclosure, error) {
	var shut error
	for seq := uint64(1); ; {
		m, err := s.next(ctx, seq, events.DisclosureSubject(tenant, requestID))
		if err != nil {
			return nil, err
		}
		if m == nil {
			return nil, shut
		}
		if all, err := open(key, tenant, m.Data); err == nil {
			return all, nil
		}
		shut, seq = ErrSealed, m.Sequence+1
	}
}

// next is the first message from seq on that has the subject, nil if there is none.
func (s *Store) next(ctx context.Context, seq uint64, subject string) (*jetstream.RawStreamMsg, error) {
	if ok, err := s.find(ctx); !ok {
		return nil, err
	}
	m, err := s.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read disclosures: %w", err)
	}
	return m, nil
}

// Purge removes the disclosures of a tenant.
func (s *Store) Purge(ctx context.Context, tenant string) error {
	return s.purge(ctx, events.DisclosureSubject(tenant, ">"))
}

// PurgeRequest removes those of one request.
func (s *Store) PurgeRequest(ctx context.Context, tenant, requestID string) error {
	return s.purge(ctx, events.DisclosureSubject(tenant, requestID))
}

func (s *Store) purge(ctx context.Context, subject string) error {
	if ok, err := s.find(ctx); !ok {
		return err
	}
	if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
		return fmt.Errorf("purge disclosures: %w", err)
	}
	return nil
}
