package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// reportNotify records in the log that a tenant was told: whether customers were
// told is then as provable as what happened to them. It sends nothing to anybody.
func (a *app) reportNotify() *cobra.Command {
	var f requestFlags
	var incident, channel, content, sent, ack string
	c := &cobra.Command{
		Use:   "notify TENANT",
		Short: "Record in the log that a tenant was told of the incident",
		Long: `notify records who was told, when, by what way, and the SHA-256 of what was sent; the
text itself is not kept. It sends nothing. Say it again with --ack-at when the tenant
has answered. It speaks as the operator, and needs operator.nk from the key directory.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := &events.Notify{Incident: incident, Channel: channel, SentAt: events.Micros(time.Now())}
			var errs []error
			moment := func(name, text string, to *time.Time) {
				if text == "" {
					return
				}
				t, err := time.Parse(time.RFC3339Nano, text)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s %q: want a time like 2026-01-02T15:04:05Z", name, text))
				}
				*to = events.Micros(t)
			}
			moment("sent-at", sent, &d.SentAt)
			moment("ack-at", ack, &d.AckAt)
			if incident == "" || channel == "" || content == "" {
				errs = append(errs, errors.New("want --incident-id, --channel and --content"))
			} else if sum, err := fileSum(content); err != nil {
				errs = append(errs, fmt.Errorf("content: %w", err))
			} else {
				d.Content = sum
			}
			if err := firstOf(errs...); err != nil {
				return &usageError{err, cmd}
			}
			return a.operator(cmd, &f, queryTimeout, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Notify(ctx, args[0], d)
				if err == nil {
					err = answer.Err()
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.stdout, "recorded at %s: %s was told of %s by %s, sha256:%s\n", answer.Position, args[0], incident, channel, d.Content)
				return err
			})
		},
	}
	p := c.Flags()
	f.add(p)
	f.output = "table"
	p.StringVar(&incident, "incident-id", "", "name of the incident")
	p.StringVar(&channel, "channel", "", "by what way: email, post, …")
	p.StringVar(&content, "content", "", "file that holds what was sent; only its digest is recorded")
	p.StringVar(&sent, "sent-at", "", "when (default: now)")
	p.StringVar(&ack, "ack-at", "", "when the tenant acknowledged it")
	return c
}

// fileSum is the SHA-256 of a file in hex.
func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
