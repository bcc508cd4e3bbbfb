package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// getJSON asks one question. A node's own words about an error are left out:
// nothing was sent that they could be about.
func getJSON(ctx context.Context, n *remote.Node, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	b, err := n.Get(ctx, path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if json.Unmarshal(b, v) != nil {
		return fmt.Errorf("%w: %s does not answer with JSON of the expected form", errFacts, path)
	}
	return nil
}

// probeVLLM reads a vLLM node.
func probeVLLM(ctx context.Context, n *remote.Node) (f Facts, err error) {
	if f.Model, f.ContextTokens, err = modelsOf(ctx, n); err != nil {
		return f, err
	}
	var version struct {
		Version string `json:"version"`
	}
	if err := getJSON(ctx, n, "/version", &version); err != nil {
		return f, err
	}
	f.Version = version.Version
	page, err := metricsOf(ctx, n)
	if err != nil {
		return f, err
	}
	const cache = "vllm:cache_config_info"
	for i, s := range remote.Metrics(page, cache)[cache] {
		// The label counts tokens; blocks times block size does so only where the model
		// has one kind of attention, and nothing here says whether it has.
		tokens := number(s.Labels["kv_cache_size_tokens"])
		if i == 0 || tokens < f.PoolTokens {
			f.PoolTokens = tokens // a request lives on one data-parallel rank
		}
		f.PageTokens = number(s.Labels["block_size"])
		f.Dtype = dtypeName(s.Labels["cache_dtype"])
	}
	return f, nil
}

// number is a label's positive integer; 0: it is none.
func number(s string) int {
	var n int
	if json.Unmarshal([]byte(s), &n) != nil || n < 0 {
		return 0
	}
	return n
}

// metricsOf reads the metrics page; nil where the node has none.
func metricsOf(ctx context.Context, n *remote.Node) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	b, err := n.Get(ctx, "/metrics")
	if s, ok := errors.AsType[*remote.Status](err); ok && s.Code == 404 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	return b, nil
}

// probeSGLang reads an SGLang node. Of /server_info, which lists every argument
// of the server, only the fields below are taken.
func probeSGLang(ctx context.Context, n *remote.Node) (f Facts, err error) {
	var v struct {
		ContextLength *int   `json:"context_length"`
		PageSize      int    `json:"page_size"`
		Mode          string `json:"disaggregation_mode"`
		Bootstrap     int    `json:"disaggregation_bootstrap_port"`
		Dtype         string `json:"kv_cache_dtype"`
		MaxTotal      int    `json:"max_total_num_tokens"`
		MaxInput      int    `json:"max_req_input_len"`
		Version       string `json:"version"`
		Internal      []struct {
			Memory struct {
				Tokens int `json:"token_capacity"`
			} `json:"memory_usage"`
		} `json:"internal_states"`
	}
	err = getJSON(ctx, n, "/server_info", &v)
	if s, ok := errors.AsType[*remote.Status](err); ok && s.Code == 404 {
		err = getJSON(ctx, n, "/get_server_info", &v)
	}
	if err != nil {
		return f, err
	}
	if f.Model, f.ContextTokens, err = modelsOf(ctx, n); err != nil {
		return f, err
	}
	if f.ContextTokens == 0 && v.ContextLength != nil {
		f.ContextTokens = *v.ContextLength
	}
	f.Version, f.PageTokens, f.Dtype, f.Mode, f.BootstrapPort = v.Version, v.PageSize, dtypeName(v.Dtype), v.Mode, v.Bootstrap
	f.PoolTokens = v.MaxTotal
	for _, s := range v.Internal { // one rank each; a request lives on one
		if t := s.Memory.Tokens; t > 0 && (f.PoolTokens == 0 || t < f.PoolTokens) {
			f.PoolTokens = t
		}
	}
	// The longest prompt is one less than max_req_input_len, which is itself
	// min(context, pool) less six.
	if f.ContextTokens > 0 && f.PoolTokens > 0 {
		f.MaxInputTokens = min(f.ContextTokens, f.PoolTokens) - 1 - 5 - 1
	}
	if v.MaxInput > 0 && (f.MaxInputTokens == 0 || v.MaxInput-1 < f.MaxInputTokens) {
		f.MaxInputTokens = v.MaxInput - 1
	}
	return f, nil
}
