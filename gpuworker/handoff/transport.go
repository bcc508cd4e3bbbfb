package handoff

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const exporterLabel = "EXPORTER-pdgate-handoff-v1"

// Listener is the owner's end of the data plane.
type Listener struct {
	net.Listener
	path    string // of the socket file; "" for TCP
	address string
}

// Listen opens "tcp://host:port" (port 0: any) or "unix:///path". The socket
// file has mode 0600 before anybody can reach it; one that a dead process left
// behind is replaced, one that answers is not.
func Listen(address string) (*Listener, error) {
	network, at, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	if network == "tcp" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		return &Listener{Listener: l, address: "tcp://" + l.Addr().String()}, nil
	}
	if c, err := net.Dial("unix", at); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("listen on %s: the socket is in use by another process", address)
	}
	// The mode of a socket is set after it exists, so it comes to its place, where
	// peers look for it, only once it has its mode.
	nascent := at + ".new"
	if err := os.Remove(nascent); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: nascent, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(nascent, 0o600)
	if err == nil {
		err = os.Rename(nascent, at)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", address, err), l.Close(), os.Remove(nascent))
	}
	return &Listener{Listener: l, path: at, address: "unix://" + at}, nil
}

// Address is what a peer dials.
func (l *Listener) Address() string { return l.address }

// Close stops listening and removes the socket file.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	if l.path != "" {
		if e := os.Remove(l.path); err == nil && !errors.Is(e, os.ErrNotExist) {
			err = e
		}
	}
	return err
}

func splitAddress(address string) (network, at string, err error) {
	if p, ok := strings.CutPrefix(address, "tcp://"); ok {
		if _, _, err := net.SplitHostPort(p); err != nil {
			return "", "", fmt.Errorf("address %q: %w", address, err)
		}
		return "tcp", p, nil
	}
	if p, ok := strings.CutPrefix(address, "unix://"); ok {
		switch {
		case !filepath.IsAbs(p):
			return "", "", fmt.Errorf("address %q: want an absolute path", address)
		case len(p)+len(".new") > 107:
			return "", "", fmt.Errorf("address %q: a socket path holds at most 103 bytes", address)
		}
		return "unix", p, nil
	}
	return "", "", fmt.Errorf("address %q: want tcp://host:port or unix:///path", address)
}

// certificate wraps an identity key. Only the key counts; names and dates are
// there because X.509 wants them.
func certificate(identity ed25519.PrivateKey) (tls.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "pdgate worker"},
		NotBefore:    time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, identity.Public(), identity)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: identity}, nil
}

// peerKey is the identity key of the other side. TLS has seen the peer use it.
func peerKey(cs tls.ConnectionState) (ed25519.PublicKey, error) {
	if len(cs.PeerCertificates) != 1 {
		return nil, errors.New("want one certificate")
	}
	k, ok := cs.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("want an Ed25519 certificate")
	}
	return k, nil
}

func tlsConfig(cert tls.Certificate, check func(ed25519.PublicKey) error) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAnyClientCert,
		// There is no authority to verify a chain against: identity is the key,
		// and VerifyConnection runs for every handshake.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			k, err := peerKey(cs)
			if err != nil {
				return err
			}
			return check(k)
		},
	}
}

// channel is a connection whose peer is known as far as the transport can tell.
// One goroutine reads and writes.
type channel struct {
	net.Conn            // the protocol speaks here
	raw      net.Conn   // closed to cut the transfer: a TLS close would wait for the peer
	records  *recordBuf // under TLS; nil on a Unix socket
	binding  []byte
	peer     ed25519.PublicKey // nil on a Unix socket
}

// Write sends b whole before it returns.
func (c *channel) Write(b []byte) (int, error) {
	if c.records == nil {
		return c.Conn.Write(b)
	}
	c.records.hold = true
	n, err := c.Conn.Write(b)
	c.records.hold = false
	if err == nil {
		err = c.records.w.Flush()
	}
	return n, err
}

// socketBuffer is what a Unix socket holds between the two sides, bytes: the
// owner copies pages while the puller still reads. The system may allow less.
const socketBuffer = 1 << 20

// recordBuf lies between TLS and its socket. TLS has a record of at most 16 KiB
// for each system call, and two calls to read one.
type recordBuf struct {
	net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
	hold bool // what is written waits for the flush
}

// newRecordBuf buffers bulk in the direction in which pages go.
func newRecordBuf(c net.Conn, owner bool) *recordBuf {
	const bulk, small = 64 << 10, 4 << 10
	in, out := bulk, small
	if owner {
		in, out = small, bulk
	}
	return &recordBuf{Conn: c, r: bufio.NewReaderSize(c, in), w: bufio.NewWriterSize(c, out)}
}

// Read implements net.Conn.
func (b *recordBuf) Read(p []byte) (int, error) { return b.r.Read(p) }

// Write implements net.Conn.
func (b *recordBuf) Write(p []byte) (int, error) {
	n, err := b.w.Write(p)
	if err == nil && !b.hold {
		err = b.w.Flush()
	}
	return n, err
}

// cut ends the connection at once, from any goroutine.
func (c *channel) cut() { _ = c.raw.Close() }

// secure brings up TLS on a TCP connection; a Unix socket is taken as it is.
// The caller has set the deadline.
func secure(ctx context.Context, raw net.Conn, cfg *tls.Config, server bool) (*channel, error) {
	if u, ok := raw.(*net.UnixConn); ok {
		if server {
			_ = u.SetWriteBuffer(socketBuffer) // slower without it, no more
		}
		return &channel{Conn: raw, raw: raw, binding: []byte("unix")}, nil
	}
	records := newRecordBuf(raw, server)
	var c *tls.Conn
	if server {
		c = tls.Server(records, cfg)
	} else {
		c = tls.Client(records, cfg)
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	cs := c.ConnectionState()
	key, err := peerKey(cs)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	binding, err := cs.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return &channel{Conn: c, raw: raw, records: records, binding: binding, peer: key}, nil
}
