package enginefake

import (
	"net/http"
)

// Injector bends what a server does. Nil bends nothing.
type Injector struct{}

func (i *Injector) serve(h http.Handler, w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }
