package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// read asks one node what it is. What goes wrong is in the facts.
func read(ctx context.Context, url string, role events.Role, timeout time.Duration) Facts {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := &reader{newHTTP(), strings.TrimRight(url, "/")}
	f, err := r.detect(ctx)
	if err != nil {
		f = Facts{}
		var p *problem
		if !errors.As(err, &p) {
			p = &problem{"it cannot be read", ""}
		}
		f.Problem, f.Fix = p.what, p.fix
	}
	f.Node, f.Role = r.base, role
	return f
}

// detect tries SGLang's endpoint first: vLLM's are a subset of what it has.
func (r *reader) detect(ctx context.Context) (Facts, error) {
	for _, path := range []string{"/server_info", "/get_server_info"} {
		body, status, err := r.get(ctx, path)
		if err != nil {
			return Facts{}, err
		}
		if status != http.StatusOK {
			continue
		}
		model, err := r.models(ctx)
		if err != nil {
			return Facts{}, err
		}
		if f, is, err := parseSGLang(body, model); is || err != nil {
			return f, err
		}
		break
	}
	body, status, err := r.get(ctx, "/version")
	if err != nil {
		return Facts{}, err
	}
	if status != http.StatusOK {
		return Facts{}, &problem{"neither SGLang's /server_info nor vLLM's /version is there", "give the address of an engine's HTTP port"}
	}
	return r.vllm(ctx, body)
}

func (r *reader) vllm(ctx context.Context, body []byte) (Facts, error) {
	version, err := parseVersion(body)
	if err != nil {
		return Facts{}, err
	}
	if version == "" {
		return Facts{}, &problem{"/version tells no version: this is neither vLLM nor SGLang", "give the address of an engine's HTTP port"}
	}
	f := Facts{Engine: engineVLLM, Version: version}
	if f.Context, err = r.models(ctx); err != nil {
		return Facts{}, err
	}
	if !f.Context.known {
		f.unknown("the context window: /v1/models tells no max_model_len")
	}
	metrics, status, err := r.get(ctx, "/metrics")
	if err != nil {
		return Facts{}, err
	}
	if status != http.StatusOK {
		f.unknown("pool, page size and KV type: /metrics is not there")
	} else {
		parseMetrics(metrics, &f)
	}
	f.LongestInput = least(f.Context, f.PoolTokens)
	return f, nil
}

// models is the effective context; unknown where the endpoint is not there.
func (r *reader) models(ctx context.Context) (Count, error) {
	body, status, err := r.get(ctx, "/v1/models")
	if err != nil || status != http.StatusOK {
		return Count{}, err
	}
	return parseModels(body)
}

func asType(err error, to **json.UnmarshalTypeError) bool { return errors.As(err, to) }

// kindOf is JSON's name of a value's kind. The decoder appends a number's text.
func kindOf(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}
