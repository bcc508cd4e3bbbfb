package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) healthCommand() *cobra.Command {
	var ca string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "health URL",
		Short: "Ask a part whether it is well; for health checks of containers",
		Long: `health gets a URL, as http://127.0.0.1:9090/ready, and ends with 0 where the answer
is 200, and with 1 and a line that says why where it is not. An image without a
shell needs nothing else for its health check.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := url.Parse(args[0])
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return &usageError{fmt.Errorf("%q: want a URL, http://HOST:PORT/ready", args[0]), cmd}
			}
			roots, err := readPool(ca)
			if err != nil {
				return &usageError{err, cmd}
			}
			return checkHealth(cmd.Context(), u.String(), roots, timeout)
		},
	}
	c.Flags().StringVar(&ca, "ca", "", "certificate authority of the URL's TLS, in PEM (default: the system's)")
	c.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long the answer may take")
	return c
}

// readPool reads certificates; "" is the system's pool, nil.
func readPool(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s holds no certificate in PEM", path)
	}
	return pool, nil
}

func checkHealth(ctx context.Context, url string, roots *x509.CertPool, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health: %s: %s", url, resp.Status)
	}
	return nil
}
