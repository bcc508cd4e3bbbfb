// Package journal keeps the log: envelopes of event lines in one total order,
// appended under a compare-and-swap and followed by every replica.
//
// # What is stored
//
// The log is one JetStream stream, [events.LogStream], over the subjects
// pdgate.log.>. A stored message is an [events.Envelope]: its payload is event
// lines, its headers are
//
//	Nats-Expected-Last-Subject-Sequence  the sequence of the subject's message
//	                                     before, which the server compares
//	Pdgate-Envelope                      the writer's unique name for it
//	Pdgate-Mac                           see events.MAC
//	Content-Type                         application/cloudevents+jsonl
//
// The expectation is the fence. Two writers that saw the same tail cannot both
// append, whichever process, replica or network they came through, so no lease
// is needed for safety. Because the server stores the header it compared, each
// message also proves which message came before it on its subject.
//
// # What an append can tell
//
// [Journal.Append] does not wait. Its reply is a hint about speed, not about
// truth:
//
//   - [Stored] is certain: the envelope is the message with that sequence.
//   - [Refused] is not proof that nothing was stored. A replicated stream can
//     refuse an append while the same append, sent on by a deposed leader, lands.
//   - [Unknown], and silence, say nothing at all.
//
// So whoever appends settles every envelope by following the log, and appends
// again at the same expectation if the log shows nothing: then either the old
// copy landed and the second is refused, or it never can land. There is no
// message id for deduplication, because single and replicated streams disagree
// on which of the two checks comes first.
//
// # What a reader may rely on
//
// [Journal.Follow] hands over every message of the stream once, in order, and
// resumes by itself after a lost connection. A follower that also appends can
// claim what it folded at its acknowledgement (see [Known]): such a message is
// passed over unopened. Follow never skips: a sequence that is
// missing from the stream ends it with a [GapError]. [Journal.Read] and
// [Journal.Last] may be served by a lagging replica and are hints: what they do
// not show may exist.
//
// A log may have lost its beginning on purpose: what is below a sequence leaves the
// stream after a log.trimmed event says so. [Extent.Check] finds that event, and
// tells such a log from one that was cut.
//
// JetStream stores what anyone with publish rights sends to a subject of the
// stream. A message without a valid MAC is foreign: nothing in it counts, but it
// is the tail that the next expectation must name. Follow hands it over as an
// envelope without lines (see [Foreign]) and tells Config.OnForeign.
//
// # Durability
//
// A JetStream acknowledgement means "written to the file", and means "synced to
// the disk" only where the server runs with sync_interval: always. A client
// cannot see that setting. Whoever embeds the server sets it
// (server.Options.SyncAlways); whoever runs one puts
//
//	jetstream { sync_interval: always }
//
// into its configuration. Everything a client can see, [OpenJetStream] checks,
// and it refuses a stream that is weaker than asked for.
package journal
