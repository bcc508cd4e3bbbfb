package journal_test

import (
	"testing"

	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/events/journal/journaltest"
)

func memoryLog(t *testing.T, mode journal.Mode) *journaltest.Log {
	l := journal.NewMemoryLog(mode, journaltest.Partitions)
	var open []*journal.Memory
	return &journaltest.Log{
		Open: func(onForeign func(*journal.ForeignError)) (journal.Journal, error) {
			m, err := l.Open(journal.Config{Key: journaltest.Key, Partitions: journaltest.Partitions, OnForeign: onForeign})
			if err != nil {
				return nil, err
			}
			open = append(open, m)
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			return m, nil
		},
		Inject: func(subject string, header map[string]string, data []byte) (uint64, error) {
			return l.Inject(subject, header, data), nil
		},
		Delete: func(seq uint64) error {
			for s := uint64(1); s <= seq; s++ {
				l.Delete(s)
			}
			return nil
		},
		Trim: func(seq uint64) error { l.Trim(seq); return nil },
		Restart: func() error {
			for _, m := range open {
				m.Disconnect()
			}
			for _, m := range open {
				m.Reconnect()
			}
			return nil
		},
	}
}

func TestMemorySingle(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) *journaltest.Log { return memoryLog(t, journal.Single) })
}

func TestMemoryReplicated(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) *journaltest.Log { return memoryLog(t, journal.Replicated) })
}

func TestJetStreamR1(t *testing.T) {
	s := startServers(t, 1)
	journaltest.Run(t, func(t *testing.T) *journaltest.Log { return jetStreamLog(t, s) })
}

func TestJetStreamR3(t *testing.T) {
	t.Parallel() // mostly waits for elections
	if testing.Short() {
		t.Skip("three servers and an election take seconds")
	}
	s := startServers(t, 3)
	journaltest.Run(t, func(t *testing.T) *journaltest.Log { return jetStreamLog(t, s) })
}
