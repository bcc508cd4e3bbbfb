package events

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// draw fills a wire struct with any value that has an encoding; with outside
// set, with one that also passes the checks on what comes from outside.
func draw(t *rapid.T, v reflect.Value, outside bool) {
	for i := range v.NumField() {
		f, sf := v.Field(i), v.Type().Field(i)
		name, opts, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if opts != "" && rapid.Bool().Draw(t, "omit "+name) {
			continue
		}
		kind := sf.Tag.Get("is")
		if !outside && kind != "optional" {
			kind = ""
		}
		drawField(t, f, name, kind, outside)
	}
}

func drawField(t *rapid.T, f reflect.Value, name, kind string, outside bool) {
	switch f.Interface().(type) {
	case time.Time:
		us := rapid.Int64Range(0, 4e15).Draw(t, name)
		f.Set(reflect.ValueOf(time.UnixMicro(us).UTC()))
		return
	case []PageRun:
		f.Set(reflect.ValueOf(drawRuns(t, name, outside)))
		return
	case State:
		f.SetString(string(rapid.SampledFrom(allStates).Draw(t, name)))
		return
	case Code:
		f.SetString(string(rapid.SampledFrom(AllCodes()).Draw(t, name)))
		return
	case Role:
		f.SetString(string(rapid.SampledFrom([]Role{RolePrefill, RoleDecode}).Draw(t, name)))
		return
	case CommandType:
		f.SetString(string(rapid.SampledFrom(allCommandTypes).Draw(t, name)))
		return
	case FinishReason:
		f.SetString(string(rapid.SampledFrom(allFinishReasons).Draw(t, name)))
		return
	}
	switch f.Kind() {
	case reflect.String:
		f.SetString(drawText(t, name, kind))
	case reflect.Bool:
		f.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Int, reflect.Int64:
		n := rapid.Int64Min(0).Draw(t, name)
		switch kind {
		case "positive":
			n |= 1
		case "status":
			n = rapid.SampledFrom([]int64{0, 400, 404, 503, 599}).Draw(t, name)
		}
		f.SetInt(n)
	case reflect.Uint64:
		n := rapid.Uint64().Draw(t, name)
		if kind == "positive" {
			n |= 1
		}
		f.SetUint(n)
	case reflect.Struct:
		draw(t, f, outside)
	case reflect.Pointer:
		f.Set(reflect.New(f.Type().Elem()))
		draw(t, f.Elem(), outside)
	default:
		t.Fatalf("no generator for %s %s", name, f.Type())
	}
}

func drawRuns(t *rapid.T, name string, outside bool) (runs []PageRun) {
	next := uint64(0)
	for range rapid.IntRange(1, 5).Draw(t, name) {
		start := next + rapid.Uint64Range(0, 1<<20).Draw(t, "gap")
		count := rapid.Uint64Range(1, 1<<20).Draw(t, "count")
		runs = append(runs, PageRun{uint32(start), uint32(count), rapid.Uint64Min(1).Draw(t, "generation")})
		next = start + count
	}
	if !outside && rapid.Bool().Draw(t, "no runs") {
		return nil
	}
	return runs
}

const hexSet = "0123456789abcdef"

func drawHex(t *rapid.T, name string, n int) string {
	return rapid.StringOfN(rapid.RuneFrom([]rune(hexSet)), n, n, -1).Draw(t, name)
}

func drawText(t *rapid.T, name, kind string) string {
	switch kind {
	case "running":
		return rapid.SampledFrom([]string{RunningDrain, RunningCancel}).Draw(t, name)
	case "verdict":
		return rapid.SampledFrom([]string{CanaryClean, CanaryWrong, CanaryForeign, CanaryInconclusive}).Draw(t, name)
	case "lengths":
		return rapid.SampledFrom([]string{"1+1", "0+0", "681279+32 681280+32"}).Draw(t, name)
	case "evidence":
		return rapid.SampledFrom([]string{sampleEvidence, sampleEvidence[:len(requestID)+1+len("1207.4;")+43]}).Draw(t, name)
	case "":
		return rapid.String().Draw(t, name)
	case "name":
		return rapid.StringMatching(`[A-Za-z0-9_:/-]{1,64}`).Draw(t, name)
	case "model":
		return rapid.StringMatching(`[a-z0-9]{1,9}(\.[A-Za-z0-9_:/-]{1,9}){0,3}`).Draw(t, name)
	case "request":
		return drawRequest(t, name)
	case "digest":
		return rapid.SampledFrom([]string{prefixKeyed, prefixKind}).Draw(t, name) + drawHex(t, name, 64)
	case "personal":
		return rapid.SampledFrom([]string{prefixKeyed, prefixSalted}).Draw(t, name) + drawHex(t, name, 64)
	case "keyname":
		return drawHex(t, name, 16)
	case "kvdigest":
		return "kvsum64:" + drawHex(t, name, 16)
	case "hex32":
		return drawHex(t, name, 64)
	case "key":
		return base64.StdEncoding.EncodeToString(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, name))
	case "address":
		return fmt.Sprintf("tcp://10.0.0.%d:%d", rapid.IntRange(0, 255).Draw(t, name), rapid.IntRange(1, 65535).Draw(t, "port"))
	case "trace":
		return traceID
	case "text", "message":
		return rapid.StringMatching(`[a-z<é"\\]{1,40}`).Draw(t, name)
	case "read":
		return rapid.SampledFrom([]string{ReadExport, ReadReceipt, ReadEntries}).Draw(t, name)
	case "via":
		return rapid.SampledFrom([]string{"http", "nats"}).Draw(t, name)
	case "part":
		return rapid.SampledFrom([]string{"prompt", "sampling"}).Draw(t, name)
	}
	t.Fatalf("no generator for kind %q of %s", kind, name)
	return ""
}

func drawRequest(t *rapid.T, name string) string {
	h := drawHex(t, name, 30)
	return h[:8] + "-" + h[8:12] + "-7" + h[12:15] + "-" + rapid.SampledFrom([]string{"8", "9", "a", "b"}).Draw(t, "variant") + h[15:18] + "-" + h[18:30]
}

func drawEvent(t *rapid.T) *Event {
	d := forms[rapid.SampledFrom(allTypes).Draw(t, "type")].fresh()
	draw(t, reflect.ValueOf(d).Elem(), false)
	text := rapid.String()
	e := &Event{Source: "/" + text.Draw(t, "source"), Type: d.EventType(), Subject: "x" + text.Draw(t, "subject"),
		Time: time.UnixMicro(rapid.Int64Range(-6e16, 2e17).Draw(t, "time")).UTC(), Command: text.Draw(t, "command"),
		Principal: text.Draw(t, "principal"), Tenant: text.Draw(t, "tenant"), TenantSeq: rapid.Uint64().Draw(t, "tenantseq"),
		TenantPrev: text.Draw(t, "tenantprev"), Traceparent: text.Draw(t, "traceparent"), Data: d}
	e.Prev.Seq = rapid.Uint64().Draw(t, "seq")
	if e.Prev.Seq != 0 {
		e.Prev.Line = int(rapid.Int32Min(0).Draw(t, "line"))
	}
	if e.N = rapid.IntRange(0, 9).Draw(t, "n"); e.N == 0 {
		e.ID = "e:" + text.Draw(t, "id")
	} else {
		e.ID = fmt.Sprintf("%s.%d", e.Subject, e.N)
	}
	return e
}

func TestEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		b, err := Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func drawCommand(t *rapid.T) *Command {
	d := newCommandData(rapid.SampledFrom(allCommandTypes).Draw(t, "type"))
	draw(t, reflect.ValueOf(d).Elem(), true)
	c := &Command{Type: d.CommandType(), Role: RoleDecode, Principal: "d1", Data: d}
	switch c.Type {
	case CmdRegister, CmdLeave, CmdErase, CmdNotify:
		c.Subject = drawText(t, "subject", "name")
	case CmdQuarantine, CmdRestore:
		c.Subject = drawText(t, "subject", "model")
	default:
		c.Subject = drawRequest(t, "subject")
	}
	if rapid.Bool().Draw(t, "traced") {
		c.Traceparent = traceID
	}
	return c
}

func TestCommandRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCommand(t)
		b, err := AppendCommand(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeCommand(c.Type, b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		got.Role, got.Principal = c.Role, c.Principal
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatal(diff)
		}
		if c.Key() != got.Key() {
			t.Fatalf("keys differ: %s and %s", c.Key(), got.Key())
		}
	})
}

func TestWorkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := new(Work)
		draw(t, reflect.ValueOf(w).Elem(), true)
		b, err := AppendWork(nil, w)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeWork(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if diff := cmp.Diff(w, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
