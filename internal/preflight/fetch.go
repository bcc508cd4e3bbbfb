package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultTimeout bounds everything that is asked of one node.
const DefaultTimeout = 5 * time.Second

// maxBody is the most that is read of one answer.
const maxBody = 4 << 20

// problem is why a node cannot be judged, and what to do about it. It never holds
// what the node answered.
type problem struct{ what, fix string }

func (p *problem) Error() string { return p.what }

// newHTTP makes a client of its own: no redirect is followed, no proxy asked, and
// no connection outlives its answer.
func newHTTP() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// reader asks one node.
type reader struct {
	client *http.Client
	base   string
}

// CheckURL judges the address of a node.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%q: want http://HOST:PORT", redacted(s))
	case u.User != nil:
		return fmt.Errorf("%q: want no user and no password in it", redacted(s))
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q: want the base address, without a path", redacted(s))
	}
	return nil
}

// redacted is an address without what may be a password.
func redacted(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return "…" + s[i:]
	}
	return s
}

// get reads the body of an answer with status 200. Another status is returned as
// it is; body is nil then.
func (r *reader) get(ctx context.Context, path string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, 0, &problem{"the address cannot be asked", "give the node's base address, http://HOST:PORT"}
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, 0, r.failed(ctx, path, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, 0, &problem{
			fmt.Sprintf("%s answers HTTP %d, a redirect: it is not followed", path, resp.StatusCode),
			"give the node's own address, not that of a proxy in front",
		}
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, 0, &problem{fmt.Sprintf("%s answers HTTP %d: it wants credentials, and preflight sends none", path, resp.StatusCode), "let the node be asked from here without a key"}
	case resp.StatusCode != http.StatusOK:
		return nil, resp.StatusCode, nil
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, 0, r.failed(ctx, path, err)
	}
	if len(body) > maxBody {
		return nil, 0, &problem{fmt.Sprintf("%s answers more than %d MiB", path, maxBody>>20), "no engine does: is this one?"}
	}
	return body, http.StatusOK, nil
}

// failed says why there was no whole answer.
func (r *reader) failed(ctx context.Context, path string, err error) *problem {
	var refused *net.OpError
	var dns *net.DNSError
	switch {
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return &problem{path + " does not answer in time", "look whether the node is up; a busy one may need a longer --timeout"}
	case errors.As(err, &dns):
		return &problem{"its name cannot be resolved", "correct the address"}
	case errors.As(err, &refused) && refused.Op == "dial":
		return &problem{"nobody listens there", "start the node, or correct the address"}
	}
	return &problem{path + " breaks off its answer", "look at the node's own log: is this an engine's HTTP port?"}
}
