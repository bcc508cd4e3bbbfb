package journal_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/events/journal/journaltest"
)

// servers is one NATS server on loopback, or a cluster of three, with JetStream
// that syncs before it acknowledges.
type servers struct {
	opts []*server.Options
	run  []*server.Server
}

func startServers(t *testing.T, n int) *servers {
	t.Helper()
	s := &servers{}
	ports := freePorts(t, 2*n)
	var routes []*url.URL
	for i := range n {
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[n+i]))})
	}
	for i := range n {
		o := &server.Options{
			ServerName: "n" + strconv.Itoa(i), Host: "127.0.0.1", Port: ports[i],
			JetStream: true, StoreDir: filepath.Join(t.TempDir(), "js"), SyncAlways: true,
			NoLog: true, NoSigs: true,
		}
		if n > 1 {
			o.Cluster = server.ClusterOpts{Name: "C", Host: "127.0.0.1", Port: ports[n+i]}
			o.Routes = routes
		}
		s.opts = append(s.opts, o)
		s.run = append(s.run, nil)
	}
	t.Cleanup(s.stop)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *servers) start() error {
	for i, o := range s.opts {
		ns, err := server.NewServer(o.Clone())
		if err != nil {
			return err
		}
		s.run[i] = ns
		go ns.Start()
	}
	for _, ns := range s.run {
		if !ns.ReadyForConnections(10 * time.Second) {
			return errors.New("server is not ready")
		}
	}
	return nil
}

func (s *servers) stop() {
	for _, ns := range s.run {
		if ns != nil {
			ns.Shutdown()
		}
	}
	for _, ns := range s.run {
		if ns != nil {
			ns.WaitForShutdown()
		}
	}
}

func (s *servers) connect(opts ...nats.Option) (*nats.Conn, error) {
	u := ""
	for _, o := range s.opts {
		u += ",nats://" + net.JoinHostPort(o.Host, strconv.Itoa(o.Port))
	}
	return nats.Connect(u[1:], append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0),
	}, opts...)...)
}

// freePorts finds ports nobody listens on.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// answered runs f until it is answered: a cluster that is electing its leaders
// drops requests.
func answered(ctx context.Context, f func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := f(try)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
	}
}

// jetStreamLog is an empty log for the suite: the servers are shared, the stream
// is deleted first.
func jetStreamLog(t *testing.T, s *servers) *journaltest.Log {
	t.Helper()
	var conns []*nats.Conn
	connect := func() *nats.Conn {
		nc, err := s.connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		conns = append(conns, nc)
		return nc
	}
	admin := connect()
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := answered(ctx, func(ctx context.Context) error { return js.DeleteStream(ctx, events.LogStream) }); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatal(err)
	}
	open := func(onForeign func(*journal.ForeignError)) (*journal.JetStream, error) {
		return journal.OpenJetStream(ctx, connect(), journal.Config{Key: journaltest.Key, Partitions: journaltest.Partitions, Replicas: len(s.opts), OnForeign: onForeign})
	}
	// The server may still be removing the deleted stream's files, and says that
	// it cannot create the new one's.
	const errCreatingStore = 10049
	for {
		j, err := open(nil)
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == errCreatingStore && ctx.Err() == nil {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		break
	}
	return &journaltest.Log{
		Open: func(onForeign func(*journal.ForeignError)) (journal.Journal, error) {
			j, err := open(onForeign)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() {
				if err := j.Close(); err != nil {
					t.Error(err)
				}
			})
			return j, nil
		},
		Inject: func(subject string, header map[string]string, data []byte) (uint64, error) {
			m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
			for k, v := range header {
				m.Header.Set(k, v)
			}
			a, err := js.PublishMsg(ctx, m)
			if err != nil {
				return 0, err
			}
			return a.Sequence, nil
		},
		Delete: func(seq uint64) error {
			// DenyDelete and DenyPurge hold against everything but an edit.
			st, err := js.Stream(ctx, events.LogStream)
			if err != nil {
				return err
			}
			info, err := st.Info(ctx)
			if err != nil {
				return err
			}
			cfg := info.Config
			cfg.Discard, cfg.MaxMsgs = jetstream.DiscardOld, int64(info.State.LastSeq-seq)
			_, err = js.UpdateStream(ctx, cfg)
			return err
		},
		Trim: func(seq uint64) error {
			trim, err := journal.OpenTrimmer(ctx, admin, "")
			if err != nil {
				return err
			}
			return answered(ctx, func(ctx context.Context) error { return trim.Trim(ctx, seq) })
		},
		Restart: func() error {
			if len(s.opts) > 1 {
				// A whole cluster takes ten seconds to elect its leaders
				// again: cut the connections instead.
				for _, nc := range conns {
					if err := nc.ForceReconnect(); err != nil {
						return err
					}
				}
				return nil
			}
			s.stop()
			return s.start()
		},
	}
}
