package sglangfake

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// logReceived is the request log's first line.
func (n *Node) logReceived(j *job) {
	n.logRequest(j, "request.received", nil)
}

func (n *Node) logRequest(j *job, event string, out any) {
	if !n.cfg.RequestLog {
		return
	}
	now := n.cfg.Clock.Now()
	line := map[string]any{"timestamp": now.Format(time.RFC3339Nano), "event": event, "rid": j.rid, "obj": map[string]any{
		"rid": j.rid, "stream": j.Stream, "bootstrap_host": j.boot.Host, "bootstrap_port": j.boot.Port, "bootstrap_room": j.boot.Room,
	}}
	if out != nil {
		line["out"] = out
	}
	b, err := json.Marshal(line)
	if err != nil {
		return
	}
	n.logf("[%s] %s", now.Format(time.DateTime), b)
}

// logFinished is the last line of both logs.
func (n *Node) logFinished(j *job, gens []*enginefake.Generation, err error) {
	tokens, finish := 0, any(nil)
	for _, g := range gens {
		tokens += g.Tokens()
		finish = map[string]any{"type": g.Finish}
	}
	if err != nil {
		finish = map[string]any{"type": enginefake.FinishAbort, "message": err.Error()}
	}
	now := n.cfg.Clock.Now()
	n.logRequest(j, "request.finished", map[string]any{"meta_info": map[string]any{
		"id": j.rid, "finish_reason": finish, "prompt_tokens": len(j.prompt), "completion_tokens": tokens,
		"cached_tokens": j.cached, "e2e_latency": now.Sub(j.arrived).Seconds(),
	}})
	if !n.cfg.TimeStats {
		return
	}
	room, all := "None", now.Sub(j.arrived).Seconds()*1000
	if j.boot.Room != nil {
		room = strconv.FormatInt(*j.boot.Room, 10)
	}
	stages := map[Role]string{
		Prefill: fmt.Sprintf("bootstrap_duration=%.2fms, queue_duration=0.00ms, forward_duration=0.00ms, transfer_duration=%.2fms", 0.0, all),
		Decode:  fmt.Sprintf("prepare_duration=0.00ms, bootstrap_duration=%.2fms, queue_duration=0.00ms, forward_duration=%.2fms", 0.0, all),
		Unified: fmt.Sprintf("queue_duration=0.00ms, forward_duration=%.2fms", all),
	}
	n.logf("ReqTimeStats(rid=%s, bootstrap_room=%s, input_len=%d, cached_input_len=%d, output_len=%d, attempts=1, type=%s): %s, entry_time=%.3f",
		j.rid, room, len(j.prompt), j.cached, tokens, n.cfg.Role, stages[n.cfg.Role], float64(j.arrived.UnixMilli())/1000)
}

func (n *Node) logf(format string, args ...any) {
	n.logMu.Lock()
	defer n.logMu.Unlock()
	fmt.Fprintf(n.cfg.Log, format+"\n", args...)
}
