package vllmfake

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/pdgate/pdgate/internal/enginefake"
)

func (n *Node) models(w http.ResponseWriter, _ *http.Request) {
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": n.cfg.Model, "object": "model", "created": n.cfg.Clock.Now().Unix(), "owned_by": "vllm",
		"root": n.cfg.Model, "parent": nil, "max_model_len": n.cfg.ContextTokens, "permission": []any{},
	}}})
}

func (n *Node) tokenize(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var form struct {
		Messages json.RawMessage `json:"messages"`
	}
	_ = json.Unmarshal(body, &form) // ParseRequest judges the body
	q, err := enginefake.ParseRequest(body, len(form.Messages) > 0, n.cfg.Template)
	if err != nil {
		n.fail(w, badRequest(err.Error()))
		return
	}
	tokens := make([]int, len(q.Prompt))
	for i, b := range q.Prompt {
		tokens[i] = int(b)
	}
	enginefake.WriteJSON(w, http.StatusOK, map[string]any{
		"count": len(tokens), "max_model_len": n.cfg.ContextTokens, "tokens": tokens, "token_strs": nil,
	})
}

func (n *Node) version(w http.ResponseWriter, _ *http.Request) {
	enginefake.WriteJSON(w, http.StatusOK, map[string]string{"version": n.cfg.Version})
}

func (n *Node) health(w http.ResponseWriter, _ *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (n *Node) serverLoad(w http.ResponseWriter, _ *http.Request) {
	enginefake.WriteJSON(w, http.StatusOK, map[string]int{"server_load": n.Stats().Running})
}

func (n *Node) metrics(w http.ResponseWriter, _ *http.Request) {
	s := n.Stats()
	n.mu.Lock()
	started := n.started
	n.mu.Unlock()
	var m enginefake.Metrics
	cache := []string{
		"block_size", strconv.Itoa(n.cfg.BlockSize), "cache_dtype", n.cfg.KVDtype, "enable_prefix_caching", "False", "engine", "0",
		// Of several KV groups each has its part: num_gpu_blocks times block_size is
		// not the capacity then.
		"num_gpu_blocks", strconv.Itoa(n.cfg.Blocks / n.cfg.Groups),
	}
	if n.cfg.Build != Old {
		cache = append(cache, "kv_cache_size_tokens", strconv.Itoa(n.cfg.Blocks*n.cfg.BlockSize))
	}
	label := []string{"engine", "0", "model_name", n.cfg.Model}
	used := float64(s.Blocks-s.Free) / float64(s.Blocks)
	usage := "vllm:kv_cache_usage_perc"
	if n.cfg.Build == Old {
		usage = "vllm:gpu_cache_usage_perc"
	}
	m.Add("vllm:cache_config_info", "gauge", 1, cache...)
	m.Add(usage, "gauge", used, label...)
	m.Add("vllm:num_requests_running", "gauge", float64(s.Running), label...)
	m.Add("vllm:num_requests_waiting", "gauge", float64(s.Queued), label...)
	m.Add("vllm:nixl_num_failed_transfers_total", "counter", float64(s.FailedTransfers), label...)
	m.Add("vllm:nixl_num_kv_expired_reqs_total", "counter", float64(s.Expired), label...)
	m.Add("process_start_time_seconds", "gauge", float64(started.UnixMilli())/1000)
	m.Write(w)
}
