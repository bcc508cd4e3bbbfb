package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// schema is a JSON Schema; encoding/json writes its keywords in the order of
// the alphabet, which is stable.
type schema = map[string]any

// side says whose values a schema describes.
type side int

const (
	recorded side = iota // events: what was accepted, in canonical form
	inbound              // what is checked on its way in
	reply                // what may grow members that clients ignore
)

var (
	dataTypes = []events.Data{
		&events.RequestAdmitted{}, &events.RequestRejected{}, &events.RequestPrefilled{}, &events.TransferGranted{},
		&events.RequestTransferred{}, &events.RequestDecoded{}, &events.RequestFailed{}, &events.RequestCancelled{},
		&events.RequestReleased{}, &events.CommandDenied{}, &events.WorkerJoined{}, &events.WorkerLeft{},
		&events.ModelQuarantined{}, &events.ModelRestored{}, &events.TenantErased{}, &events.TenantNotified{}, &events.CanaryRan{}, &events.AuditRead{}, &events.LogTrimmed{},
	}
	commandTypes = []events.CommandData{
		&events.Admit{}, &events.Reject{}, &events.Prefill{}, &events.GrantTransfer{}, &events.Transfer{}, &events.DecodeDone{},
		&events.Fail{}, &events.Cancel{}, &events.Release{}, &events.Register{}, &events.Leave{}, &events.Quarantine{}, &events.Restore{}, &events.Erase{}, &events.Notify{}, &events.Canary{}, &events.Audit{}, &events.Trim{},
	}
	messageTypes = map[string]any{
		"answer": events.Answer{}, "work": events.Work{}, "heartbeat": events.Heartbeat{}, "grant": events.Grant{},
		"signed_grant": events.SignedGrant{}, "prompt_request": events.PromptRequest{},
	}
	queryTypes = map[string][2]any{
		events.QueryGet:     {events.GetQuery{}, events.RequestView{}},
		events.QueryHistory: {events.HistoryQuery{}, events.HistoryView{}},
		events.QueryList:    {events.ListQuery{}, events.ListView{}},
		events.QueryWorkers: {events.WorkersQuery{}, events.WorkersView{}},
		events.QueryInfo:    {events.InfoQuery{}, events.InfoView{}},
	}
)

const timePattern = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$`

// evidence is one item of a canary's: a request id and a receipt.
const evidence = `[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}@[1-9][0-9]*\.(0|[1-9][0-9]*);[A-Za-z0-9_-]{43}`

// kinds are the schemas of package events' is tags.
var kinds = map[string]schema{
	"name":     {"pattern": `^[A-Za-z0-9_:/-]{1,64}$`},
	"model":    {"pattern": `^[A-Za-z0-9_:/-]+(\.[A-Za-z0-9_:/-]+)*$`, "maxLength": 64},
	"request":  {"pattern": `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`},
	"digest":   {"pattern": `^hmac-sha256(-kind)?:[0-9a-f]{64}$`},
	"personal": {"pattern": `^(sha256-salted|hmac-sha256|hmac-sha256-kind):[0-9a-f]{64}$`},
	"keyname":  {"pattern": `^[0-9a-f]{16}$`},
	"kvdigest": {"pattern": `^(kvsum64:[0-9a-f]{16}|hmac-sha256(-kind)?:[0-9a-f]{64})$`},
	"key":      {"pattern": `^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`},
	"hex32":    {"pattern": `^[0-9a-f]{64}$`},
	"address":  {"pattern": `^(tcp://[^/?#@ \t\r\n]+:[0-9]{1,5}|unix:///[^\t\r\n\x00]+)$`, "maxLength": 256},
	"trace":    {"pattern": `^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`},
	"text":     {"pattern": `^[^\x00-\x1f\x7f]+$`, "maxLength": 256},
	"message":  {"maxLength": 2048},
	"part":     {"enum": []string{"prompt", "sampling"}},
	"positive": {"minimum": 1},
	"read":     {"enum": []string{events.ReadExport, events.ReadReceipt, events.ReadEntries}},
	"via":      {"enum": []string{"http", "nats"}},
	"running":  {"enum": []string{events.RunningDrain, events.RunningCancel}},
	"verdict":  {"enum": []string{events.CanaryClean, events.CanaryWrong, events.CanaryForeign, events.CanaryInconclusive}},
	"lengths":  {"pattern": `^[0-9]{1,12}\+[0-9]{1,12}( [0-9]{1,12}\+[0-9]{1,12}){0,63}$`, "maxLength": 4096},
	"evidence": {"pattern": "^" + evidence + "( " + evidence + "){0,7}$"},
	"limit":    {"minimum": 1, "maximum": events.MaxListLimit},
	"status":   {"anyOf": []schema{{"const": 0}, {"minimum": 400, "maximum": 599}}},
	"worker":   {"enum": []events.Role{events.RolePrefill, events.RoleDecode}},
	"runs":     {},
	"optional": {},
}

func jsonSchemas(d docs) (map[string][]byte, error) {
	files := make(map[string][]byte)
	var err error
	put := func(name, title, about string, s schema) {
		s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		s["$id"] = "urn:pdgate:schema:" + name
		s["title"], s["description"] = title, about
		b := new(bytes.Buffer)
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if encodeErr := e.Encode(s); encodeErr != nil && err == nil {
			err = fmt.Errorf("%s: %w", name, encodeErr)
		}
		files[name+".json"] = b.Bytes()
	}
	if len(dataTypes) != len(events.AllTypes()) || len(commandTypes) != len(events.AllCommandTypes()) || len(queryTypes) != len(events.AllQueries()) {
		return nil, fmt.Errorf("a type of package events has no schema")
	}
	for _, data := range dataTypes {
		t := reflect.TypeOf(data).Elem()
		put("events/"+string(data.EventType()), string(data.EventType()), d[t.Name()], eventSchema(d, data))
	}
	for _, data := range commandTypes {
		t := reflect.TypeOf(data).Elem()
		put("commands/"+string(data.CommandType()), "command "+string(data.CommandType()), d[t.Name()], commandSchema(d, data))
	}
	for _, name := range slices.Sorted(maps.Keys(messageTypes)) {
		t := reflect.TypeOf(messageTypes[name])
		put("messages/"+name, strings.ReplaceAll(name, "_", " "), d[t.Name()], object(d, t, inbound))
	}
	for _, name := range events.AllQueries() {
		q, v := reflect.TypeOf(queryTypes[name][0]), reflect.TypeOf(queryTypes[name][1])
		put("queries/"+name, "query "+name, d[q.Name()], object(d, q, inbound))
		put("queries/"+name+".reply", "answer to query "+name, d[v.Name()], object(d, v, reply))
	}
	return files, err
}

func eventSchema(d docs, data events.Data) schema {
	text := func(about string) schema { return schema{"type": "string", "minLength": 1, "description": about} }
	about := func(field string) string { return d["Event."+field] }
	return schema{
		"type": "object",
		"properties": schema{
			"specversion":     schema{"const": "1.0", "description": "Version of CloudEvents"},
			"id":              text(about("ID")),
			"source":          text(about("Source")),
			"type":            schema{"const": data.EventType()},
			"subject":         text(about("Subject")),
			"time":            schema{"type": "string", "pattern": timePattern, "description": "By the writer's clock: evidence, not order"},
			"datacontenttype": schema{"const": "application/json"},
			"command":         text(about("Command")),
			"principal":       text(about("Principal")),
			"prev": schema{"type": "string", "pattern": `^[1-9][0-9]*\.(0|[1-9][0-9]*)$`,
				"description": about("Prev")},
			"tenant":      text("Whose request it is"),
			"tenantseq":   schema{"type": "integer", "minimum": 1, "maximum": uint64(math.MaxUint64), "description": about("TenantSeq")},
			"tenantprev":  text(about("TenantPrev")),
			"traceparent": text(about("Traceparent")),
			"data":        object(d, reflect.TypeOf(data).Elem(), recorded),
		},
		"required":             []string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data"},
		"additionalProperties": false,
	}
}

func commandSchema(d docs, data events.CommandData) schema {
	subject, about := "request", "The request"
	switch data.CommandType() {
	case events.CmdRegister, events.CmdLeave:
		subject, about = "name", "The worker"
	case events.CmdQuarantine, events.CmdRestore:
		subject, about = "model", "The model"
	case events.CmdErase, events.CmdNotify:
		subject, about = "name", "The tenant"
	case events.CmdCanary:
		about = "The run: a UUIDv7 of its own"
	case events.CmdAudit:
		about = "The read: a UUIDv7 of its own"
	case events.CmdTrim:
		subject, about = "name", "The log: "+events.LogStream
	}
	id := schema{"type": "string", "description": about}
	maps.Copy(id, kinds[subject])
	trace := schema{"type": "string", "description": "W3C trace context"}
	maps.Copy(trace, kinds["trace"])
	return schema{
		"type":                 "object",
		"properties":           schema{"request_id": id, "traceparent": trace, "data": object(d, reflect.TypeOf(data).Elem(), inbound)},
		"required":             []string{"request_id", "data"},
		"additionalProperties": false,
	}
}

func object(d docs, t reflect.Type, s side) schema {
	properties, required := schema{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue
		}
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		owner := t.Name()
		if len(f.Index) > 1 {
			owner = t.Field(f.Index[0]).Type.Name()
		}
		v := value(d, f.Type, f.Tag.Get("is"), s, opts != "")
		if about := d[owner+"."+f.Name]; about != "" {
			v["description"] = about
		}
		if owner == "SignedGrant" && f.Name == "Grant" {
			v = object(d, reflect.TypeFor[events.Grant](), s)
		}
		properties[name] = v
		if opts == "" {
			required = append(required, name)
		}
	}
	o := schema{"type": "object", "properties": properties, "required": required}
	if s != reply {
		o["additionalProperties"] = false
	}
	return o
}

func value(d docs, t reflect.Type, kind string, s side, omitted bool) schema {
	var v schema
	switch {
	case t == reflect.TypeFor[time.Time]():
		v = schema{"type": "string", "format": "date-time"}
		if s == recorded {
			v = schema{"type": "string", "pattern": timePattern}
		}
	case t == reflect.TypeFor[events.PageRun]():
		word := schema{"type": "integer", "minimum": 0, "maximum": uint32(math.MaxUint32)}
		count := schema{"type": "integer", "minimum": 1, "maximum": uint32(math.MaxUint32)}
		generation := schema{"type": "integer", "minimum": 0, "maximum": uint64(math.MaxUint64)}
		if kind == "runs" && s == inbound {
			generation["minimum"] = 1
		}
		v = schema{"type": "array", "prefixItems": []schema{word, count, generation}, "items": false, "minItems": 3,
			"description": "[start, count, generation]"}
	case t == reflect.TypeFor[json.RawMessage]():
		v = schema{"type": "object"}
	case t == reflect.TypeFor[[]byte]():
		v = schema{"type": "string", "contentEncoding": "base64"}
	case t.Kind() == reflect.Slice:
		v = schema{"type": "array", "items": value(d, t.Elem(), kind, s, false)}
		if t.Elem() == reflect.TypeFor[events.PageRun]() {
			v["maxItems"] = events.MaxRuns
		}
		return v
	case t.Kind() == reflect.Pointer:
		return object(d, t.Elem(), s)
	case t.Kind() == reflect.Struct:
		return object(d, t, s)
	case t.Kind() == reflect.Bool:
		v = schema{"type": "boolean"}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		v = schema{"type": "integer", "minimum": 0, "maximum": int64(math.MaxInt64)}
	case t.Kind() == reflect.Uint64:
		v = schema{"type": "integer", "minimum": 0, "maximum": uint64(math.MaxUint64)}
	case words(t) != nil:
		v = schema{"enum": words(t)}
		if kind == "optional" {
			v["enum"] = append([]any{""}, words(t)...)
		}
	default:
		v = schema{"type": "string"}
		if s == recorded && omitted {
			v["minLength"] = 1
		}
	}
	if s == inbound && kind != "" {
		k, ok := kinds[kind]
		if !ok {
			panic("kind " + kind + " has no schema")
		}
		maps.Copy(v, k)
	}
	return v
}

func words(t reflect.Type) []any {
	switch t {
	case reflect.TypeFor[events.Type]():
		return list(events.AllTypes())
	case reflect.TypeFor[events.State]():
		return list(events.AllStates())
	case reflect.TypeFor[events.Role]():
		return list(events.AllRoles())
	case reflect.TypeFor[events.Code]():
		return list(events.AllCodes())
	case reflect.TypeFor[events.CommandType]():
		return list(events.AllCommandTypes())
	case reflect.TypeFor[events.FinishReason]():
		return list(events.AllFinishReasons())
	}
	return nil
}

func list[T any](all []T) (out []any) {
	for _, w := range all {
		out = append(out, w)
	}
	return out
}
