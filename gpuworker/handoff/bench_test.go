package handoff

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkPull moves 64 MB of KV, beside its ceiling in the same run: a plain
// copy of as many bytes, in as large chunks, over the same kind of socket.
// x_plain is the share of the ceiling that is left after gather, sums on both
// sides, checks and scatter.
func BenchmarkPull(b *testing.B) {
	const pages, pageBytes = 5461, 12288
	for _, network := range []string{"tcp", "unix"} {
		b.Run(network, func(b *testing.B) {
			r := newRig(b, network, pages, pageBytes)
			r.results = make(chan Result, 1<<20)
			o, kv := r.offer(requestID(1), pages)
			into := r.reserve(o.RequestID, pages)
			plain := plainCopy(b, network, kv)
			b.SetBytes(int64(len(kv)))
			epoch := 0
			for b.Loop() {
				epoch++
				if _, err := r.puller.Pull(context.Background(), Pull{RequestID: o.RequestID, Grant: r.sign(r.grant(o, epoch)), Key: kvKey, Into: into}); err != nil {
					b.Fatal(err)
				}
			}
			rate := float64(len(kv)) / (b.Elapsed().Seconds() / float64(b.N))
			b.ReportMetric(plain/1e6, "plain_MB/s")
			b.ReportMetric(rate/plain, "x_plain")
			<-r.ownerPool.Free(o.Alloc)
		})
	}
}

// plainCopy is the best rate of three copies, in bytes a second.
func plainCopy(b *testing.B, network string, kv []byte) float64 {
	b.Helper()
	best := 0.0
	for range 3 {
		l, err := Listen((&rig{t: b, network: network}).listenAddress("plain"))
		if err != nil {
			b.Fatal(err)
		}
		cert, err := certificate(testKey("p1"))
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil && network == "tcp" {
				c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
			}
			for rest := kv; err == nil && len(rest) > 0; {
				n := min(len(rest), DefaultChunkBytes)
				_, err = c.Write(rest[:n])
				rest = rest[n:]
			}
			done <- err
		}()
		kind, at, err := splitAddress(l.Address())
		if err != nil {
			b.Fatal(err)
		}
		c, err := net.Dial(kind, at)
		if err != nil {
			b.Fatal(err)
		}
		if network == "tcp" {
			c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		}
		buf := make([]byte, DefaultChunkBytes)
		start := time.Now()
		for got := 0; got < len(kv); {
			n, err := io.ReadFull(c, buf[:min(len(buf), len(kv)-got)])
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
		best = max(best, float64(len(kv))/time.Since(start).Seconds())
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		_, _ = c.Close(), l.Close()
	}
	return best
}

// BenchmarkSmallPull is what a short prompt pays: connection, proofs, one page.
func BenchmarkSmallPull(b *testing.B) {
	for _, network := range []string{"tcp", "unix"} {
		b.Run(network, func(b *testing.B) {
			r := newRig(b, network, 4, 12288)
			r.results = make(chan Result, 1<<20)
			o, _ := r.offer(requestID(1), 1)
			into := r.reserve(o.RequestID, 1)
			epoch := 0
			for b.Loop() {
				epoch++
				if _, err := r.puller.Pull(context.Background(), Pull{RequestID: o.RequestID, Grant: r.sign(r.grant(o, epoch)), Key: kvKey, Into: into}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
