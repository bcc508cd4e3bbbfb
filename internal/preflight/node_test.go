package preflight

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// engineNode is an engine's HTTP port as preflight sees it: paths and bodies.
type engineNode map[string]string

func (n engineNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := n[r.URL.Path]
	if !ok || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(body))
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// sglang is one node of SGLang; the change may bend what it says.
func sglang(t *testing.T, mode string, pool, window int, change func(info map[string]any)) engineNode {
	t.Helper()
	info := map[string]any{
		"version": "0.5.22", "disaggregation_mode": mode, "context_length": nil, "page_size": 64, "tp_size": 8, "dp_size": 1,
		"kv_cache_dtype": "auto", "allow_auto_truncate": false, "max_total_num_tokens": pool,
		"max_req_input_len": min(window-1, pool-1) - 5, "internal_states": []any{map[string]any{"memory_usage": map[string]any{"token_capacity": pool}}},
		"api_key": secret, "model_path": "/models/" + secret, "admin_api_key": secret,
	}
	if change != nil {
		change(info)
	}
	b, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	return engineNode{"/server_info": string(b), "/v1/models": fmt.Sprintf(`{"object":"list","data":[{"id":"m","max_model_len":%d}]}`, window)}
}

// secret stands in what an engine dumps, and in no report.
const secret = "sk-nobody-should-read-this"

// vllm is one node of vLLM. pool 0: a build that does not tell it.
func vllm(pool, window int, version, dtype string) engineNode {
	label := ""
	if pool > 0 {
		label = fmt.Sprintf(`,kv_cache_size_tokens="%d"`, pool)
	}
	return engineNode{
		"/version":   fmt.Sprintf(`{"version":%q}`, version),
		"/v1/models": fmt.Sprintf(`{"data":[{"id":"m","max_model_len":%d}]}`, window),
		"/metrics": "# HELP vllm:cache_config_info\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\n" +
			fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",cache_dtype=%q,num_gpu_blocks=\"320\",engine=\"0\"%s} 1.0\n", dtype, label),
	}
}
