package events

import (
	"strings"
	"time"
)

// Samples of everything that has a wire form: full ones with every member, and
// lean ones with only those that are always there.

const (
	requestID = "01890a5d-ac96-774b-bcce-b302099a8057"
	groupID   = "01890a5d-ac96-774b-bcce-b302099a8056"
	traceID   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	kvDigest  = "kvsum64:00ff10ee20dd30cc"
	layout    = "ref/64x192/1"
)

var (
	sampleTime     = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	sampleDigest   = "hmac-sha256:" + strings.Repeat("0123456789abcdef", 4)
	sampleSalted   = "sha256-salted:" + strings.Repeat("fedcba9876543210", 4)
	sampleRuns     = []PageRun{{0, 12, 7}, {4096, 1, 7}, {1<<32 - 1, 1, 1<<64 - 1}}
	sampleEvidence = requestID + "@1207.4;" + strings.Repeat("q3Zc", 10) + "q3Y " + groupID + "@1208.0;" + strings.Repeat("-_0A", 10) + "q3Y"
	workerKey      = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

func later(d time.Duration) time.Time { return sampleTime.Add(d) }

func sampleFacts() AdmissionFacts {
	return AdmissionFacts{ContextTokens: 1_048_576, MaxInputTokens: 681_280, MaxDecodeTokens: 2_097_152, PrefillNodes: 3,
		DecodeNodes: 2, QueueDepth: 5, QueueLimit: 512, TenantOpen: 4, TenantLimit: 64, Quarantined: false, Quarantine: "wrong answers", Policy: "sha256:5f2b"}
}

func fullEvents() []*Event {
	facts := sampleFacts()
	var out []*Event
	add := func(subject string, d Data) {
		out = append(out, &Event{ID: subject + ".3", Source: "/pdgate/lifecycle/lc1", Type: d.EventType(), Subject: subject,
			Time: sampleTime, N: 3, Command: "5b1c0a9d8e7f60514233241506f7e8d9", Principal: "prefill.p1", Prev: Position{1207, 4},
			Tenant: "acme", TenantSeq: 17, TenantPrev: strings.Repeat("q3Zc", 10) + "q3Y", Traceparent: traceID, Data: d})
	}
	add(requestID, &RequestAdmitted{Model: "llama-3.1", Gateway: "gw1", PromptTokens: 681_000, MaxTokens: 256, PromptDigest: sampleDigest,
		Stream: true, Group: groupID, Choice: 1, Label: sampleSalted, User: sampleSalted, TenantKey: "0123456789abcdef", PrefillBy: later(time.Minute), Deadline: later(time.Hour), Facts: facts})
	add(requestID, &RequestRejected{Error: *ContextExceeded("prompt", 681_281, 681_280), Stage: "admission", Model: "llama-3.1",
		PromptTokens: 681_281, MaxTokens: 16, Worker: "p1", Facts: &facts})
	add(requestID, &RequestPrefilled{Worker: "p1", WorkerEpoch: 1767323045678901, PromptTokens: 681_000, Pages: sampleRuns, PageTokens: 64,
		Layout: layout, KVBytes: 130_752_000, KVDigest: kvDigest, Reference: sampleDigest, Lease: later(time.Minute)})
	add(requestID, &TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 1767323045678901, Worker: "d1", WorkerEpoch: 1767323045678902,
		WorkerKey: workerKey, OwnerKey: workerKey, OwnerAddress: "tcp://10.0.0.7:7001", Pages: sampleRuns[:2], ReservedTokens: 681_256, Lease: later(time.Minute)})
	add(requestID, &RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1767323045678902, KVBytes: 130_752_000, KVDigest: kvDigest,
		DurationUS: 48_211, DecodeBy: later(time.Hour)})
	add(requestID, &RequestDecoded{Worker: "d1", WorkerEpoch: 1767323045678902, PromptTokens: 681_000, CompletionTokens: 256,
		FinishReason: FinishLength, OutputDigest: sampleDigest})
	add(requestID, &RequestFailed{Error: *NewError(CodeWorkerLost, "worker d1: no heartbeat for 3 s"), From: Transferred, Stage: "decode", Worker: "d1"})
	add(requestID, &RequestCancelled{Reason: CodeClientGone, From: Prefilled})
	add(requestID, &RequestReleased{Worker: "p1", WorkerEpoch: 1767323045678901, Role: RolePrefill, Generation: 7, Pages: 13, Drained: true,
		Scrubbed: true, Reason: "done"})
	add(requestID, &CommandDenied{Command: CmdGrant, State: Rejected, Code: CodeIllegalState, Message: "grant is not legal in state rejected",
		Expected: "prefilled", Actual: "rejected"})
	add("p1", &WorkerJoined{Worker: "p1", Role: RolePrefill, Model: "llama-3.1", Epoch: 1767323045678901, PublicKey: workerKey,
		Address: "unix:///run/p1.sock", Engine: "ref", Version: "1", ContextTokens: 1_048_576, MaxInputTokens: 681_280, PoolPages: 16_384,
		PageTokens: 64, TokenBytes: 192, Layout: layout})
	add("p1", &WorkerLeft{Worker: "p1", Epoch: 1767323045678901, Reason: "shutdown"})
	add("llama-3.1", &ModelQuarantined{Model: "llama-3.1", Reason: "canary text in answer \"42\"\n\x01<é\u2028\\>", Running: RunningCancel, Evidence: sampleEvidence})
	add("llama-3.1", &ModelRestored{Model: "llama-3.1", Reason: "scrubbed and tested"})
	add("acme", &TenantErased{Tenant: "acme", TenantKey: "0123456789abcdef", By: "alice"})
	add(requestID, &CanaryRan{Model: "llama-3.1", Verdict: CanaryForeign, Passed: 9, Refused: 4, Wrong: 1, Foreign: 1, Unreachable: 2, DurationUS: 1_204_311,
		Lengths: "681279+32 681280+32", Evidence: sampleEvidence})
	add("acme", &TenantNotified{Tenant: "acme", Incident: "INC-1", Channel: "email", Content: strings.Repeat("a0", 32), SentAt: sampleTime, AckAt: later(time.Hour)})
	add(requestID, &AuditRead{Reader: "first", Kind: ReadExport, Via: "http", Reads: 1, Tenant: "acme", Request: requestID, Model: "llama-3.1", FromSeq: 7, ToSeq: 1207,
		Since: sampleTime, Until: later(time.Hour)})
	add(LogStream, &LogTrimmed{BelowSeq: 1200, Bound: "retention", Origin: "pdgate.local/a5447bcf7f801a48", TreeSize: 9000, TreeRoot: "ED8Kuu4BmWVL/fNeCFQxNqA4CZTpiikQMQod+/60gOE=", CompleteUntil: 1207})
	return out
}

func leanEvents() []*Event {
	var out []*Event
	add := func(d Data) {
		out = append(out, &Event{ID: "e", Source: "s", Type: d.EventType(), Subject: "x", Data: d})
	}
	add(&RequestAdmitted{})
	add(&RequestRejected{Error: Error{Code: CodeInternal}})
	add(&RequestPrefilled{})
	add(&TransferGranted{})
	add(&RequestTransferred{})
	add(&RequestDecoded{FinishReason: FinishStop})
	add(&RequestFailed{Error: Error{Code: CodeInternal}, From: Admitted})
	add(&RequestCancelled{Reason: CodeCancelled, From: Admitted})
	add(&RequestReleased{Role: RoleDecode})
	add(&CommandDenied{Command: CmdAdmit, Code: CodeMalformed})
	add(&WorkerJoined{Role: RoleDecode})
	add(&WorkerLeft{})
	add(&ModelQuarantined{})
	add(&ModelRestored{})
	add(&TenantErased{})
	add(&CanaryRan{})
	add(&TenantNotified{})
	add(&AuditRead{})
	add(&LogTrimmed{})
	return out
}

func fullCommands() []*Command {
	var out []*Command
	add := func(subject string, d CommandData) {
		out = append(out, &Command{Type: d.CommandType(), Subject: subject, Traceparent: traceID, Data: d})
	}
	add(requestID, &Admit{Tenant: "acme", TenantLimit: 64, Model: "llama-3.1", PromptTokens: 681_000, MaxTokens: 256, PromptDigest: sampleDigest,
		Stream: true, Group: groupID, Choice: 1, Label: sampleSalted, User: sampleSalted, TenantKey: "0123456789abcdef", TimeoutMS: 60_000})
	add(requestID, &Reject{WorkerEpoch: 3, Error: *ContextExceeded("prompt", 681_281, 681_280)})
	add(requestID, &Prefill{WorkerEpoch: 3, Tenant: "acme", PromptTokens: 681_000, Pages: sampleRuns, PageTokens: 64, Layout: layout,
		KVBytes: 130_752_000, KVDigest: kvDigest, Reference: sampleDigest, LeaseMS: 30_000})
	add(requestID, &GrantTransfer{WorkerEpoch: 4, GrantEpoch: 1, Pages: sampleRuns[:2], ReservedTokens: 681_256, Layout: layout})
	add(requestID, &Transfer{WorkerEpoch: 4, GrantEpoch: 1, KVRequest: requestID, KVBytes: 130_752_000, KVDigest: kvDigest,
		Reference: sampleDigest, DurationUS: 48_211})
	add(requestID, &DecodeDone{WorkerEpoch: 4, PromptTokens: 681_000, CompletionTokens: 256, FinishReason: FinishStop, OutputDigest: sampleDigest})
	add(requestID, &Fail{WorkerEpoch: 4, Stage: "transfer", Error: *NewError(CodeTransferFailed, "connection reset")})
	add(requestID, &Cancel{Reason: CodeClientGone})
	add(requestID, &Release{Worker: "p1", WorkerEpoch: 3, Role: RolePrefill, Generation: 7, Pages: 13, Drained: true, Scrubbed: true, Reason: "done"})
	add("p1", &Register{Model: "llama-3.1", Epoch: 3, PublicKey: workerKey, Address: "tcp://10.0.0.7:7001", Engine: "ref", Version: "1",
		ContextTokens: 1_048_576, MaxInputTokens: 681_280, PoolPages: 16_384, PageTokens: 64, TokenBytes: 192, Layout: layout})
	add("p1", &Leave{Epoch: 3, Reason: "shutdown"})
	add("llama-3.1", &Quarantine{Reason: "canary text in an answer", Running: RunningCancel, Evidence: sampleEvidence})
	add("llama-3.1", &Restore{Reason: "scrubbed and tested"})
	add("acme", &Erase{TenantKey: "0123456789abcdef", By: "alice"})
	add(requestID, &Canary{Model: "llama-3.1", Verdict: CanaryForeign, Passed: 9, Refused: 4, Wrong: 1, Foreign: 1, Unreachable: 2, DurationUS: 1_204_311,
		Lengths: "681279+32 681280+32", Evidence: sampleEvidence})
	add("acme", &Notify{Incident: "INC-1", Channel: "email", Content: strings.Repeat("a0", 32), SentAt: sampleTime, AckAt: later(time.Hour)})
	add(requestID, &Audit{Reader: "first", Kind: ReadExport, Via: "http", Reads: 1, Tenant: "acme", Request: requestID, Model: "llama-3.1", FromSeq: 7, ToSeq: 1207,
		Since: sampleTime, Until: later(time.Hour)})
	add(LogStream, &Trim{BelowSeq: 1200, Bound: "retention", Origin: "pdgate.local/a5447bcf7f801a48", TreeSize: 9000, TreeRoot: "ED8Kuu4BmWVL/fNeCFQxNqA4CZTpiikQMQod+/60gOE=", CompleteUntil: 1207})
	return out
}

// leanCommands are the full ones without their optional members.
func leanCommands() []*Command {
	out := fullCommands()
	for _, c := range out {
		c.Traceparent = ""
		switch d := c.Data.(type) {
		case *Admit:
			d.TenantLimit, d.Stream, d.Group, d.Choice, d.Label, d.User, d.TenantKey, d.TimeoutMS = 0, false, "", 0, "", "", "", 0
		case *Erase:
			d.By = ""
		case *Prefill:
			d.Reference = ""
		case *Transfer:
			d.Reference = ""
		case *Fail:
			d.WorkerEpoch = 0
		case *Notify:
			d.AckAt = time.Time{}
		case *Audit:
			*d = Audit{Reader: d.Reader, Kind: d.Kind, Via: d.Via, Reads: 1}
		case *Trim:
			*d = Trim{BelowSeq: d.BelowSeq, Bound: d.Bound}
		}
	}
	return out
}

func sampleGrant() *Grant {
	return &Grant{RequestID: requestID, Model: "llama-3.1", Tenant: "acme", GrantEpoch: 1, Event: "1208.0", Owner: "p1", OwnerEpoch: 3,
		OwnerKey: workerKey, OwnerAddress: "tcp://10.0.0.7:7001", Worker: "d1", WorkerEpoch: 4, WorkerKey: workerKey, Pages: sampleRuns,
		PromptTokens: 681_000, KVBytes: 130_752_000, KVDigest: kvDigest, Layout: layout, Lease: later(time.Minute)}
}

func sampleWork() *Work {
	return &Work{RequestID: requestID, Event: requestID + ".1", Role: RoleDecode, Model: "llama-3.1", Tenant: "acme", Gateway: "gw1",
		PromptTokens: 681_000, MaxTokens: 256, PromptDigest: sampleDigest, DigestKey: strings.Repeat("0f", 32), GrantEpoch: 1,
		Layout: layout, Lease: later(time.Minute), Deadline: later(time.Hour), Traceparent: traceID}
}

func sampleAnswer() *Answer {
	return &Answer{Subject: requestID, State: Prefilled, Type: TypeTransferGranted, ID: requestID + ".3", Position: "1208.0",
		Hash: strings.Repeat("q3Zc", 10) + "q3Y", Grant: &SignedGrant{Grant: []byte(`{"request_id":"r"}`), Signature: []byte("not a signature")},
		KVKey: "0123456789abcdef"}
}

func deniedAnswer() *Answer {
	return &Answer{Subject: requestID, State: Rejected, Type: TypeDenied, ID: requestID + ".3", Position: "1208.0", Hash: "h",
		Error:  ContextExceeded("prompt", 681_281, 681_280),
		Denied: &Denial{Code: CodeIllegalState, Message: "grant is not legal in state rejected", State: Rejected}}
}
