package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Log is what is known of the NATS server and the stream that keep the log.
type Log struct {
	Unseen   string     // why it could not be looked at
	Problem  string     // what is wrong with it as a whole
	Fix      string     // of either
	Replicas int        // of the stream
	Weak     []Weakness // ways in which the stream could lose or change an event
	Sync     Sync
}

// Weakness is one setting of the stream, and how to mend it.
type Weakness struct{ Text, Fix string }

// Sync says when JetStream writes to the disk.
type Sync struct {
	Known    bool
	Always   bool
	Interval time.Duration
	Problem  string // why it is not known
}

// parseVarz reads the sync settings out of a NATS server's /varz.
func parseVarz(body []byte) (Sync, error) {
	var v struct {
		JetStream *struct {
			Config *struct {
				Interval time.Duration `json:"sync_interval"`
				Always   bool          `json:"sync_always"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return Sync{}, garbled("/varz", err)
	}
	if v.JetStream == nil || v.JetStream.Config == nil {
		return Sync{}, &problem{"/varz tells nothing of JetStream", "enable JetStream on the server"}
	}
	return Sync{Known: true, Always: v.JetStream.Config.Always, Interval: v.JetStream.Config.Interval}, nil
}

// ReadSync asks the monitoring address of a NATS server; empty: there is none.
func ReadSync(ctx context.Context, url string, timeout time.Duration) Sync {
	if url == "" {
		return Sync{Problem: "no monitoring address was given"}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := &reader{newHTTP(), strings.TrimRight(url, "/")}
	body, status, err := r.get(ctx, "/varz")
	if err == nil && status != http.StatusOK {
		err = &problem{"/varz is not there", ""}
	}
	var s Sync
	if err == nil {
		s, err = parseVarz(body)
	}
	if err != nil {
		return Sync{Problem: err.Error()}
	}
	return s
}

const checkLog = "jetstream"

// JudgeLog looks at where the log is kept.
func JudgeLog(l Log) []Finding {
	var out []Finding
	add := func(level Level, fix, format string, args ...any) {
		out = append(out, Finding{Level: level, Check: checkLog, Node: "nats", Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	switch {
	case l.Unseen != "":
		add(Unknown, l.Fix, "the log's stream cannot be looked at: %s", l.Unseen)
	case l.Problem != "":
		add(Red, l.Fix, "%s", l.Problem)
	default:
		for _, w := range l.Weak {
			add(Red, w.Fix, "the log's stream is weaker than it must be: %s", w.Text)
		}
		switch {
		case l.Replicas >= 3:
			add(Green, "", "the log is on %d servers", l.Replicas)
		default:
			add(Amber, "run a NATS cluster of three, and lifecycle with --replicas 3", "the log is on %d server: it goes with its disk", l.Replicas)
		}
	}
	switch s := l.Sync; {
	case !s.Known:
		add(Unknown, "give the server's monitoring address with --nats-monitor", "when JetStream writes to the disk is not known: %s", s.Problem)
	case s.Always:
		add(Green, "", "an acknowledged event is on disk (sync_interval: always)")
	default:
		add(Amber, "set sync_interval: always in the server's jetstream block", "an acknowledged event is on disk within %v: a power cut loses what came since", s.Interval)
	}
	return out
}
