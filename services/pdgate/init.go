package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/internal/install"
	"github.com/pdgate/pdgate/internal/keyring"
)

// containerUser is who runs in the containers where init itself runs as root: a
// container of its files must not.
const containerUser = 65532

func (a *app) initCommand() *cobra.Command {
	var p install.Plan
	c := &cobra.Command{
		Use:   "init DIR",
		Short: "Write keys, certificates and configuration of an installation",
		Long: `init writes what an installation on several machines or containers starts from:
keys, a certificate authority and the certificates it signs, the configuration of
the NATS servers, a directory for each part with what is its own, a first tenant,
and the .env file that docker-compose.yml reads. What is there already stays as it
is. Part names are the host names under which the others reach them.

  pdgate init deploy                    three NATS servers and two of each part
  pdgate init deploy --nats-servers nats1       one NATS server

One machine needs no init: 'pdgate up' makes what it needs.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Dir = args[0]
			if err := checkModels("models", p.Models...); err != nil {
				return &usageError{err, cmd}
			}
			return a.install(p)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&p.Servers, "nats-servers", []string{"nats1", "nats2", "nats3"}, "names of the NATS servers: one, or three and more")
	f.StringSliceVar(&p.Lifecycles, "lifecycle", []string{"lc1", "lc2"}, "names of the lifecycle replicas")
	f.StringSliceVar(&p.Gateways, "gateways", []string{"gw1", "gw2"}, "names of the gateways")
	f.StringSliceVar(&p.Prefill, "prefill", []string{"p1", "p2"}, "names of the prefill workers")
	f.StringSliceVar(&p.Decode, "decode", []string{"d1", "d2"}, "names of the decode workers")
	f.StringSliceVar(&p.Auditors, "auditors", []string{"au1"}, "names of the auditors")
	f.StringSliceVar(&p.Models, "models", []string{"ref"}, "models whose work queues workers may read")
	f.StringSliceVar(&p.Hosts, "hosts", nil, "further names and addresses of gateways and auditors, for their certificates")
	return c
}

// install writes the installation.
func (a *app) install(p install.Plan) error {
	keyPath := filepath.Join(p.Dir, "keys", demoKeyFile)
	tenants, err := firstTenants(filepath.Dir(keyPath))
	if err != nil {
		return err
	}
	p.Tenants = []byte(tenants)
	report, err := install.Write(p)
	if err != nil {
		return err
	}
	user, err := ownFiles(p.Dir)
	if err != nil {
		return err
	}
	env := filepath.Join(p.Dir, ".env")
	text := fmt.Sprintf("# Read by docker-compose.yml: docker compose --env-file %s up\nPDGATE_DIR=%s\nPDGATE_USER=%s\nPDGATE_REPLICAS=%d\nPDGATE_NATS=%s\n",
		env, absolute(p.Dir), user, min(3, len(p.Servers)), natsURLs(p.Servers))
	switch err := keyring.WriteOnce(env, []byte(text), 0o600); {
	case errors.Is(err, fs.ErrExist):
		report.Kept = append(report.Kept, ".env")
	case err != nil:
		return err
	default:
		report.Written = append(report.Written, ".env")
	}
	_, err = fmt.Fprintf(a.stdout, "%d files written, %d kept, below %s.\nFirst tenant: demo, API key in %s\nNext: docker compose --env-file %s up   (docs/operations.md)\n",
		len(report.Written), len(report.Kept), p.Dir, keyPath, env)
	return err
}

func natsURLs(servers []string) string {
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = "tls://" + s + ":" + strconv.Itoa(install.ClientPort)
	}
	return strings.Join(urls, ",")
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// ownFiles says who the containers run as, and gives them the files where init
// runs as root. Keys and the authority stay root's: no container mounts them.
func ownFiles(dir string) (string, error) {
	if os.Geteuid() != 0 {
		return fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()), nil
	}
	for _, sub := range []string{"nats", "parts", "data"} {
		err := filepath.WalkDir(filepath.Join(dir, sub), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, containerUser, containerUser)
		})
		if err != nil {
			return "", fmt.Errorf("init: %w", err)
		}
	}
	return fmt.Sprintf("%d:%d", containerUser, containerUser), nil
}
