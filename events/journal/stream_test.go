package journal

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// TestWeaknesses weakens each field of the wanted stream, one at a time: each
// must be named, alone. A field that nobody weakens here is found by
// TestWeaknessesCoverTheStream.
func TestWeaknesses(t *testing.T) {
	cfg, err := Config{Key: make([]byte, minKey), Partitions: 8, Replicas: 3}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	good := wanted(cfg, 8)
	if ds := weaknesses(cfg, &good); len(ds) > 0 {
		t.Fatalf("the wanted stream is weak: %v", ds)
	}
	stronger := good
	stronger.Replicas = 5
	stronger.MaxMsgSize = 8 << 20
	if ds := weaknesses(cfg, &stronger); len(ds) > 0 {
		t.Fatalf("a stronger stream is refused: %v", ds)
	}
	for _, c := range weakened {
		t.Run(c.field, func(t *testing.T) {
			have := wanted(cfg, 8)
			c.weaken(&have)
			ds := weaknesses(cfg, &have)
			if len(ds) != 1 || ds[0].Field != c.field || ds[0].Want == "" || ds[0].Have == "" || ds[0].Fix == "" || ds[0].Want == ds[0].Have {
				t.Fatalf("differences %+v, want one, complete, for %s", ds, c.field)
			}
			text := (&WeakStreamError{events.LogStream, ds}).Error()
			if !contains(text, c.field) || !contains(text, ds[0].Fix) || contains(text, "\n") {
				t.Errorf("error is %q, want one line with the field and the fix", text)
			}
		})
	}
}

var weakened = []struct {
	field  string
	weaken func(*jetstream.StreamConfig)
}{
	{"subjects", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") }},
	{"storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
	{"retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
	{"replicas", func(c *jetstream.StreamConfig) { c.Replicas = 1 }},
	{"persist mode", func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }},
	{"deny delete", func(c *jetstream.StreamConfig) { c.DenyDelete = false }},
	{"allow direct", func(c *jetstream.StreamConfig) { c.AllowDirect = false }},
	{"discard", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }},
	{"max age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
	{"max messages", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }},
	{"max bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 30 }},
	{"max messages per subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
	{"max message size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 }},
	{"compression", func(c *jetstream.StreamConfig) { c.Compression = jetstream.S2Compression }},
	{"no ack", func(c *jetstream.StreamConfig) { c.NoAck = true }},
	{"sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }},
	{"allow rollup", func(c *jetstream.StreamConfig) { c.AllowRollup = true }},
	{"allow message ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
	{"subject delete marker ttl", func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Minute }},
	{"allow message schedules", func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = true }},
	{"allow message counter", func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true }},
	{"mirror", func(c *jetstream.StreamConfig) { c.Mirror = &jetstream.StreamSource{Name: "X"} }},
	{"sources", func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "X"}} }},
	{"subject transform", func(c *jetstream.StreamConfig) { c.SubjectTransform = &jetstream.SubjectTransformConfig{} }},
	{"republish", func(c *jetstream.StreamConfig) { c.RePublish = &jetstream.RePublish{} }},
	{"metadata " + metaPartitions, func(c *jetstream.StreamConfig) { c.Metadata = nil }},
	{"partitions", func(c *jetstream.StreamConfig) { c.Metadata = map[string]string{metaPartitions: "16"} }},
}

// TestWeaknessesCoverTheStream finds a field of the stream configuration that is
// neither checked nor known to be harmless: a later nats.go brings more.
func TestWeaknessesCoverTheStream(t *testing.T) {
	cfg, err := Config{Key: make([]byte, minKey), Partitions: 8, Replicas: 3}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, c := range weakened {
		good, have := wanted(cfg, 8), wanted(cfg, 8)
		c.weaken(&have)
		for _, f := range changedFields(&good, &have) {
			covered[f] = true
		}
	}
	harmless := []string{
		"Name",                 // asked for by name
		"Description",          // text
		"MaxConsumers",         // bounds readers, not events
		"ConsumerLimits",       // bounds readers
		"DiscardNewPerSubject", // without a limit per subject it does nothing
		"Duplicates",           // no message carries an id
		"Placement",            // where the servers are
		"FirstSeq",             // a log that begins above 1 says why, see Extent
		"DenyPurge",            // the users' permissions say who may
		"MirrorDirect",         // reads
		"Template",             // not supported any more
		"AllowAtomicPublish",   // batches keep the compare-and-swap
		"AllowBatchPublish",    // likewise
	}
	for _, f := range harmless {
		if covered[f] {
			t.Errorf("%s is both checked and harmless", f)
		}
		covered[f] = true
	}
	for _, f := range fields(jetstream.StreamConfig{}) {
		if !covered[f] {
			t.Errorf("stream field %s is neither checked nor known to be harmless", f)
		}
	}
}

func TestConfig(t *testing.T) {
	key := make([]byte, minKey)
	for name, c := range map[string]Config{
		"no key":              {},
		"short key":           {Key: key[1:]},
		"negative partitions": {Key: key, Partitions: -1},
		"too many partitions": {Key: key, Partitions: events.MaxPartitions + 1},
		"too many replicas":   {Key: key, Replicas: 6},
		"negative timeout":    {Key: key, ReplyTimeout: -1},
	} {
		if _, err := c.withDefaults(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	got, err := Config{Key: key}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]any{1, time.Minute, true}, []any{got.Replicas, got.ReplyTimeout, got.Logger != nil}); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
}
