package preflight

import (
	"encoding/json"
	"strconv"
	"strings"
)

// parseModels reads the effective context out of /v1/models.
func parseModels(body []byte) (Count, error) {
	var v struct {
		Data []struct {
			MaxModelLen *int64 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return Count{}, garbled("/v1/models", err)
	}
	if len(v.Data) == 0 {
		return Count{}, nil
	}
	return known(v.Data[0].MaxModelLen), nil
}

// parseVersion reads vLLM's /version.
func parseVersion(body []byte) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return "", garbled("/version", err)
	}
	return short(v.Version), nil
}

// cacheConfig is the metric in whose labels vLLM describes its cache.
const cacheConfig = "vllm:cache_config_info{"

// parseMetrics adds to f what vLLM's /metrics tells. A fleet member with several
// engines has a line for each: the least of them counts.
func parseMetrics(body []byte, f *Facts) {
	found := false
	for line := range strings.Lines(string(body)) {
		labels, ok := strings.CutPrefix(line, cacheConfig)
		if !ok {
			continue
		}
		l, ok := parseLabels(labels)
		if !ok {
			continue
		}
		page, pool := number(l["block_size"]), number(l["kv_cache_size_tokens"])
		dtype := short(l["cache_dtype"])
		if !found {
			f.PageTokens, f.PoolTokens, f.KVDtype = page, pool, dtype
			found = true
			continue
		}
		f.PoolTokens = least(f.PoolTokens, pool)
		if f.PageTokens != page {
			f.PageTokens = Count{}
		}
		if f.KVDtype != dtype {
			f.KVDtype = ""
		}
	}
	switch {
	case !found:
		f.unknown("pool, page size and KV type: /metrics has no vllm:cache_config_info")
	case !f.PoolTokens.known:
		// The product of blocks and block size is wrong for models with several KV
		// groups, and nothing tells from outside which ones have them.
		f.unknown("the pool: this build does not tell kv_cache_size_tokens, and num_gpu_blocks x block_size is wrong for hybrid models")
	}
}

func number(s string) Count {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return Count{}
	}
	return known(&n)
}

// parseLabels reads the labels of one line of a metric, from behind the brace on.
func parseLabels(s string) (map[string]string, bool) {
	labels := map[string]string{}
	for {
		s = strings.TrimLeft(s, ", ")
		if strings.HasPrefix(s, "}") {
			return labels, true
		}
		name, rest, ok := strings.Cut(s, `="`)
		if !ok || name == "" || len(labels) == 256 {
			return nil, false
		}
		var value strings.Builder
		i := 0
		for ; i < len(rest) && rest[i] != '"'; i++ {
			if rest[i] == '\\' && i+1 < len(rest) {
				i++
			}
			value.WriteByte(rest[i])
		}
		if i == len(rest) {
			return nil, false
		}
		labels[name], s = value.String(), rest[i+1:]
	}
}
