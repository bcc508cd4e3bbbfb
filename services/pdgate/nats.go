package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// splitListen reads "host:port". Port 0 asks for a free one.
func splitListen(flag, s string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(s)
	if err == nil {
		port, err = strconv.Atoi(p)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%s %q: want HOST:PORT", flag, s)
	}
	if port == 0 {
		port = -1
	}
	return host, port, nil
}

// explainBroker adds to an error of the broker what to do about it.
func explainBroker(err error) error {
	switch {
	case errors.Is(err, broker.ErrAddressInUse):
		return fmt.Errorf("%w: is another pdgate or NATS server running? choose another address with --nats-listen", err)
	case errors.Is(err, broker.ErrStoreInUse):
		return fmt.Errorf("%w: another pdgate runs on this data directory; stop it, or choose another directory with --data", err)
	}
	return err
}

func (a *app) natsCommand() *cobra.Command {
	var (
		listen, keys, durability          string
		gateways, prefill, decode, models []string
		print                             bool
	)
	c := &cobra.Command{
		Use:   "nats",
		Short: "Run the NATS server alone",
		Long: `nats runs the embedded NATS server with pdgate's accounts and users. It creates
the key directory when it is missing; copy to each other machine the keys that
its part needs. With --print-config it prints the configuration instead, for a
NATS server or cluster that is run by other means.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, port, err := splitListen("nats-listen", listen)
			err = firstOf(err, checkDurability("durability", durability), checkModels("models", models...),
				checkNames("gateways", gateways), checkNames("prefill", prefill), checkNames("decode", decode))
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := keyring.Open(a.keyDir(keys), keyring.Names{Gateways: gateways, Prefill: prefill, Decode: decode})
			if err != nil {
				return err
			}
			cfg := broker.Config{
				StoreDir: filepath.Join(a.data, "jetstream"), Host: host, Port: port,
				Durability: broker.Durability(durability), Models: models, Ring: ring, Logger: a.log,
			}
			if print {
				text, err := cfg.Text()
				if err == nil {
					_, err = fmt.Fprint(a.stdout, text)
				}
				return err
			}
			b, err := broker.Start(cfg)
			if err != nil {
				return explainBroker(err)
			}
			defer b.Shutdown()
			remove, err := publishURL(a.data, natsURLFile, b.ClientURL())
			if err != nil {
				return err
			}
			defer remove()
			a.log.Info("nats is ready", "url", b.ClientURL(), "durability", durability, "keys", ring.Dir())
			return supervise(cmd.Context(), []part{{"nats", b.Wait}})
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "nats-listen", "127.0.0.1:4222", "address that NATS listens on")
	f.StringVar(&keys, "keys", "", "key directory (default: keys in the data directory)")
	f.StringVar(&durability, "durability", string(broker.FsyncAlways), "fsync: on disk before an append is acknowledged; interval: within two minutes")
	f.StringSliceVar(&gateways, "gateways", []string{"gw1"}, "names of the gateways")
	f.StringSliceVar(&prefill, "prefill", []string{"p1"}, "names of the prefill workers")
	f.StringSliceVar(&decode, "decode", []string{"d1"}, "names of the decode workers")
	f.StringSliceVar(&models, "models", []string{"ref"}, "models whose work queues workers may read")
	f.BoolVar(&print, "print-config", false, "print the server's configuration and exit")
	return c
}
