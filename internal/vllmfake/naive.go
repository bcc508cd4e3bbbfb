package vllmfake

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Naive is a proxy as the public examples write it: prefill, then decode with
// what prefill returned. It keeps no state and checks nothing; its switches are
// the mistakes that the reports name. Only tests run it.
type Naive struct {
	Prefill, Decode string // base URLs

	RetryDecode   bool // a decode leg that broke is sent again with the same reference
	Mangle        bool // block ids are changed on their way
	PassParams    bool // a client's own kv_transfer_params go to decode, without a prefill
	ClientID      bool // the client's X-Request-Id is the request's
	SkipPrefill   bool // a prefill that is required is left out
	IgnorePrefill bool // decode is called whatever prefill said
	Detach        bool // a client that has left stops nothing
}

// ServeHTTP implements [http.Handler].
func (p *Naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	if p.Detach {
		ctx = context.WithoutCancel(ctx)
	}
	header := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {token(16)}}
	if p.ClientID {
		header["X-Request-Id"] = r.Header["X-Request-Id"]
	}
	if reference := body["kv_transfer_params"]; reference == nil || !p.PassParams {
		body["kv_transfer_params"] = json.RawMessage("null")
		if !p.SkipPrefill {
			status, answer, err := p.post(ctx, p.Prefill+r.URL.Path, header, prefillBody(body))
			if (err != nil || status != http.StatusOK) && !p.IgnorePrefill {
				enginefake.Relay(w, status, answer)
				return
			}
			var got struct {
				Params json.RawMessage `json:"kv_transfer_params"`
			}
			_ = json.Unmarshal(answer, &got) // no reference: decode gets null, and fails open
			if got.Params != nil {
				body["kv_transfer_params"] = got.Params
			}
		}
	}
	if p.Mangle {
		body["kv_transfer_params"] = bytes.Replace(body["kv_transfer_params"], []byte(`"remote_block_ids":[[`), []byte(`"remote_block_ids":[[7000000`), 1)
	}
	p.decode(ctx, w, r.URL.Path, header, body)
}

// prefillBody is the body of the first leg.
func prefillBody(body map[string]json.RawMessage) map[string]json.RawMessage {
	b := maps.Clone(body)
	for _, k := range []string{"stream_options", "min_tokens", "min_completion_tokens"} {
		delete(b, k)
	}
	b["stream"], b["max_tokens"] = json.RawMessage("false"), json.RawMessage("1")
	if b["max_completion_tokens"] != nil {
		b["max_completion_tokens"] = json.RawMessage("1")
	}
	b["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	return b
}

func (p *Naive) decode(ctx context.Context, w http.ResponseWriter, path string, header http.Header, body any) {
	for try := 0; ; try++ {
		res, err := p.send(ctx, p.Decode+path, header, body)
		if err != nil {
			if p.RetryDecode && try == 0 {
				continue
			}
			enginefake.Relay(w, http.StatusBadGateway, nil)
			return
		}
		enginefake.RelayStream(w, res)
		return
	}
}

func (p *Naive) send(ctx context.Context, url string, header http.Header, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header = header
	return enginefake.Client.Do(req)
}

func (p *Naive) post(ctx context.Context, url string, header http.Header, body any) (int, []byte, error) {
	res, err := p.send(ctx, url, header, body)
	if err != nil {
		return http.StatusBadGateway, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, b, err
}
