package events

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// The kinds that struct tags name (is:"kind"): what a value must be when it
// comes from outside. Events are not checked against them, since they hold what
// was accepted, and must stay readable.
//
// want says what the kind is to whoever sent something else.
var want = map[string]string{
	"name":     "want 1 to 64 letters, digits, '-', '_', ':' or '/'",
	"model":    "want 1 to 64 letters, digits, '-', '_', ':', '/', or single '.' inside",
	"request":  "want a UUIDv7 in lower case",
	"digest":   "want \"hmac-sha256-kind:\", or \"hmac-sha256:\", and 64 hex digits in lower case",
	"personal": "want \"sha256-salted:\" and 64 hex digits in lower case",
	"keyname":  "want the fingerprint of a tenant's key: 16 hex digits in lower case",
	"kvdigest": "want \"kvsum64:\" and 16, or \"hmac-sha256:\" and 64, hex digits in lower case",
	"key":      "want an Ed25519 public key: 32 bytes in base64 with padding",
	"hex32":    "want 64 hex digits in lower case",
	"address":  "want tcp://host:port or unix:///path",
	"trace":    "want a W3C traceparent: 00-, 32, 16 and 2 hex digits in lower case",
	"text":     "want 1 to 256 bytes without control characters",
	"message":  "want at most 2048 bytes",
	"part":     "want \"prompt\" or \"sampling\"",
	"positive": "want 1 or more",
	"read":     "want \"export\", \"receipt\" or \"entries\"",
	"via":      "want \"http\" or \"nats\"",
	"limit":    "want 1 to 1000",
	"running":  "want \"drain\" or \"cancel\"",
	"verdict":  "want \"clean\", \"wrong\", \"foreign\" or \"inconclusive\"",
	"lengths":  "want at most 64 of <prompt>+<max_tokens>, separated by spaces",
	"evidence": "want at most 8 of <request id>@<receipt>, separated by spaces",
	"status":   "want an HTTP status from 400 to 599, or 0",
	"worker":   "want \"prefill\" or \"decode\"",
}

const (
	wantRuns       = "want at most 1024 page runs"
	wantRunCount   = "want [start, count, generation] with a count of 1 or more"
	wantRunEnd     = "want pages below 4294967296"
	wantGeneration = "want [start, count, generation] with a generation of 1 or more"
	wantDisjoint   = "want runs that share no page"
)

func isHex(s string, digits int) bool {
	if len(s) != digits {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isRequest(s string) bool { _, err := RequestTime(s); return err == nil }

func isDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, prefixKind)
	if !ok {
		hex, ok = strings.CutPrefix(s, prefixKeyed)
	}
	return ok && isHex(hex, 64)
}

func isSalted(s string) bool {
	hex, ok := strings.CutPrefix(s, prefixSalted)
	return ok && isHex(hex, 64)
}

// isPersonal takes the digests of older gateways too, which are keyed.
func isPersonal(s string) bool { return isSalted(s) || isDigest(s) }

func isKVDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, "kvsum64:")
	return ok && isHex(hex, 16) || isDigest(s)
}

func isKey(s string) bool {
	if len(s) != 44 || strings.ContainsAny(s, "\r\n") {
		return false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == ed25519.PublicKeySize
}

func isText(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 256
}

func isMessage(s string) bool { return len(s) <= 2048 }

func isAddress(s string) bool {
	if len(s) > 256 || strings.ContainsAny(s, "\t\r\n\x00") {
		return false
	}
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return len(path) > 1 && path[0] == '/' // a directory's name may hold spaces
	}
	if strings.Contains(s, " ") {
		return false
	}
	hostport, ok := strings.CutPrefix(s, "tcp://")
	colon := strings.LastIndexByte(hostport, ':')
	if !ok || colon < 1 || strings.ContainsAny(hostport, "/?#@") {
		return false
	}
	host := hostport[:colon]
	if strings.Contains(host, ":") && (host[0] != '[' || host[len(host)-1] != ']') {
		return false
	}
	port, err := strconv.ParseUint(hostport[colon+1:], 10, 16)
	return err == nil && port > 0
}

func isTrace(s string) bool {
	return len(s) == 55 && strings.HasPrefix(s, "00-") && s[35] == '-' && s[52] == '-' &&
		isHex(s[3:35], 32) && isHex(s[36:52], 16) && isHex(s[53:], 2) &&
		strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

func isPart(s string) bool { return s == "prompt" || s == "sampling" }

func isRead(s string) bool { return s == ReadExport || s == ReadReceipt || s == ReadEntries }

func isVia(s string) bool { return s == "http" || s == "nats" }

func isRunning(s string) bool { return s == RunningDrain || s == RunningCancel }

func isVerdict(s string) bool {
	return s == CanaryClean || s == CanaryWrong || s == CanaryForeign || s == CanaryInconclusive
}

// Bounds of a canary's lists.
const (
	MaxLengths  = 64
	MaxEvidence = 8
)

// isLengths and isEvidence let numbers, ids and hashes through and nothing else:
// what a canary records can hold no text.
func isLengths(s string) bool {
	return isList(s, MaxLengths, func(item string) bool {
		prompt, most, ok := strings.Cut(item, "+")
		return ok && isDigits(prompt) && isDigits(most)
	})
}

func isEvidence(s string) bool {
	return isList(s, MaxEvidence, func(item string) bool {
		id, receipt, ok := strings.Cut(item, "@")
		position, hash, two := strings.Cut(receipt, ";")
		_, err := ParsePosition(position)
		return ok && two && isRequest(id) && err == nil && len(hash) == 43 && strings.Trim(hash, base64url) == ""
	})
}

const base64url = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func isDigits(s string) bool {
	return len(s) > 0 && len(s) <= 12 && strings.Trim(s, "0123456789") == ""
}

func isList(s string, most int, ok func(string) bool) bool {
	if len(s) > 4096 {
		return false
	}
	items := strings.Split(s, " ")
	for _, item := range items {
		if !ok(item) {
			return false
		}
	}
	return len(items) <= most
}

func isLimit(n int) bool { return n >= 1 && n <= MaxListLimit }

func isStatus(n int) bool { return n == 0 || n >= 400 && n <= 599 }

func isWorker(r Role) bool { return r == RolePrefill || r == RoleDecode }

// checkRuns checks that a page list names each page at most once.
func checkRuns(runs []PageRun) error {
	if len(runs) > MaxRuns {
		return wrong("", wantRuns)
	}
	for i, r := range runs {
		reason := ""
		switch {
		case r.Count == 0:
			reason = wantRunCount
		case uint64(r.Start)+uint64(r.Count) > 1<<32:
			reason = wantRunEnd
		case r.Generation == 0:
			reason = wantGeneration
		}
		if reason != "" {
			return wrong("["+strconv.Itoa(i)+"]", reason)
		}
	}
	sorted := slices.SortedFunc(slices.Values(runs), func(a, b PageRun) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	for i := 1; i < len(sorted); i++ {
		if uint64(sorted[i-1].Start)+uint64(sorted[i-1].Count) > uint64(sorted[i].Start) {
			return wrong("", wantDisjoint)
		}
	}
	return nil
}
