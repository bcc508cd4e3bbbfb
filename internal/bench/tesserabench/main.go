// Tesserabench adds the lines of a file to a Tessera log on a POSIX file system, and
// waits until a signed checkpoint has all of them. It is what "pdgate bench audit"
// measures the auditor beside, and a module of its own, so that pdgate does not
// depend on Tessera.
//
//	tesserabench LEAVES DIR
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
)

// batch is as many leaves as the auditor commits at once.
const batch = 4096

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: tesserabench LEAVES DIR")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "tesserabench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, leaves, dir string) error {
	f, err := os.Open(leaves)
	if err != nil {
		return err
	}
	defer f.Close()
	key, _, err := note.GenerateKey(rand.Reader, "example.com/log")
	if err != nil {
		return err
	}
	signer, err := note.NewSigner(key)
	if err != nil {
		return err
	}
	start := time.Now()
	driver, err := posix.New(ctx, posix.Config{Path: dir})
	if err != nil {
		return err
	}
	opts := tessera.NewAppendOptions().WithCheckpointSigner(signer).WithBatching(batch, 100*time.Millisecond).
		WithCheckpointInterval(time.Second).WithPushback(8 * batch)
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, opts)
	if err != nil {
		return err
	}
	// Futures are asked in windows of half of what may be under way, so that
	// nothing is pushed back and memory stays bounded.
	var window []tessera.IndexFuture
	settle := func() error {
		for _, future := range window {
			if _, err := future(); err != nil {
				return err
			}
		}
		window = window[:0]
		return nil
	}
	n := 0
	var last tessera.IndexFuture
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		last = appender.Add(ctx, tessera.NewEntry(bytes.Clone(in.Bytes())))
		n++
		if window = append(window, last); len(window) == 4*batch {
			if err := settle(); err != nil {
				return err
			}
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	if last != nil {
		if err := settle(); err != nil {
			return err
		}
		await := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 10*time.Millisecond)
		if _, _, err := await.Await(ctx, last); err != nil {
			return err
		}
	}
	seconds := time.Since(start).Seconds()
	if err := shutdown(ctx); err != nil {
		return err
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"events": n, "seconds": seconds,
		"used": map[string]any{"cpu_ns": u.Utime.Nano() + u.Stime.Nano()},
	})
}
