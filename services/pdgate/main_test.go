package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	quickTrims()
	testscript.Main(m, map[string]func(){"pdgate": main, "holdport": holdPort})
}

// holdPort listens on a free port until it is interrupted, and writes the
// address to the file that it is given.
func holdPort() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = writeFile(os.Args[1], l.Addr().String())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailure)
	}
	<-ctx.Done()
	l.Close()
}

func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: os.Getenv("PDGATE_UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready":    cmdReady,
			"complete": cmdComplete,
			"readvar":  cmdReadVar,
			"until":    cmdUntil,
		},
	})
}

// patience is for a machine that runs other things too.
const patience = 30 * time.Second

// await polls until f is content.
func await(ts *testscript.TestScript, what string, f func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ts.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// cmdReady waits until `pdgate up` on a data directory is ready, and sets $url,
// $nats and $key: ready DATA.
func cmdReady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready DATA")
	}
	data := ts.MkAbs(args[0])
	for name, file := range map[string]string{"url": gatewayURLFile, "nats": natsURLFile} {
		await(ts, "ready", func() bool {
			url, err := publishedURL(data, file)
			ts.Setenv(name, url)
			return err == nil && url != ""
		})
	}
	ts.Setenv("key", strings.TrimSpace(ts.ReadFile(filepath.Join(args[0], "keys", demoKeyFile))))
}

// cmdComplete asks for a completion: complete URL KEY PROMPT-FILE [MAX_TOKENS].
// It prints status, text and error, and sets $request_id.
func cmdComplete(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: complete URL KEY PROMPT-FILE [MAX_TOKENS]")
	}
	most := 24
	if len(args) > 3 {
		if _, err := fmt.Sscan(args[3], &most); err != nil {
			ts.Fatalf("max_tokens %q: %v", args[3], err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	prompt := strings.TrimSuffix(ts.ReadFile(args[2]), "\n")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	await(ts, "ready", func() bool { // the other parts may still be starting
		_, ok := ask(ctx, client, args[0]+"/ready")
		return ok
	})
	ans, err := complete(ctx, args[0], args[1], "ref", customer{prompt: []byte(prompt), most: most})
	ts.Check(err)
	if neg != (ans.status != http.StatusOK) {
		ts.Fatalf("HTTP %d: %s", ans.status, ans.problem)
	}
	ts.Setenv("request_id", ans.requestID)
	fmt.Fprintf(ts.Stdout(), "HTTP %d\n%s\n%s\n", ans.status, ans.text, ans.problem)
}

// cmdUntil runs pdgate until its output matches: the read side lags the log.
// until PATTERN ARGS…
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN ARGS…")
	}
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	var out, errOut bytes.Buffer
	await(ts, "until "+args[0], func() bool {
		out.Reset()
		errOut.Reset()
		if code := run(context.Background(), args[1:], strings.NewReader(""), &out, &errOut, nil); code != exitOK {
			ts.Fatalf("exit code %d: %s", code, &errOut)
		}
		return pattern.MatchString(out.String())
	})
	fmt.Fprint(ts.Stdout(), out.String())
}

// cmdReadVar waits for a file, and sets a variable to its content: readvar NAME
// FILE.
func cmdReadVar(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: readvar NAME FILE")
	}
	await(ts, args[1], func() bool {
		b, err := os.ReadFile(ts.MkAbs(args[1]))
		ts.Setenv(args[0], strings.TrimSpace(string(b)))
		return err == nil
	})
}
