package handoff

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// BenchmarkPull moves one request's KV, in turn with its ceiling: a plain copy
// of as many bytes from one memory to another over the same kind of socket, in
// chunks and with a socket buffer as large. x_plain is the share of the ceiling that is left after
// gather, sums on both sides, checks and signatures; x_cpu the same by processor
// time of both sides, which other load disturbs less.
func BenchmarkPull(b *testing.B) {
	for _, network := range []string{"tcp", "unix"} {
		for _, size := range []struct{ page, bytes int }{
			{64 << 10, 64 << 10}, {64 << 10, 4 << 20}, {64 << 10, 64 << 20}, {2 << 20, 4 << 20}, {2 << 20, 64 << 20},
		} {
			b.Run(fmt.Sprintf("%s/page=%dKiB/KV=%dKiB", network, size.page>>10, size.bytes>>10), func(b *testing.B) {
				pages := size.bytes / size.page
				r := newRig(b, network, pages, size.page, unobserved)
				o, kv := r.offer(requestID(1), pages)
				into := r.reserve(o.RequestID, pages)
				plain := plainCopy(b, network, kv)
				plain() // the first touch of the memory
				b.SetBytes(int64(len(kv)))
				var pulls, copies usage
				epoch := 0
				for b.Loop() {
					epoch++
					job := Pull{RequestID: o.RequestID, Grant: r.sign(r.grant(o, epoch)), Key: kvKey, Into: into}
					pulls.add(func() {
						if _, err := r.puller.Pull(context.Background(), job); err != nil {
							b.Fatal(err)
						}
					})
					b.StopTimer()
					copies.add(plain)
					b.StartTimer()
				}
				b.ReportMetric(float64(len(kv))*float64(epoch)/copies.wall.Seconds()/1e6, "plain_MB/s")
				b.ReportMetric(copies.wall.Seconds()/pulls.wall.Seconds(), "x_plain")
				b.ReportMetric(copies.cpu.Seconds()/pulls.cpu.Seconds(), "x_cpu")
				<-r.ownerPool.Free(o.Alloc)
			})
		}
	}
}

func unobserved(c *Config, _ *PullerConfig) { c.Observe = nil }

// usage is time spent.
type usage struct{ wall, cpu time.Duration }

func (u *usage) add(f func()) {
	start, cpu := time.Now(), processorTime()
	f()
	u.wall += time.Since(start)
	u.cpu += processorTime() - cpu
}

// processorTime is what the process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // does not fail for oneself
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// plainCopy serves kv to whoever connects, and returns one copy of it.
func plainCopy(b *testing.B, network string, kv []byte) func() {
	b.Helper()
	l, err := Listen((&rig{t: b, network: network}).listenAddress("plain"))
	if err != nil {
		b.Fatal(err)
	}
	cert, err := certificate(testKey("p1"))
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if u, ok := c.(*net.UnixConn); ok {
				_ = u.SetWriteBuffer(socketBuffer)
			}
			if network == "tcp" {
				c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
			}
			for rest := kv; err == nil && len(rest) > 0; {
				n := min(len(rest), DefaultChunkBytes)
				_, err = c.Write(rest[:n])
				rest = rest[n:]
			}
			_ = c.Close()
		}
	}()
	b.Cleanup(func() { _ = l.Close(); <-served })
	into := make([]byte, len(kv))
	return func() {
		kind, at, err := splitAddress(l.Address())
		if err != nil {
			b.Fatal(err)
		}
		c, err := net.Dial(kind, at)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		if network == "tcp" {
			c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		}
		if _, err := io.ReadFull(c, into); err != nil {
			b.Fatal(err)
		}
	}
}
