// Package broker runs the NATS server that pdgate embeds, and writes the
// configuration that gives an external one the same accounts and permissions:
// [Config.Text] is what the embedded server itself is started from.
//
// Five accounts keep apart what must not meet:
//
//	LOG    the stream PDGATE. Users: lifecycle-log, admin.
//	WORK   the stream PDGATE_WORK. No users: BUS imports what is used of it.
//	BUS    commands, answers, notifications, prompts, output; no stream.
//	       Users: lifecycle-bus, every gateway, every worker, operator.
//	AUDIT  the stream PDGATE_AUDIT, the last signed tree, which LOG may read;
//	       imports the read half of LOG's JetStream API, and answers BUS's
//	       requests for receipts. User: auditor.
//	DISCLOSURES  the stream PDGATE_DISCLOSURES, to which BUS adds, and which BUS
//	       can neither read nor purge; reads the last signed tree, for the legal
//	       hold. User: eraser.
//	TRIM   imports the right to take the beginning off the stream PDGATE. User:
//	       lifecycle-trim, where the log is trimmed.
//
// Permissions on a single account are not enough. A publisher chooses the reply
// subject of a request, and whoever answers, JetStream's own API included,
// publishes there with rights of its own: a worker that asks
// $JS.API.INFO with the reply subject pdgate.log.0 puts a message into a log
// that it may not publish to. A subject of another account cannot be named, and
// an import rewrites the reply, so neither workers nor the auditor can reach the
// log by any spelling.
//
// The work stream is apart for the same reason. A worker that pulls with the reply
// subject $JS.API.STREAM.DELETE.PDGATE_WORK makes the empty answer a request, and
// inside one account the server would carry it out. BUS has no such API: it imports
// the pull, the acknowledgement, the subjects of items, and, under the JetStream
// domain "work", what lifecycle needs to make the stream and its consumers. What
// takes away is not exported at all.
//
// Inside BUS the same trick reaches subjects that a user may not publish to. What
// arrives there is the API's own JSON, never bytes of the attacker's choice, and
// every reader of BUS subjects parses strictly and refuses it; a test walks the
// ways in.
package broker
