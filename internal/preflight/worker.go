package preflight

import "github.com/pdgate/pdgate/events"

// OfWorker is what a worker of pdgate's own registered. Prefill takes what its
// engine and its pool allow. Decode of our own engines never judges a prompt, its
// pool does; an external engine's node does, and keeps a few tokens back as
// prefill's does.
func OfWorker(w *events.WorkerJoined) Facts {
	f := Facts{
		Node: w.Worker, Role: w.Role, Engine: w.Engine, Version: w.Version, Mode: string(w.Role), KVDtype: w.Layout,
		PoolTokens: count(int64(w.PoolTokens())), Context: count(int64(w.ContextTokens)), PageTokens: count(int64(w.PageTokens)),
	}
	f.LongestInput = least(f.Context, f.PoolTokens)
	if (w.Role == events.RolePrefill || events.External(w.Layout)) && w.MaxInputTokens > 0 {
		f.LongestInput = least(f.LongestInput, count(int64(w.MaxInputTokens)))
	}
	return f
}
