package audit

import (
	"fmt"
	"strings"
)

// What no bundle can show, and what a kind of bundle cannot.
const (
	limitLogged = "That everything that happened was logged. A component that served without writing leaves no trace here: " +
		"hold the receipts that clients were given, and the gateways' own counts, against the log."
	limitTruth = "That what an event says is true. The log shows what its writers stated, when, and that it was not changed since."
	limitTime  = "Times: they are by the writers' clocks. Order is the log's."
	limitPaper = "VERIFY.md, policy.txt and files below derived/ are the exporter's: the log signed none of them."
	limitKey   = "That the key is the log's. It came with the bundle; compare it with one that you had from elsewhere (--policy or --vkey)."
	limitAlone = "That everybody is shown the same log. No witness was asked for: compare the checkpoint with those that others hold."
	limitShown = "That the withheld leaves are not what the filter is about. They are there as hashes: the exporter chose which to show."
	limitEpoch = "That the epoch leaf names all of the tenant's chains. The log stated it under its signature; " +
		"whoever has the stream can build the tree again and would find another root."
	limitMix   = "Which of two lines came first, where they are of different chains. Within a chain it is proven."
	limitTail  = "What the tenant did after the epoch leaf."
	limitEnd   = "That the range is all of the log. It is leaves %d to %d of %d."
	limitShut  = "What the digests stand for that nothing here discloses. They are keyed or salted: without the key nobody can try values against them."
	limitOrder = "Stream positions. A leaf's index is proven; sequence and line are not part of an event."
)

// limits are what stays unproven by a bundle that verifies.
func limits(m *Manifest, ownKey, witnessed bool) []string {
	out := []string{limitLogged, limitTruth, limitTime, limitOrder, limitPaper}
	if m.discloses() {
		out = append(out, limitShut)
	}
	if ownKey {
		out = append(out, limitKey)
	}
	if !witnessed {
		out = append(out, limitAlone)
	}
	if m.Completeness == CompleteTenant {
		return append(out, limitEpoch, limitMix, limitTail)
	}
	if !m.Filter.IsZero() {
		out = append(out, limitShown)
	}
	if m.Range.From > 0 || m.Range.To < m.End.Size {
		out = append(out, fmt.Sprintf(limitEnd, m.Range.From, m.Range.To-1, m.End.Size))
	}
	return out
}

// readme is VERIFY.md.
func readme(m *Manifest) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `# How to verify this bundle

    pdgate verify bundle --policy POLICY BUNDLE.zip

POLICY names the log's key and the witnesses that you trust. Take it from elsewhere
than this bundle: policy.txt and log.vkey are here to compare with. Exit codes: 0
verified; 1 verified, with findings; 2 unreadable; 3 incomplete or inconclusive;
4 not verified.

| file | what it is |
|---|---|
| manifest.json | filter, range, counts, and the SHA-256 of all other files |
| events.jsonl | leaves of the log, one a line, byte for byte |
| leaves.bin | the 32-byte hash of every leaf of the range, where some are withheld |
| range-proof.json | hashes left and right of the range, up to the root |
| checkpoint.end | the tree head that all proofs lead to, signed by the log |
| checkpoint.start, consistency.json | an earlier tree head, and the proof that the log only grew since |
| proofs/ | C2SP tlog-proofs of single leaves |
%s
A leaf's hash is SHA-256 of a zero byte and the line without its newline; an inner
node's, SHA-256 of a one byte and its two children (RFC 6962). Without pdgate:
torchwood's spicy -verify reads the proofs without their first line, and any
implementation of RFC 6962 the rest.

## What is proven

`, aboutDisclosures(m))
	for _, l := range claims(m) {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	b.WriteString("\n## What is not proven\n\n")
	for _, l := range limits(m, true, false) {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	return []byte(b.String())
}

func aboutDisclosures(m *Manifest) string {
	if !m.discloses() {
		return ""
	}
	return `| disclosures.jsonl | values of salted digests of the lines |

A disclosure's digest is SHA-256 of salt, field and value, each behind its length in
four bytes, big-endian.
`
}

// claims are what a bundle proves that verifies.
func claims(m *Manifest) []string {
	out := []string{"Every line is a leaf of the log that the end checkpoint signs, unchanged.",
		"The log of the end checkpoint continues the log of the start checkpoint."}
	if m.discloses() {
		out = append(out, "Every value in disclosures.jsonl is what the salted digest of its line was made of.")
	}
	if m.Completeness == CompleteTenant {
		out[0] = "Every line is bound to the end checkpoint: each event names the hash of the one before, and the epoch leaf, which is proven to be in the log, the last ones."
		return append(out, "The tenant's events are all here, in every chain that the epoch leaf names, from its first one or from the stated start.")
	}
	if m.Filter.IsZero() {
		return append(out, "The lines are all leaves of the range, in order, none left out.")
	}
	return append(out, "Every leaf of the range is here, in order: shown, or withheld as a hash.")
}
