package audit

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Filter says which leaves a bundle shows. The zero Filter shows all of them.
// Gaps and foreign messages pass every filter: they say that something is amiss,
// and nothing of anybody.
type Filter struct {
	Tenant  string    `json:"tenant,omitempty"`
	Request string    `json:"request,omitempty"`
	Model   string    `json:"model,omitempty"` // of the event, or of the request that it is about
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"` // exclusive
}

// IsZero says whether the filter shows everything.
func (f Filter) IsZero() bool { return f == Filter{} }

// onlyTenant says whether what the filter shows of a tenant is all of the tenant.
func (f Filter) onlyTenant() bool { return f.Tenant != "" && f == Filter{Tenant: f.Tenant} }

// Excludes says whether the leaf cannot be what the filter shows. Most events do
// not name their request's model: Model excludes those that name another one.
func (f Filter) Excludes(l *Leaf) bool {
	switch {
	case l.Gap != nil || l.Foreign != nil:
		return false
	case l.Epoch != nil:
		return !f.IsZero() && f != Filter{Tenant: l.Epoch.Tenant}
	}
	e := l.Event
	model := ModelOf(e.Data)
	return f.Tenant != "" && e.Tenant != f.Tenant ||
		f.Request != "" && e.Subject != f.Request ||
		f.Model != "" && model != "" && model != f.Model ||
		!f.Since.IsZero() && e.Time.Before(f.Since) ||
		!f.Until.IsZero() && !e.Time.Before(f.Until)
}

// ModelOf is the model that an event names, or "".
func ModelOf(d events.Data) string {
	switch d := d.(type) {
	case *events.RequestAdmitted:
		return d.Model
	case *events.RequestRejected:
		return d.Model
	case *events.WorkerJoined:
		return d.Model
	case *events.ModelQuarantined:
		return d.Model
	case *events.ModelRestored:
		return d.Model
	case *events.CanaryRan:
		return d.Model
	}
	return ""
}
