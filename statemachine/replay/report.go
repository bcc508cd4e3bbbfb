package replay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/statemachine"
)

// ReportFormat is the version of the incident report's JSON form.
const ReportFormat = "pdgate-incident-report/1"

// Phase of a report.
type Phase string

// Phases: within a day, with what is known then, and at the end.
const (
	PhaseInitial Phase = "initial"
	PhaseInterim Phase = "interim"
	PhaseFinal   Phase = "final"
)

// Statement is what people say: no trace holds it.
type Statement struct {
	IncidentID  string    `json:"incident_id"`
	Version     int       `json:"report_version"`
	Phase       Phase     `json:"phase"`
	Supersedes  string    `json:"supersedes,omitempty"` // digest of the report before
	DetectedAt  time.Time `json:"detected_at,omitzero"`
	AwareAt     time.Time `json:"aware_at,omitzero"`
	Deadline    time.Time `json:"deadline_72h,omitzero"` // 72 hours after AwareAt
	ContainedAt time.Time `json:"contained_at,omitzero"`
	RootCause   string    `json:"root_cause"`
	Categories  []string  `json:"data_categories"`
	WhyUnknown  string    `json:"data_categories_reason,omitempty"`
	Measures    []string  `json:"measures"`
}

// Report is the incident report: what people say, and what the trace says. Every
// number comes out again from the same trace.
type Report struct {
	Format string `json:"format"`
	Statement

	FirstSeen     time.Time      `json:"first_seen,omitzero"`
	LastSeen      time.Time      `json:"last_seen,omitzero"`
	Rules         []RuleCount    `json:"rules_violated"`
	Configs       []string       `json:"config_digests"`
	Versions      []string       `json:"service_versions"`
	Responses     Rings          `json:"responses"`
	CrossTenant   int64          `json:"responses_cross_tenant"`
	Exposed       []string       `json:"tenants_exposed"`
	Receiving     []string       `json:"tenants_receiving"`
	Records       int64          `json:"records_approx"` // owner requests whose pages were read
	Edges         []ReportEdge   `json:"exposure_edges"`
	EdgesMore     int64          `json:"exposure_edges_more,omitempty"`
	Affected      []Response     `json:"affected"`
	Notifications []Notification `json:"notifications"`
	WhatIf        []WhatIf       `json:"what_if"`
	Coverage      ReportCoverage `json:"coverage"`
	Inputs        []ReportInput  `json:"inputs"`
	Checkpoint    string         `json:"checkpoint,omitempty"` // of the bundle that was read
	Signature     string         `json:"signature"`            // "" with a reason beside it
	Unsigned      string         `json:"unsigned,omitempty"`
	Verdict       Verdict        `json:"verdict"`
}

// RuleCount is one violation with its count.
type RuleCount struct {
	ID    statemachine.Kind `json:"id"`
	Rule  string            `json:"rule"`
	Title string            `json:"title"`
	Count int64             `json:"count"`
	First time.Time         `json:"first,omitzero"`
	Last  time.Time         `json:"last,omitzero"`
}

// ReportEdge is an exposure edge under its report's names.
type ReportEdge struct {
	OwnerTag  string    `json:"owner_tag"`
	ReaderTag string    `json:"reader_tag"`
	Owner     string    `json:"owner_request_id"`
	Request   string    `json:"request_id"`
	Worker    string    `json:"worker"`
	Page      uint64    `json:"page"`
	Pages     int64     `json:"pages"`
	Expected  uint64    `json:"gen_expected"`
	Read      uint64    `json:"gen_read"`
	Time      time.Time `json:"time"`
	Delivered int       `json:"delivered_tokens"`
	Position  string    `json:"position"`
}

// Notification says that a tenant was told.
type Notification struct {
	Tenant   string    `json:"tenant_tag"`
	Incident string    `json:"incident_id"`
	At       time.Time `json:"at"`
	Channel  string    `json:"channel"`
	Content  string    `json:"content_sha256"`
	AckAt    time.Time `json:"ack_at,omitzero"`
	Position string    `json:"position"`
}

// ReportCoverage is what the trace does not show.
type ReportCoverage struct {
	Pages    Coverage `json:"pages"`
	Gaps     int64    `json:"gaps"`
	Unlogged []string `json:"unlogged_sources"`
}

// ReportInput names what was read.
type ReportInput struct {
	Name   string `json:"name"`
	Format Format `json:"format"`
	Digest string `json:"digest"`
	Events int64  `json:"events"`
}

// NewReport puts a result under a statement.
func NewReport(s Statement, res *Result) *Report {
	r := &Report{Format: ReportFormat, Statement: s, FirstSeen: res.Exposure.First, LastSeen: res.Exposure.Last, Rules: []RuleCount{}, Configs: []string{}, Versions: []string{},
		Responses: res.Exposure.Rings, CrossTenant: res.Exposure.CrossTenant, Exposed: res.Exposure.TenantsExposed, Receiving: res.Exposure.TenantsReceiving,
		Records: res.Exposure.Owners, Edges: []ReportEdge{}, EdgesMore: res.Exposure.EdgesMore, Affected: res.Exposure.Responses, Notifications: []Notification{}, WhatIf: []WhatIf{},
		Coverage: ReportCoverage{Pages: res.Coverage, Gaps: res.Range.Gaps, Unlogged: append([]string{}, res.Limits...)}, Inputs: []ReportInput{},
		Unsigned: "a report is signed by whoever sends it; what it is made from is signed by the log's checkpoint", Verdict: res.Verdict}
	if !r.AwareAt.IsZero() {
		r.Deadline = r.AwareAt.Add(72 * time.Hour)
	}
	if r.Measures == nil {
		r.Measures = []string{}
	}
	if len(r.Categories) == 0 {
		r.Categories = []string{"unknown"}
		if r.WhyUnknown == "" {
			r.WhyUnknown = "the log holds no prompt and no completion: what the pages held has to be asked of the tenants"
		}
	}
	for _, g := range res.Groups {
		if n := len(r.Rules); n > 0 && r.Rules[n-1].ID == g.ID {
			x := &r.Rules[n-1]
			x.Count += g.Count
			if g.Last.Time.After(x.Last) {
				x.Last = g.Last.Time
			}
			if g.First.Time.Before(x.First) {
				x.First = g.First.Time
			}
			continue
		}
		r.Rules = append(r.Rules, RuleCount{g.ID, g.Rule, g.Title, g.Count, g.First.Time, g.Last.Time})
	}
	for _, c := range res.Configs {
		if c.Affected > 0 && c.Policy != "" && !slices.Contains(r.Configs, c.Policy) {
			r.Configs = append(r.Configs, c.Policy)
		}
		for _, w := range c.Workers {
			if v := strings.TrimSpace(w.Engine + " " + w.Version); v != "" && !slices.Contains(r.Versions, v) {
				r.Versions = append(r.Versions, v)
			}
		}
	}
	for _, e := range res.Exposure.Edges {
		r.Edges = append(r.Edges, ReportEdge{e.OwnerTenant, e.ReaderTenant, e.Owner, e.Reader, e.Worker, e.FirstPage, e.Pages, e.GenExpected, e.GenRead, e.Time, e.OutputTokens, e.Position})
	}
	if res.WhatIf != nil {
		r.WhatIf = append(r.WhatIf, *res.WhatIf)
	}
	for _, in := range res.Inputs {
		digest := in.Digest
		if digest == "" && in.SHA256 != "" {
			digest = "sha256:" + in.SHA256
		}
		r.Inputs = append(r.Inputs, ReportInput{in.Name, in.Format, digest, in.Events})
		if in.Checkpoint != "" {
			r.Checkpoint = in.Checkpoint
		}
	}
	for _, n := range res.Notifications {
		if n.Incident == s.IncidentID {
			r.Notifications = append(r.Notifications, n)
		}
	}
	return r
}

// Check says what a report lacks for its phase.
func (r *Report) Check() (missing []string) {
	want := func(ok bool, what string) {
		if !ok {
			missing = append(missing, what)
		}
	}
	want(r.IncidentID != "", "incident_id")
	want(!r.DetectedAt.IsZero(), "detected_at")
	want(!r.AwareAt.IsZero(), "aware_at")
	if r.Phase == PhaseFinal {
		want(!r.ContainedAt.IsZero(), "contained_at")
		want(r.RootCause != "", "root_cause")
		want(len(r.Measures) > 0, "measures")
		for _, t := range r.Exposed {
			want(slices.ContainsFunc(r.Notifications, func(n Notification) bool { return n.Tenant == t }), "a notification to "+t)
		}
	}
	return missing
}

// Recompute compares a report with what the same trace says again, and lists what
// differs. What people say is taken from the report.
func (r *Report) Recompute(res *Result) (differs []string, err error) {
	again := NewReport(r.Statement, res)
	// Files may lie elsewhere by now: their digests name them.
	for i := range again.Inputs {
		if i < len(r.Inputs) {
			again.Inputs[i].Name = r.Inputs[i].Name
		}
	}
	a, err := fields(r)
	if err != nil {
		return nil, err
	}
	b, err := fields(again)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(a))
	for n := range a {
		names = append(names, n)
	}
	for n := range b {
		if _, ok := a[n]; !ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if a[n] != b[n] {
			differs = append(differs, fmt.Sprintf("%s: the report says %s, the trace says %s", n, short(a[n]), short(b[n])))
		}
	}
	return differs, nil
}

// fields are a report's members as text.
func fields(r *Report) (map[string]string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	m := make(map[string]string, len(raw))
	for k, v := range raw {
		m[k] = string(v)
	}
	return m, nil
}

func short(s string) string {
	if s == "" {
		return "nothing"
	}
	if len(s) > 160 {
		return s[:160] + "…"
	}
	return s
}
