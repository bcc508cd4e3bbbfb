// Command pdgate is the lifecycle gate between prefill and decode: every part
// of it, in one process or one part a process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if os.Getenv("GOGC") == "" {
		tuneGC()
	}
	// The first signal asks for a clean stop; with the handler gone, a second one
	// ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
