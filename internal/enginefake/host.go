package enginefake

import (
	"net/http"
	"slices"
	"sync"
)

// Host is the machine of one engine: an HTTP server for clients and one for the
// other nodes, which go up and down together.
type Host struct {
	front, side *Server
	stop, boot  func()

	power    sync.Mutex // held while the host goes up or down
	closed   bool       // under power
	restarts sync.WaitGroup
}

// NewHost starts the servers. stop ends what an engine does besides serving, and
// boot begins another life of it; a restart calls them in this order, with no
// request under way in between.
func NewHost(front, side http.Handler, inject *Injector, stop, boot func()) (*Host, error) {
	h := &Host{stop: stop, boot: boot}
	var err error
	if h.side, err = Serve(side, nil); err != nil {
		return nil, err
	}
	if h.front, err = Serve(front, inject); err != nil {
		h.side.Close()
		return nil, err
	}
	inject.OnRestart(func() {
		h.restarts.Go(func() { _ = h.Restart() }) // a host that does not come back is down, and seen to be
	})
	return h, nil
}

// URL is the address for clients.
func (h *Host) URL() string { return h.front.URL() }

// SideURL is the address for other nodes, SidePort its port.
func (h *Host) SideURL() string { return h.side.URL() }

// SidePort is the port of [Host.SideURL].
func (h *Host) SidePort() int { return h.side.Port() }

// Close ends the host for good.
func (h *Host) Close() {
	h.power.Lock()
	h.closed = true
	h.crash()
	h.power.Unlock()
	h.restarts.Wait()
}

// Crash cuts all connections. Requests get no answer, and nobody can reach the
// host until [Host.Restart].
func (h *Host) Crash() {
	h.power.Lock()
	defer h.power.Unlock()
	h.crash()
}

func (h *Host) crash() {
	h.front.Crash()
	h.side.Crash()
	h.stop()
}

// Cut resets the connections of clients that wait for an answer. The engine goes
// on.
func (h *Host) Cut() { h.front.Cut() }

// Restart brings the host back on the same ports, with an engine that knows
// nothing.
func (h *Host) Restart() error {
	h.power.Lock()
	defer h.power.Unlock()
	if h.closed {
		return nil
	}
	h.crash()
	h.boot()
	if err := h.side.Start(); err != nil {
		return err
	}
	return h.front.Start()
}

// Requests are the requests that clients sent, in order.
func (h *Host) Requests() []Seen { return h.front.Requests() }

// Generations are those of them that asked for a generation.
func (h *Host) Generations() []Seen {
	return slices.DeleteFunc(h.Requests(), func(r Seen) bool { return !generates(r.Path) })
}
