// Command image builds pdgate's container image, and with -nats one of the NATS
// server, and loads them into the local Docker daemon:
//
//	go run ./internal/image [-tag pdgate:local] [-nats nats:local]
//
// They hold a static binary and nothing else, so nothing is pulled. The NATS image
// is for machines that reach no registry, as those of the tests: the server is the
// module that go.mod names, with a probe for its health check.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	tag := flag.String("tag", "pdgate:local", "name of pdgate's image")
	nats := flag.String("nats", "", "name of an image of the NATS server; empty: none is built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := build(ctx, *tag, *nats); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// binary is a program of an image: what is built, and its path there.
type binary struct{ pkg, path string }

func build(ctx context.Context, tag, nats string) error {
	err := image(ctx, tag, []binary{{"./services/pdgate", "pdgate"}}, `FROM scratch
COPY pdgate /pdgate
USER 65532:65532
WORKDIR /data
ENTRYPOINT ["/pdgate"]
`)
	if err != nil || nats == "" {
		return err
	}
	return image(ctx, nats, []binary{{"github.com/nats-io/nats-server/v2", "nats-server"}, {"./internal/image/probe", "probe"}}, `FROM scratch
COPY nats-server probe /
USER 65532:65532
ENTRYPOINT ["/nats-server"]
`)
}

// image builds the programs without cgo, and the image of them.
func image(ctx context.Context, tag string, programs []binary, dockerfile string) error {
	dir, err := os.MkdirTemp("", "pdgate-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var context bytes.Buffer
	t := tar.NewWriter(&context)
	add := func(name string, mode int64, b []byte) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err := t.Write(b)
		return err
	}
	for _, p := range programs {
		out := filepath.Join(dir, p.path)
		fmt.Fprintf(os.Stderr, "image: builds %s\n", p.pkg)
		c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, p.pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.pkg, err)
		}
		b, err := os.ReadFile(out)
		if err == nil {
			err = add(p.path, 0o755, b)
		}
		if err != nil {
			return err
		}
	}
	if err := add("Dockerfile", 0o644, []byte(dockerfile)); err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "docker", "build", "--quiet", "--tag", tag, "-")
	c.Env = append(os.Environ(), "DOCKER_BUILDKIT=0") // the builder of its own wants an image that is pulled
	c.Stdin, c.Stdout = &context, io.Discard
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("docker build %s: %w: %s", tag, err, bytes.TrimSpace(said.Bytes()))
	}
	fmt.Println(tag)
	return nil
}
