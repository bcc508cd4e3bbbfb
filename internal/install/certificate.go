package install

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/pdgate/pdgate/internal/keyring"
)

// Lives of certificates. A leaf is renewed by removing it and writing again.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 825 * 24 * time.Hour
)

// authority signs the certificates of servers.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

const (
	caPath    = "ca/" + keyring.CAFile
	caKeyPath = "ca/ca-key.pem"
)

// openCA reads the authority, or makes one. The key is written first: one without
// its certificate is made whole by the next run.
func (w *writer) openCA() (*authority, error) {
	key, err := w.key(caKeyPath)
	if err != nil {
		return nil, err
	}
	full := filepath.Join(w.plan.Dir, filepath.FromSlash(caPath))
	text, err := os.ReadFile(full)
	if errors.Is(err, fs.ErrNotExist) {
		now := w.plan.Now()
		t := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: "pdgate"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
		var der []byte
		if der, err = x509.CreateCertificate(rand.Reader, t, t, key.Public(), key); err != nil {
			return nil, fmt.Errorf("install: certificate authority: %w", err)
		}
		text = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		err = w.put(caPath, text, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("install: certificate authority: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("install: %s holds no certificate in PEM", full)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("install: %s: %w", full, err)
	}
	if pub, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("install: %s is not the certificate of %s: restore the pair from a backup", full, caKeyPath)
	}
	return &authority{cert: cert, key: key, pem: text}, nil
}

// key reads a private key, or makes one.
func (w *writer) key(name string) (crypto.Signer, error) {
	full := filepath.Join(w.plan.Dir, filepath.FromSlash(name))
	text, err := os.ReadFile(full)
	if errors.Is(err, fs.ErrNotExist) {
		var k *ecdsa.PrivateKey
		if k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, fmt.Errorf("install: %w", err)
		}
		var der []byte
		if der, err = x509.MarshalPKCS8PrivateKey(k); err != nil {
			return nil, fmt.Errorf("install: %w", err)
		}
		text = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		err = w.put(name, text, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	if block, _ := pem.Decode(text); block != nil {
		if k, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if s, ok := k.(crypto.Signer); ok {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("install: %s holds no private key in PEM", full)
}

// certificate writes tls.pem and tls-key.pem into dir, for a server that is
// reached as name, on loopback, and as any of hosts. Only a peer's serves to call
// others as well: NATS takes who calls with one for a server of its cluster, and
// whoever steals a gateway's must not become one.
func (w *writer) certificate(dir, name string, peer bool, hosts []string) error {
	key, err := w.key(path.Join(dir, "tls-key.pem"))
	if err != nil {
		return err
	}
	now := w.plan.Now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{name, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if peer {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, w.ca.cert, key.Public(), w.ca.key)
	if err != nil {
		return fmt.Errorf("install: certificate of %s: %w", name, err)
	}
	return w.put(path.Join(dir, "tls.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}
