package export

import "slices"

// OTLP's JSON form, as far as it is written: ids in hex, 64-bit numbers as text.
// github.com/open-telemetry/opentelemetry-proto, docs/specification.md#json-protobuf-encoding.

type otlpTraces struct {
	Resources [1]otlpResource `json:"resourceSpans"`
}

type otlpResource struct {
	Resource otlpAttributes `json:"resource"`
	Scopes   [1]otlpScope   `json:"scopeSpans"`
}

type otlpScope struct {
	Scope struct {
		Name string `json:"name"`
	} `json:"scope"`
	Spans []*otlpSpan `json:"spans"`
}

type otlpSpan struct {
	TraceID  string `json:"traceId"`
	SpanID   string `json:"spanId"`
	ParentID string `json:"parentSpanId,omitempty"`
	Name     string `json:"name"`
	Kind     int    `json:"kind"`
	Start    int64  `json:"startTimeUnixNano,string"`
	End      int64  `json:"endTimeUnixNano,string"`
	otlpAttributes
	Events  []otlpEvent `json:"events,omitempty"`
	Dropped uint32      `json:"droppedEventsCount,omitempty"`
	Status  otlpStatus  `json:"status"`
}

type otlpEvent struct {
	Time int64  `json:"timeUnixNano,string"`
	Name string `json:"name"`
	otlpAttributes
}

type otlpStatus struct {
	Message string `json:"message,omitempty"`
	Code    int    `json:"code,omitempty"`
}

// Values of kind and of the status's code.
const (
	kindInternal = 1
	kindServer   = 2
	codeOK       = 1
	codeError    = 2
)

type otlpAttributes struct {
	Attributes []otlpAttribute `json:"attributes,omitempty"`
}

type otlpAttribute struct {
	Key   string    `json:"key"`
	Value otlpValue `json:"value"`
}

// otlpValue has one member.
type otlpValue struct {
	Text  *string    `json:"stringValue,omitempty"`
	Int   *int64     `json:"intValue,omitempty,string"`
	Bool  bool       `json:"boolValue,omitempty"`
	Array *otlpArray `json:"arrayValue,omitempty"`
}

type otlpArray struct {
	Values []otlpValue `json:"values"`
}

// set replaces an attribute, or adds it.
func (a *otlpAttributes) set(key string, v otlpValue) {
	if i := slices.IndexFunc(a.Attributes, func(x otlpAttribute) bool { return x.Key == key }); i >= 0 {
		a.Attributes[i].Value = v
		return
	}
	a.Attributes = append(a.Attributes, otlpAttribute{key, v})
}

// text sets a text that is there.
func (a *otlpAttributes) text(key, v string) {
	if v != "" {
		a.set(key, otlpValue{Text: &v})
	}
}

// number sets a number that is there.
func (a *otlpAttributes) number(key string, n *int64) {
	if n != nil {
		a.set(key, otlpValue{Int: n})
	}
}

func (a *otlpAttributes) mark(key string) { a.set(key, otlpValue{Bool: true}) }
