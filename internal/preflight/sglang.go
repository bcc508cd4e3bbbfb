package preflight

import (
	"encoding/json"
	"fmt"
)

// serverInfo is what is kept of SGLang's /server_info. Every field is optional.
type serverInfo struct {
	Version       string  `json:"version"`
	Mode          *string `json:"disaggregation_mode"`
	ContextLength *int64  `json:"context_length"` // null unless it was set
	PageSize      *int64  `json:"page_size"`
	TP            *int64  `json:"tp_size"`
	DP            *int64  `json:"dp_size"`
	KVCacheDtype  string  `json:"kv_cache_dtype"`
	AutoTruncate  bool    `json:"allow_auto_truncate"`
	MaxTokens     *int64  `json:"max_total_num_tokens"` // of rank 0
	MaxReqInput   *int64  `json:"max_req_input_len"`
	States        []struct {
		Memory struct {
			Capacity *int64 `json:"token_capacity"`
		} `json:"memory_usage"`
	} `json:"internal_states"`
}

// isSGLang says whether the answer is SGLang's: other engines have a
// /server_info too.
func (s *serverInfo) isSGLang() bool {
	return s.Mode != nil || s.MaxTokens != nil || s.MaxReqInput != nil || len(s.States) > 0
}

// sglangReserve is what SGLang keeps back of its longest request for an input.
const sglangReserve = 5

// sglangLongest is the longest input that SGLang accepts: max_req_len is
// min(context-1, pool-1), max_req_input_len is 5 less, and an input as long as
// that is rejected.
func sglangLongest(context, pool Count) Count {
	least := least(context, pool)
	if !least.known {
		return Count{}
	}
	return count(max(0, least.n-1-sglangReserve-1))
}

// parseSGLang reads a /server_info. model is the effective context by
// /v1/models, which counts above what the answer says itself.
func parseSGLang(body []byte, model Count) (Facts, bool, error) {
	var s serverInfo
	if err := json.Unmarshal(body, &s); err != nil {
		return Facts{}, false, garbled("/server_info", err)
	}
	if !s.isSGLang() {
		return Facts{}, false, nil
	}
	f := Facts{Engine: engineSGLang, Version: short(s.Version), KVDtype: short(s.KVCacheDtype), Truncates: s.AutoTruncate}
	if s.Mode != nil {
		f.Mode = short(*s.Mode)
	}
	f.PageTokens, f.TP, f.DP = known(s.PageSize), known(s.TP), known(s.DP)
	if f.Context = model; !f.Context.known {
		f.Context = known(s.ContextLength)
	}
	if !f.Context.known {
		f.unknown("the context window: /v1/models tells no max_model_len, and context_length is not set")
	}
	f.PoolTokens = s.pool(&f)
	f.LongestInput = sglangLongest(f.Context, f.PoolTokens)
	if told := known(s.MaxReqInput); told.known {
		told.n = max(0, told.n-1) // an input as long as that is rejected
		if f.LongestInput = least(f.LongestInput, told); !f.LongestInput.known {
			f.LongestInput = told
		}
	}
	return f, true, nil
}

// pool is the capacity for one request, which never spans data parallel ranks.
func (s *serverInfo) pool(f *Facts) Count {
	var pool Count
	for _, rank := range s.States {
		c := known(rank.Memory.Capacity)
		if !c.known {
			pool = Count{}
			break
		}
		if !pool.known || c.n < pool.n {
			pool = c
		}
	}
	switch {
	case pool.known:
	case f.DP.known && f.DP.n > 1:
		f.unknown("the pool: max_total_num_tokens is that of rank 0, and the other ranks tell none")
	default:
		if pool = known(s.MaxTokens); !pool.known {
			f.unknown("the pool: neither token_capacity nor max_total_num_tokens is told")
		}
	}
	return pool
}

// known is a count that is there, and can be one.
func known(n *int64) Count {
	if n == nil || *n < 1 || *n > maxCount {
		return Count{}
	}
	return count(*n)
}

// short bounds a word that a node tells, and lets through what names are made of.
func short(s string) string {
	if len(s) > 64 {
		return "?"
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return "?"
		}
	}
	return s
}

// garbled names the field at fault, and nothing of what it held.
func garbled(path string, err error) error {
	what := path + " is not the JSON that it should be"
	if wrong := (*json.UnmarshalTypeError)(nil); asType(err, &wrong) && wrong.Field != "" {
		what = fmt.Sprintf("%s: field %s is a %s", path, short(wrong.Field), kindOf(wrong.Value))
	}
	return &problem{what, "is this an engine's HTTP port, of a version that preflight knows?"}
}
