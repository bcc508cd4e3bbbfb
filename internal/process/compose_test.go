package process

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/internal/keyring"
)

// drillVariable asks for the drill on containers. It takes the Docker daemon and
// minutes, so the plain test run leaves it out.
const drillVariable = "PDGATE_DRILL"

// fleet is docker-compose.yml, running.
type fleet struct {
	t       *testing.T
	dir     string // of the installation
	project string
	compose []string // the command
	env     []string
	ring    *keyring.Ring
	roots   *x509.CertPool
	http    map[string]string // gateway -> base URL
}

// composeCommand is how this machine spells compose.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if exec.Command("docker-compose", "version").Run() == nil {
		return []string{"docker-compose"}
	}
	t.Skip("skipped: neither docker compose nor docker-compose is here")
	return nil
}

// newFleet builds the images, writes an installation, and starts all of it.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	if os.Getenv(drillVariable) == "" {
		t.Skip("skipped: the drill on containers takes " + drillVariable + "=1")
	}
	if err := exec.Command("docker", "info").Run(); err != nil {
		t.Skip("skipped: no Docker daemon answers")
	}
	var name [4]byte
	rand.Read(name[:])
	tag := hex.EncodeToString(name[:])
	f := &fleet{t: t, dir: t.TempDir(), project: "pdgate-drill-" + tag, compose: composeCommand(t), http: map[string]string{}}
	root := filepath.Join("..", "..")
	images := exec.Command("go", "run", "./internal/image", "-tag", "pdgate:"+tag, "-nats", "pdgate-nats:"+tag)
	images.Dir = root
	if out, err := images.CombinedOutput(); err != nil {
		t.Fatalf("images: %v: %s", err, out)
	}
	t.Cleanup(func() { f.docker("image", "rm", "--force", "pdgate:"+tag, "pdgate-nats:"+tag) })
	for _, gw := range []string{"gw1", "gw2"} { // what is there, init keeps
		part := filepath.Join(f.dir, "parts", gw)
		if err := os.MkdirAll(part, 0o700); err != nil {
			t.Fatal(err)
		}
		writeTenants(t, filepath.Join(part, "tenants.yaml"))
	}
	if out, err := exec.Command(pdgate(t), "init", f.dir).CombinedOutput(); err != nil {
		t.Fatalf("init: %v: %s", err, out)
	}
	ports := map[string]string{}
	for _, gw := range []string{"gw1", "gw2"} {
		_, port, err := net.SplitHostPort(freeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		ports[gw] = port
		f.http[gw] = "https://localhost:" + port
	}
	_, audit, _ := net.SplitHostPort(freeAddress(t))
	f.env = append(os.Environ(), "PDGATE_IMAGE=pdgate:"+tag, "NATS_IMAGE=pdgate-nats:"+tag, "NATS_PROBE=/probe",
		"GW1_PORT=127.0.0.1:"+ports["gw1"], "GW2_PORT=127.0.0.1:"+ports["gw2"], "AU1_PORT=127.0.0.1:"+audit)
	var err error
	if f.ring, err = keyring.Load(filepath.Join(f.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(f.dir, "ca", keyring.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	f.roots = x509.NewCertPool()
	f.roots.AppendCertsFromPEM(pem)
	t.Cleanup(func() { f.composed("down", "--volumes", "--timeout", "20") })
	f.composed("up", "-d")
	return f
}

// composed runs a command of compose.
func (f *fleet) composed(args ...string) {
	f.t.Helper()
	all := append(append([]string{}, f.compose[1:]...), "--project-name", f.project, "--file", filepath.Join("..", "..", "docker-compose.yml"), "--env-file", filepath.Join(f.dir, ".env"))
	c := exec.Command(f.compose[0], append(all, args...)...)
	c.Env = f.env
	if out, err := c.CombinedOutput(); err != nil {
		f.t.Errorf("compose %s: %v: %s", args[0], err, out)
	}
}

// docker runs a command of docker's and returns what it prints.
func (f *fleet) docker(args ...string) string {
	f.t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		f.t.Errorf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// container is the id of a service's container.
func (f *fleet) container(service string) string {
	f.t.Helper()
	return f.docker("ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+f.project, "--filter", "label=com.docker.compose.service="+service)
}

// fleetServices are all parts.
var fleetServices = []string{"nats1", "nats2", "nats3", "lc1", "lc2", "gw1", "gw2", "p1", "p2", "d1", "d2", "au1"}

// healthy waits until services are, and says how long that took.
func (f *fleet) healthy(services ...string) time.Duration {
	f.t.Helper()
	begin := time.Now()
	for _, s := range services {
		id := f.container(s)
		await(f.t, s+" is healthy", 2*patience, func() bool {
			return f.docker("inspect", "--format", "{{.State.Health.Status}}", id) == "healthy"
		})
	}
	return time.Since(begin)
}

// connect is a connection into the cluster's own network, whose bridge this
// machine has.
func (f *fleet) connect(u keyring.User) *nats.Conn {
	f.t.Helper()
	user, err := f.ring.Option(u)
	if err != nil {
		f.t.Fatal(err)
	}
	nc, err := nats.Connect("tls://nats1:4222,tls://nats2:4222,tls://nats3:4222", user, nats.RootCAs(filepath.Join(f.dir, "ca", keyring.CAFile)),
		nats.SetCustomDialer(bridge{f}), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(5*time.Second), nats.SkipHostLookup())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(nc.Close)
	return nc
}

// bridge dials containers by their services' names.
type bridge struct{ f *fleet }

func (b bridge) Dial(network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("docker", "ps", "--quiet", "--filter", "label=com.docker.compose.project="+b.f.project, "--filter", "label=com.docker.compose.service="+host).Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, fmt.Errorf("%s does not run", host)
	}
	ip, err := exec.Command("docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}", string(bytes.TrimSpace(out))).Output()
	if err != nil || len(bytes.Fields(ip)) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return net.DialTimeout(network, net.JoinHostPort(string(bytes.Fields(ip)[0]), port), 5*time.Second)
}

// TestDrill kills, pauses and cuts off containers of docker-compose.yml under
// load, takes the quorum away, and then asks the log and the clients whether
// anything is wrong.
func TestDrill(t *testing.T) {
	f := newFleet(t)
	began := time.Now()
	up := f.healthy(fleetServices...)
	t.Logf("healthy %.1f s after compose had started all", up.Seconds())
	op := operator(t, f.connect(keyring.Operator))
	audit := newAuditor(t, f.connect(keyring.Admin), f.ring)
	l := newLoadOver(t, f.http, f.roots)
	l.flows(began, "", inFlight)

	for _, s := range fleetServices {
		f.fault(l, "kill", s, func(id string) { f.docker("kill", id) }, func(id string) { f.docker("start", id) })
	}
	f.fault(l, "pause", "lc1", func(id string) { f.docker("pause", id) }, func(id string) { f.docker("unpause", id) })
	control := f.project + "_control"
	f.fault(l, "cut off", "nats2", func(id string) { f.docker("network", "disconnect", control, id) },
		func(id string) { f.docker("network", "connect", "--alias", "nats2", control, id) })

	// Two of three servers gone: nothing is recorded, so nothing may be answered
	// with 200, and all goes on by itself when they are back.
	f.docker("kill", f.container("nats1"), f.container("nats2"))
	lost := time.Now()
	await(t, "clients are refused", patience, func() bool {
		return l.count(func(o *outcome) bool { return o.began.After(lost) && o.status == http.StatusServiceUnavailable }) >= inFlight
	})
	if n := l.count(func(o *outcome) bool {
		return o.began.After(lost.Add(5*time.Second)) && o.status == http.StatusOK
	}); n > 0 {
		t.Errorf("%d requests that began without a quorum were answered 200", n)
	}
	f.docker("start", f.container("nats1"), f.container("nats2"))
	back := time.Now()
	t.Logf("quorum lost for %.1f s; first answer %.1f s after it is back", back.Sub(lost).Seconds(), l.flows(back, "", 1).Seconds())
	f.healthy(fleetServices...)
	l.flows(time.Now(), "", 2*inFlight)

	all := l.calm()
	took := audit.settled(2 * settleIn)
	for _, problem := range audit.judge(all, nil) {
		t.Error(problem)
	}
	c := &cluster{t: t}
	c.idle(op, 4)
	report := audit.checker.Report()
	t.Logf("%s", summary(all))
	t.Logf("log: %d events of %d requests, all ended %d ms after the last client; seconds in all: %.0f", report.Events, report.Requests, took.Milliseconds(), time.Since(began).Seconds())
	for _, s := range fleetServices {
		f.checkLog(s)
	}
}

// fault does something to a container under load, waits for the first answer
// after it, undoes it, and waits until all is well.
func (f *fleet) fault(l *load, what, service string, do, undo func(id string)) {
	f.t.Helper()
	id := f.container(service)
	at := time.Now()
	do(id)
	first := l.flows(at, "", inFlight)
	undo(id)
	back := f.healthy(service)
	l.flows(time.Now(), "", inFlight)
	f.t.Logf("%-7s %-5s first answer after %5d ms, healthy again after %4.1f s", what, service, first.Milliseconds(), back.Seconds())
	if first > recoverIn {
		f.t.Errorf("%s %s: first answer after %v, want %v", what, service, first, recoverIn)
	}
}

// checkLog looks for what no container may write.
func (f *fleet) checkLog(service string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "logs", f.container(service)).CombinedOutput()
	if err != nil {
		f.t.Errorf("logs of %s: %v", service, err)
	}
	for line := range strings.Lines(string(out)) {
		for _, word := range []string{secretWord, apiKey, "panic:", "goroutine ", "fatal error"} {
			if strings.Contains(line, word) {
				f.t.Errorf("%s wrote %q: %s", service, word, line)
			}
		}
	}
}
