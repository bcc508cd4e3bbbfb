// Package events is pdgate's vocabulary: what can happen to a request, what a
// command may ask for, and the one encoding in which both are stored.
//
// # Events
//
// An event is a CloudEvents 1.0 object in structured JSON mode. Its canonical
// encoding is produced by [Append] and by nothing else; those bytes are what is
// stored, hashed, signed and exported, and [Decode] accepts no other form.
//
//	{"specversion":"1.0",
//	 "id":"01890a5d-ac96-774b-bcce-b302099a8057.3",
//	 "source":"/pdgate/lifecycle/lc1",
//	 "type":"request.prefilled.v1",
//	 "subject":"01890a5d-ac96-774b-bcce-b302099a8057",
//	 "time":"2026-01-02T03:04:05.678901Z",
//	 "datacontenttype":"application/json",
//	 "command":"5b1c…",
//	 "principal":"prefill.p1",
//	 "prev":"1207.4",
//	 "tenant":"acme","tenantseq":17,"tenantprev":"q3Zc…",
//	 "data":{…}}
//
// The id is the request id and the event's number in that request's history,
// which is dense from 1: a missing number is a missing event. prev is the
// [Position] of the request's event before, so a history is read by walking
// back. tenantseq is dense per tenant and partition, and tenantprev is the hash
// of the tenant's event before, so a tenant's history can be proven complete.
//
// # Canonical form
//
// Each value has exactly one encoding, so bytes and values stand in a one-to-one
// relation and two readers of the same signed bytes cannot disagree:
//
//   - Members stand in the order of the struct's fields, each at most once, with no
//     white space and no null; those marked omitempty are left out when empty.
//   - Text is UTF-8, escaped as in RFC 8785: '"' and '\' by a backslash; \b, \t, \n,
//     \f and \r in short; other control characters as \u00xx in lower case; all else,
//     '<', '/' and U+2028 among it, stands for itself.
//   - Whole numbers are plain digits; there are no others.
//   - A time is UTC with six digits of fraction: 2026-01-02T03:04:05.678901Z.
//   - Page runs are [start,count,generation]; binary values are base64 with padding.
//
// Commands and other messages are written in that form too, but read in any order
// and spacing, since people send them by hand; what is doubled, unknown, missing or
// mistyped is refused there as well. The versions of an event stand in its type;
// [Decode] carries an older one to the newest, and stored bytes never change.
//
// # Envelopes
//
// One stored message is an envelope: event lines, each ended by '\n', decided
// together under one compare-and-swap. A [Position] names the message's stream
// sequence and the line in it, counted from 0.
//
// No prompt, no completion and no key is ever part of an event: counts and
// keyed digests only.
//
// The package imports the standard library alone, reads no clock and does no
// I/O.
package events
