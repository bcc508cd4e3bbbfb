package sglangfake

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// serverInfo has, as the engine's has, arguments that nobody should keep.
func (n *Node) serverInfo(w http.ResponseWriter, _ *http.Request) {
	var states []any
	for _, t := range n.cfg.RankTokens {
		states = append(states, map[string]any{"memory_usage": map[string]any{"token_capacity": t, "weight": 1.5, "kvcache": 2.5}})
	}
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{
		"model_path": n.cfg.Model, "served_model_name": n.cfg.Model, "api_key": n.cfg.APIKey, "version": n.cfg.Version,
		"context_length": n.cfg.ContextTokens, "page_size": n.cfg.PageSize, "tp_size": n.cfg.TP, "dp_size": len(n.cfg.RankTokens),
		"disaggregation_mode": string(n.cfg.Role), "disaggregation_transfer_backend": "nixl",
		"disaggregation_bootstrap_port": n.BootstrapPort(), "kv_cache_dtype": n.cfg.KVDtype,
		"allow_auto_truncate": n.cfg.AutoTruncate, "max_total_num_tokens": n.cfg.RankTokens[0],
		"max_req_input_len": n.cfg.maxInput(0), "internal_states": states,
	})
}

func (n *Node) models(w http.ResponseWriter, _ *http.Request) {
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": n.cfg.Model, "object": "model", "created": n.cfg.Clock.Now().Unix(), "owned_by": "sglang",
		"root": n.cfg.Model, "parent": nil, "max_model_len": n.cfg.ContextTokens,
	}}})
}

// loads is /v1/loads. Without include it has the core alone.
func (n *Node) loads(w http.ResponseWriter, r *http.Request) {
	include := strings.Split(r.URL.Query().Get("include"), ",")
	all := slices.Contains(include, "all")
	s := n.Stats()
	n.mu.Lock()
	pools := n.pools
	n.mu.Unlock()
	var loads []any
	for rank, p := range pools {
		l := map[string]any{
			"dp_rank": rank, "num_running_reqs": s.Running, "num_waiting_reqs": s.Waiting,
			"num_used_tokens":      (p.Blocks() - p.Free()) * n.cfg.PageSize,
			"max_total_num_tokens": n.cfg.RankTokens[rank],
		}
		if all || slices.Contains(include, "disagg") {
			l["disaggregation"] = map[string]any{
				"mode": string(n.cfg.Role), "prefill_inflight_queue_reqs": s.Writers, "decode_transfer_queue_reqs": s.Transferring,
				"decode_prealloc_queue_reqs": s.Waiting,
			}
		}
		if all || slices.Contains(include, "queues") {
			l["queues"] = map[string]any{"waiting": s.Waiting}
		}
		loads = append(loads, l)
	}
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{"version": n.cfg.Version, "dp_rank_count": len(loads), "loads": loads})
}

func (n *Node) health(w http.ResponseWriter, _ *http.Request) {
	if n.Stats().Frozen {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (n *Node) metrics(w http.ResponseWriter, _ *http.Request) {
	s := n.Stats()
	engine := string(n.cfg.Role)
	if n.cfg.Role == Unified {
		engine = "unified"
	}
	label := []string{"engine_type", engine, "model_name", n.cfg.Model}
	var m enginefake.Metrics
	for rank, t := range n.cfg.RankTokens {
		m.Add("sglang:max_total_num_tokens", "gauge", float64(t), append(label, "dp_rank", strconv.Itoa(rank))...)
	}
	m.Add("sglang:context_len", "gauge", float64(n.cfg.ContextTokens), label...)
	m.Add("sglang:page_size", "gauge", float64(n.cfg.PageSize), label...)
	m.Add("sglang:num_running_reqs", "gauge", float64(s.Running), label...)
	m.Add("sglang:num_queue_reqs", "gauge", float64(s.Waiting), label...)
	m.Add("sglang:token_usage", "gauge", float64(s.Held)/float64(s.Pages), label...)
	m.Add("sglang:num_transfer_failed_reqs_total", "counter", float64(s.FailedTransfers), label...)
	m.Add("sglang:num_aborted_requests_total", "counter", float64(s.Aborted), label...)
	m.Write(w)
}

// tokenize takes a prompt, and messages where the build does.
func (n *Node) tokenize(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var q struct {
		Prompt   json.RawMessage `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
	}
	var prompt []byte
	err = json.Unmarshal(body, &q)
	switch {
	case err != nil:
	case len(q.Messages) > 0 && n.cfg.TokenizeChat:
		var chat *enginefake.Request
		if chat, err = enginefake.ParseRequest(body, true, n.cfg.Template); err == nil {
			prompt = chat.Prompt
		}
	default:
		prompt, err = enginefake.Prompt(q.Prompt)
	}
	if err != nil {
		enginefake.WriteJSON(w, http.StatusBadRequest, map[string]any{"object": "error", "message": err.Error(), "type": "BadRequest", "param": nil, "code": 400})
		return
	}
	ids := make([]int, len(prompt))
	for i, b := range prompt {
		ids[i] = int(b)
	}
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": n.cfg.ContextTokens})
}
