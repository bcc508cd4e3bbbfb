package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

func stateNames() []string {
	var names []string
	for _, s := range events.AllStates() {
		if s != events.New {
			names = append(names, string(s))
		}
	}
	return names
}

func knownState(s events.State) bool {
	for _, n := range stateNames() {
		if n == string(s) {
			return true
		}
	}
	return false
}

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// shortType is an event's name without its family and version:
// "request.transfer_granted.v1" is "transfer_granted".
func shortType(t events.Type) string {
	s := string(t)
	s = s[:strings.LastIndexByte(s, '.')]
	return s[strings.IndexByte(s, '.')+1:]
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func printView(w io.Writer, v *events.RequestView) error {
	t := newTable(w)
	row := func(name string, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	row("request", "%s", v.RequestID)
	row("state", "%s", v.State)
	if v.Error != nil {
		row("error", "%s (HTTP %d): %s", v.Error.Code, v.Error.HTTPStatus(), v.Error.Message)
	}
	row("tenant", "%s", v.Tenant)
	row("model", "%s", v.Model)
	row("gateway", "%s", dash(v.Gateway))
	row("prompt", "%d tokens, up to %d to follow", v.PromptTokens, v.MaxTokens)
	if v.FinishReason != "" {
		row("output", "%d tokens, ended by %s", v.CompletionTokens, v.FinishReason)
	}
	row("prefill worker", "%s", dash(v.PrefillWorker))
	row("decode worker", "%s", dash(v.DecodeWorker))
	row("grants", "%d", v.GrantEpoch)
	row("admitted", "%s", stamp(v.AdmittedAt))
	row("last event", "%s (position %s, %d events)", stamp(v.UpdatedAt), v.Position, v.Events)
	if !v.State.Final() {
		row("deadline", "%s", stamp(v.Deadline))
	}
	for _, h := range v.Held {
		row("holds", "%d pages on %s (%s), generation %d", h.Pages, h.Worker, h.Role, h.Generation)
	}
	return t.Flush()
}

func printRow(w io.Writer, v *events.RequestView) {
	output, took, code := "-", "-", "-"
	if v.State == events.Decoded {
		output = strconv.Itoa(v.CompletionTokens)
	}
	if v.State.Final() && !v.AdmittedAt.IsZero() {
		took = v.UpdatedAt.Sub(v.AdmittedAt).Round(100 * time.Microsecond).String()
	}
	if v.Error != nil {
		code = string(v.Error.Code)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", v.RequestID, v.State, v.Tenant, v.Model, v.PromptTokens, output, stamp(v.AdmittedAt), took, code)
}

// printHistory shows the walk: each event with the time since the first one.
func printHistory(w io.Writer, v *events.HistoryView) error {
	t := newTable(w)
	fmt.Fprintln(t, "POSITION\tAFTER\tEVENT\tBY\tFACTS")
	var first time.Time
	for i, raw := range v.Events {
		e, err := events.Decode(raw)
		if err != nil {
			return fmt.Errorf("event at %s: %w", v.Positions[i], err)
		}
		if i == 0 {
			first = e.Time
		}
		fmt.Fprintf(t, "%s\t%.1f ms\t%s\t%s\t%s\n", v.Positions[i], float64(e.Time.Sub(first).Microseconds())/1000,
			shortType(e.Type), dash(e.Principal), summary(e.Data))
	}
	return t.Flush()
}

// summary is what a person wants to know of an event, in one line.
func summary(d events.Data) string {
	switch d := d.(type) {
	case *events.RequestAdmitted:
		return fmt.Sprintf("%s: prompt of %d tokens, up to %d to follow", d.Model, d.PromptTokens, d.MaxTokens)
	case *events.RequestRejected:
		return fmt.Sprintf("at %s, HTTP %d %s: %s", d.Stage, d.Error.HTTPStatus(), d.Error.Code, d.Error.Message)
	case *events.RequestPrefilled:
		return fmt.Sprintf("%d tokens in %d pages of %s, %s", d.PromptTokens, events.Pages(d.Pages), d.Worker, d.KVDigest)
	case *events.TransferGranted:
		return fmt.Sprintf("grant %d: %s may pull from %s, into %d pages", d.GrantEpoch, d.Worker, d.Owner, events.Pages(d.Pages))
	case *events.RequestTransferred:
		return fmt.Sprintf("%d bytes at %s in %v, %s", d.KVBytes, d.Worker, time.Duration(d.DurationUS)*time.Microsecond, d.KVDigest)
	case *events.RequestDecoded:
		return fmt.Sprintf("%d tokens by %s, ended by %s", d.CompletionTokens, d.Worker, d.FinishReason)
	case *events.RequestFailed:
		return fmt.Sprintf("in %s, HTTP %d %s: %s", d.Stage, d.Error.HTTPStatus(), d.Error.Code, d.Error.Message)
	case *events.RequestCancelled:
		return fmt.Sprintf("%s, while %s", d.Reason, d.From)
	case *events.RequestReleased:
		return fmt.Sprintf("%d pages of %s free again (%s), drained %v, scrubbed %v", d.Pages, d.Worker, d.Reason, d.Drained, d.Scrubbed)
	case *events.CommandDenied:
		return fmt.Sprintf("%s while %s: %s: %s", d.Command, d.State, d.Code, d.Message)
	case *events.WorkerJoined:
		return fmt.Sprintf("%s of %s, pool of %d pages", d.Role, d.Model, d.PoolPages)
	case *events.WorkerLeft:
		return d.Reason
	case *events.ModelQuarantined:
		if d.Running == events.RunningCancel {
			return d.Reason + " (open requests are cancelled)"
		}
		return d.Reason
	case *events.TenantNotified:
		return fmt.Sprintf("told of %s by %s, sha256:%s", d.Incident, d.Channel, d.Content)
	case *events.ModelRestored:
		return d.Reason
	case *events.TenantErased:
		return "key " + d.TenantKey
	case *events.LogTrimmed:
		return fmt.Sprintf("what is below %d leaves the live log, up to %s", d.BelowSeq, d.Bound)
	case *events.CanaryRan:
		return fmt.Sprintf("%s: %s, %d passed, %d refused as they must, %d wrong, %d foreign, %d without an answer", d.Model, d.Verdict, d.Passed, d.Refused, d.Wrong, d.Foreign, d.Unreachable)
	case *events.AuditRead:
		return fmt.Sprintf("%s by %s over %s", d.Kind, d.Reader, d.Via)
	}
	return ""
}
