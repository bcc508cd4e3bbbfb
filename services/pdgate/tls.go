package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"
)

// tlsFlags make a listener one of HTTPS.
type tlsFlags struct{ cert, key string }

func (f *tlsFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.cert, "tls-cert", "", "certificate chain in PEM: HTTPS in the place of HTTP (default: none)")
	s.StringVar(&f.key, "tls-key", "", "private key of --tls-cert, in PEM")
}

// config reads the files; nil without any.
func (f *tlsFlags) config() (*tls.Config, error) {
	switch {
	case f.cert == "" && f.key == "":
		return nil, nil
	case f.cert == "":
		return nil, errors.New("tls-key: want --tls-cert too")
	case f.key == "":
		return nil, errors.New("tls-cert: want --tls-key too")
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("tls-cert %s, tls-key %s: %w", f.cert, f.key, err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}

// wrap puts TLS on a listener, if there is any, and says how its URL begins.
func wrapTLS(l net.Listener, c *tls.Config) (net.Listener, string) {
	if c == nil {
		return l, "http://"
	}
	return tls.NewListener(l, c), "https://"
}
