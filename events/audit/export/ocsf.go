package export

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/pdgate/pdgate/events"
)

// What OCSF 1.8.0 calls things. A type_uid is class_uid*100 + activity_id.
const (
	ocsfVersion = "1.8.0"

	categoryFindings    = 2
	categoryApplication = 6
	classDataFinding    = 2006 // Data Security Finding
	classAPIActivity    = 6003 // API Activity

	activityCreate = 1
	activityUpdate = 3
	activityDelete = 4

	severityInformational = 1
	severityLow           = 2
	severityMedium        = 3
	severityHigh          = 4

	statusSuccess = 1
	statusFailure = 2
	findingNew    = 1 // status_id of a finding

	analyticRule    = 1
	algorithmSHA256 = 3
)

// ocsfEvent has the attributes of both classes in the order in which they are
// written.
type ocsfEvent struct {
	ActivityID   int           `json:"activity_id"`
	ActivityName string        `json:"activity_name"`
	CategoryUID  int           `json:"category_uid"`
	CategoryName string        `json:"category_name"`
	ClassUID     int           `json:"class_uid"`
	ClassName    string        `json:"class_name"`
	TypeUID      int           `json:"type_uid"`
	TypeName     string        `json:"type_name"`
	SeverityID   int           `json:"severity_id"`
	Severity     string        `json:"severity"`
	StatusID     int           `json:"status_id"`
	Status       string        `json:"status"`
	StatusCode   string        `json:"status_code,omitempty"`
	StatusDetail string        `json:"status_detail,omitempty"`
	Time         int64         `json:"time"` // ms since 1970
	Message      string        `json:"message"`
	Metadata     ocsfMetadata  `json:"metadata"`
	Actor        *ocsfActor    `json:"actor,omitempty"`
	API          *ocsfAPI      `json:"api,omitempty"`
	Src          *ocsfEndpoint `json:"src_endpoint,omitempty"`
	Finding      *ocsfFinding  `json:"finding_info,omitempty"`
	IsAlert      bool          `json:"is_alert,omitempty"`
	Resources    []ocsfObject  `json:"resources,omitempty"`
	Trace        *ocsfObject   `json:"trace,omitempty"`
	RawHash      ocsfDigest    `json:"raw_data_hash"`
	Unmapped     ocsfUnmapped  `json:"unmapped"`
}

// ocsfUnmapped is what OCSF has no attribute for.
type ocsfUnmapped struct {
	Leaf   int64           `json:"leaf"`
	Line   int32           `json:"line"`
	Data   json.RawMessage `json:"data,omitempty"`
	Marker json.RawMessage `json:"marker,omitempty"`
}

type ocsfMetadata struct {
	Version      string      `json:"version"`
	Product      ocsfProduct `json:"product"`
	UID          string      `json:"uid"`
	EventCode    string      `json:"event_code"`
	LogName      string      `json:"log_name"`
	Sequence     uint64      `json:"sequence"`
	Correlation  string      `json:"correlation_uid,omitempty"`
	TenantUID    string      `json:"tenant_uid,omitempty"`
	OriginalTime string      `json:"original_time,omitempty"`
	Profiles     []string    `json:"profiles,omitempty"`
}

type ocsfProduct struct {
	Name   string `json:"name"`
	Vendor string `json:"vendor_name"`
}

type ocsfActor struct {
	AppName string `json:"app_name"`
}

type ocsfAPI struct {
	Operation string        `json:"operation"`
	Service   ocsfName      `json:"service"`
	Request   *ocsfObject   `json:"request,omitempty"`
	Response  *ocsfResponse `json:"response,omitempty"`
}

type ocsfName struct {
	Name string `json:"name"`
}

type ocsfObject struct {
	UID  string `json:"uid"`
	Type string `json:"type,omitempty"`
}

type ocsfResponse struct {
	Code    int64  `json:"code"`
	Error   string `json:"error"`
	Message string `json:"error_message,omitempty"`
}

type ocsfEndpoint struct {
	Service string `json:"svc_name"`
}

type ocsfFinding struct {
	UID      string       `json:"uid"`
	Title    string       `json:"title"`
	Desc     string       `json:"desc,omitempty"`
	Created  int64        `json:"created_time"`
	Analytic ocsfAnalytic `json:"analytic"`
	Types    []string     `json:"types"`
}

type ocsfAnalytic struct {
	Name   string `json:"name"`
	TypeID int    `json:"type_id"`
	Type   string `json:"type"`
}

type ocsfDigest struct {
	AlgorithmID int    `json:"algorithm_id"`
	Algorithm   string `json:"algorithm"`
	Value       string `json:"value"`
}

// ocsfFile writes an OCSF object a line. Epoch leaves are the log's bookkeeping
// for proofs, and nothing that happened: they are the only ones left out.
type ocsfFile struct {
	w    *bufio.Writer
	enc  *json.Encoder
	time int64 // of the event before, for leaves that have none of their own
}

func newOCSF(w *bufio.Writer) *ocsfFile {
	o := &ocsfFile{w: w, enc: json.NewEncoder(w)}
	o.enc.SetEscapeHTML(false)
	return o
}

func (o *ocsfFile) close() error { return nil }

func (o *ocsfFile) abort() { _, _ = o.w.WriteString(brokenLine) }

func (o *ocsfFile) add(e *entry) error {
	if e.Epoch != nil {
		return nil
	}
	r := flatten(e)
	if r.Time != nil {
		o.time = *r.Time / 1000
	}
	sum := sha256.Sum256(e.Raw)
	v := &ocsfEvent{Time: o.time, Message: message(&r),
		Metadata: ocsfMetadata{Version: ocsfVersion, Product: ocsfProduct{"pdgate", "pdgate"}, UID: r.ID, EventCode: r.Type, LogName: events.LogStream,
			Sequence: r.Seq, TenantUID: r.Tenant, OriginalTime: clock(r.Time)},
		RawHash: ocsfDigest{algorithmSHA256, "SHA-256", hex.EncodeToString(sum[:])}}
	if r.ID == "" {
		v.Metadata.UID = text(r.Seq) + "." + text(r.Line)
	}
	if trace, _, ok := traceContext(r.Traceparent); ok {
		v.Trace, v.Metadata.Profiles = &ocsfObject{UID: trace}, []string{"trace"}
	}
	v.Unmapped = ocsfUnmapped{Leaf: r.Leaf, Line: r.Line, Data: dataOf(e.Raw)}
	if e.Leaf.Event == nil {
		v.Unmapped.Data, v.Unmapped.Marker = nil, e.Raw
	}
	if r.Subject != "" {
		kind := "request"
		switch e.Leaf.Event.Type {
		case events.TypeWorkerJoined, events.TypeWorkerLeft:
			kind = "worker"
		case events.TypeModelQuarantined, events.TypeModelRestored:
			kind = "model"
		case events.TypeTenantErased, events.TypeTenantNotified:
			kind = "tenant"
		case events.TypeCanaryRan:
			kind = "canary_run"
		default:
			v.Metadata.Correlation = r.Subject
		}
		v.Resources = []ocsfObject{{UID: r.Subject, Type: kind}}
	}
	if who := cmp.Or(r.Principal, r.Source); who != "" {
		v.Actor, v.Src = &ocsfActor{who}, &ocsfEndpoint{who}
	}
	switch r.Type {
	case string(events.TypeDenied), typeGap, typeForeign:
		v.finding(&r)
	default:
		v.activity(&r)
	}
	v.Severity = severities[v.SeverityID-1]
	return o.enc.Encode(v)
}

// activity makes it an API Activity.
func (v *ocsfEvent) activity(r *row) {
	id, name := activityUpdate, "Update"
	v.SeverityID, v.StatusID = severityInformational, statusSuccess
	switch events.Type(r.Type) {
	case events.TypeAdmitted, events.TypeWorkerJoined:
		id, name = activityCreate, "Create"
	case events.TypeRejected:
		id, name = activityCreate, "Create"
		v.SeverityID, v.StatusID = severityLow, statusFailure
	case events.TypeReleased, events.TypeWorkerLeft, events.TypeTenantErased:
		id, name = activityDelete, "Delete"
	case events.TypeFailed, events.TypeModelQuarantined:
		v.SeverityID, v.StatusID = severityMedium, statusFailure
	case events.TypeCancelled:
		v.StatusID = statusFailure
	case events.TypeCanaryRan:
		switch r.Reason { // the verdict
		case events.CanaryWrong, events.CanaryForeign:
			v.SeverityID, v.StatusID = severityHigh, statusFailure
		case events.CanaryInconclusive:
			v.SeverityID = severityLow
		}
	}
	v.class(id, name, classAPIActivity, "API Activity", categoryApplication, "Application Activity")
	v.Status = "Success"
	if v.StatusID == statusFailure {
		v.Status, v.StatusCode, v.StatusDetail = "Failure", r.Code, r.Message
	}
	v.API = &ocsfAPI{Operation: r.Type, Service: ocsfName{"pdgate"}}
	if r.Command != "" {
		v.API.Request = &ocsfObject{UID: r.Command}
	}
	if r.Code != "" {
		v.API.Response = &ocsfResponse{*r.HTTPStatus, r.Code, r.Message}
	}
	// Both are required of the class, and some leaves name nobody.
	if v.Actor == nil {
		v.Actor, v.Src = &ocsfActor{"pdgate"}, &ocsfEndpoint{"pdgate"}
	}
}

// finding makes it a Data Security Finding.
func (v *ocsfEvent) finding(r *row) {
	v.class(activityCreate, "Create", classDataFinding, "Data Security Finding", categoryFindings, "Findings")
	v.SeverityID, v.StatusID, v.Status, v.StatusCode, v.IsAlert = severityMedium, findingNew, "New", r.Code, true
	if r.Type != string(events.TypeDenied) {
		v.SeverityID = severityHigh
	}
	rule := cmp.Or(r.Code, r.Type)
	v.Finding = &ocsfFinding{UID: v.Metadata.UID, Title: v.Message, Desc: r.Message, Created: v.Time, Analytic: ocsfAnalytic{rule, analyticRule, "Rule"}, Types: []string{rule}}
}

func (v *ocsfEvent) class(activity int, activityName string, class int, name string, category int, categoryName string) {
	v.ActivityID, v.ActivityName, v.ClassUID, v.ClassName, v.CategoryUID, v.CategoryName = activity, activityName, class, name, category, categoryName
	v.TypeUID, v.TypeName = class*100+activity, name+": "+activityName
}

// severities are the names of severity_id, from 1.
var severities = [...]string{"Informational", "Low", "Medium", "High"}

// dataOf cuts the data out of an event's canonical line, in which it is the last
// member and the only one with members of its own. Within a text the quotes of its
// name would be escaped.
func dataOf(line []byte) []byte {
	_, data, _ := bytes.Cut(line, []byte(`,"data":`))
	return bytes.TrimSuffix(data, []byte("}"))
}

// message is a line for people.
func message(r *row) string {
	switch {
	case r.Asked != "":
		return r.Asked + " denied: " + r.Code
	case r.Code != "":
		return r.Type + ": " + r.Code
	case r.ID == "":
		return r.Message
	}
	return r.Type
}
