package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A running part leaves its address in the data directory, so that commands on
// the same directory find it whatever port it got. The file goes with the part;
// a killed one leaves it, and whoever uses it is told that nobody listens there.
const (
	natsURLFile    = "nats-url"
	gatewayURLFile = "gateway-url"
)

// runDir is where addresses and sockets are. It is created when missing.
func runDir(data string) (string, error) {
	dir := filepath.Join(data, "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	return dir, nil
}

// publishURL writes an address, and returns what removes it.
func publishURL(data, name, url string) (remove func(), err error) {
	dir, err := runDir(data)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	if err := writeFile(path, url+"\n"); err != nil {
		return nil, err
	}
	return func() { os.Remove(path) }, nil // a file that stays misleads nobody for long
}

// publishedURL reads an address; empty if there is none.
func publishedURL(data, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(data, "run", name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read address: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
