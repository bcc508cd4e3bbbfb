package main

import (
	"bytes"
	"fmt"
	"strings"
)

// words maps an enumeration to the table of its words.
var words = map[string]string{
	"Type": "types", "State": "states", "Role": "roles", "Code": "codes",
	"CommandType": "commandTypes", "FinishReason": "finishReasons",
}

// nonEmpty is the condition under which an omitempty member is written.
func (f field) nonEmpty() string {
	v := "v." + f.goName
	switch {
	case f.goType == "string" || words[f.goType] != "":
		return v + ` != ""`
	case f.goType == "bool":
		return v
	case f.goType == "time.Time":
		return "!" + v + ".IsZero()"
	case strings.HasPrefix(f.goType, "*"):
		return v + " != nil"
	case strings.HasPrefix(f.goType, "[]"):
		return "len(" + v + ") != 0"
	}
	return v + " != 0"
}

func (f field) isStruct() bool {
	switch f.goType {
	case "string", "bool", "int", "int64", "uint64", "time.Time", "[]PageRun", "[]byte", "json.RawMessage":
		return false
	}
	return words[f.goType] == ""
}

func emitAppend(b *bytes.Buffer, s *wireStruct) error {
	fmt.Fprintf(b, "\nfunc (v *%s) appendJSON(b []byte) ([]byte, error) {\nif v == nil {\nreturn b, wrong(\"\", wantData)\n}\n", s.name)
	var body bytes.Buffer
	first := true // nothing is certainly written yet
	for i, f := range s.fields {
		key := `"` + f.name + `":`
		if f.omit {
			fmt.Fprintf(&body, "if %s {\n", f.nonEmpty())
		}
		switch {
		case i == 0:
			fmt.Fprintf(&body, "b = append(b, `%s`...)\n", key)
		case first:
			fmt.Fprintf(&body, "b = append(comma(b), `%s`...)\n", key)
		default:
			fmt.Fprintf(&body, "b = append(b, `,%s`...)\n", key)
		}
		if err := emitAppendValue(&body, f); err != nil {
			return err
		}
		if f.omit {
			body.WriteString("}\n")
		} else {
			first = false
		}
	}
	if bytes.Contains(body.Bytes(), []byte(", ok = ")) {
		b.WriteString("var ok bool\n")
	}
	if bytes.Contains(body.Bytes(), []byte(", err = ")) {
		b.WriteString("var err error\n")
	}
	b.WriteString("b = append(b, '{')\n")
	b.Write(body.Bytes())
	b.WriteString("return append(b, '}'), nil\n}\n")
	return nil
}

func emitAppendValue(b *bytes.Buffer, f field) error {
	v := "v." + f.goName
	call := func(fn, reason string) {
		fmt.Fprintf(b, "if b, ok = %s(b, %s); !ok {\nreturn b, wrong(%q, %s)\n}\n", fn, v, f.name, reason)
	}
	switch {
	case f.goType == "string":
		call("appendString", "wantText")
	case words[f.goType] != "":
		known := "!" + v + ".Known()"
		if f.kind == "optional" {
			known = v + ` != "" && ` + known
		}
		fmt.Fprintf(b, "if %s {\nreturn b, wrong(%q, wantKnown)\n}\nb = appendWord(b, string(%s))\n", known, f.name, v)
	case f.goType == "bool":
		fmt.Fprintf(b, "b = strconv.AppendBool(b, %s)\n", v)
	case f.goType == "int", f.goType == "int64":
		fmt.Fprintf(b, "if %s < 0 {\nreturn b, wrong(%q, wantCount)\n}\nb = appendInt(b, int64(%s))\n", v, f.name, v)
	case f.goType == "uint64":
		fmt.Fprintf(b, "b = appendUint(b, %s)\n", v)
	case f.goType == "time.Time":
		call("appendTime", "wantTime")
	case f.goType == "[]byte":
		fmt.Fprintf(b, "b = appendBase64(b, %s)\n", v)
	case f.goType == "json.RawMessage":
		call("appendRaw", "wantData")
	case f.goType == "[]PageRun":
		fmt.Fprintf(b, "if b, err = appendRuns(b, %s); err != nil {\nreturn b, within(%q, err)\n}\n", v, f.name)
	case strings.HasPrefix(f.goType, "[]"):
		return fmt.Errorf("%s: lists of %s have no codec", f.goName, f.goType)
	default:
		fmt.Fprintf(b, "if b, err = %s.appendJSON(b); err != nil {\nreturn b, within(%q, err)\n}\n", v, f.name)
	}
	return nil
}

func emitRead(b *bytes.Buffer, s *wireStruct) error {
	var names []string
	var required uint64
	for i, f := range s.fields {
		names = append(names, fmt.Sprintf("%q", f.name))
		if !f.omit {
			required |= 1 << i
		}
	}
	if len(names) > 64 {
		return fmt.Errorf("has more than 64 fields")
	}
	table := strings.ToLower(s.name[:1]) + s.name[1:] + "Fields"
	fmt.Fprintf(b, "\nvar %s = []string{%s}\n", table, strings.Join(names, ", "))
	fmt.Fprintf(b, "\nfunc (v *%s) readJSON(p *parser) {\nvar o object\nfor p.member(&o) {\nswitch string(o.key) {\n", s.name)
	for i, f := range s.fields {
		fmt.Fprintf(b, "case %q:\nif p.field(&o, %d) {\n", f.name, i)
		v := "v." + f.goName
		switch {
		case f.goType == "string", f.goType == "bool":
			fmt.Fprintf(b, "%s = p.%s()\n", v, f.goType)
		case words[f.goType] != "":
			read := "word"
			if f.kind == "optional" {
				read = "optionalWord"
			}
			fmt.Fprintf(b, "%s = %s(p, %s)\n", v, read, words[f.goType])
		case f.goType == "int":
			fmt.Fprintf(b, "%s = int(p.uint(math.MaxInt))\n", v)
		case f.goType == "int64":
			fmt.Fprintf(b, "%s = int64(p.uint(math.MaxInt64))\n", v)
		case f.goType == "uint64":
			fmt.Fprintf(b, "%s = p.uint(math.MaxUint64)\n", v)
		case f.goType == "time.Time":
			fmt.Fprintf(b, "%s = p.time()\n", v)
		case f.goType == "[]byte":
			fmt.Fprintf(b, "%s = p.base64()\n", v)
		case f.goType == "json.RawMessage":
			fmt.Fprintf(b, "%s = p.raw()\n", v)
		case f.goType == "[]PageRun":
			fmt.Fprintf(b, "%s = p.runs()\n", v)
		case f.goType[0] == '*':
			fmt.Fprintf(b, "%s = new(%s)\n%s.readJSON(p)\n", v, f.goType[1:], v)
		default:
			fmt.Fprintf(b, "%s.readJSON(p)\n", v)
		}
		if f.omit && f.goType[0] != '*' {
			fmt.Fprintf(b, "p.present(%s)\n", f.nonEmpty())
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(b, "default:\np.unknown(&o)\n}\n}\np.close(&o, %#x, %s)\n}\n", required, table)
	return nil
}

// checks maps a kind to the condition that holds for a right value.
var checks = map[string]string{
	"name": "ValidName(%s)", "model": "ValidModel(%s)", "request": "isRequest(%s)", "digest": "isDigest(%s)",
	"personal": "isPersonal(%s)", "keyname": "isHex(%s, 16)",
	"kvdigest": "isKVDigest(%s)", "key": "isKey(%s)", "hex32": "isHex(%s, 64)", "address": "isAddress(%s)",
	"trace": "isTrace(%s)", "text": "isText(%s)", "message": "isMessage(%s)", "part": "isPart(%s)", "read": "isRead(%s)", "via": "isVia(%s)",
	"running": "isRunning(%s)", "verdict": "isVerdict(%s)", "lengths": "isLengths(%s)", "evidence": "isEvidence(%s)",
	"positive": "%s", "limit": "isLimit(%s)", "status": "isStatus(%s)", "worker": "isWorker(%s)",
}

func emitCheck(b *bytes.Buffer, s *wireStruct) error {
	if !s.outside {
		return nil
	}
	fmt.Fprintf(b, "\nfunc (v *%s) check() error {\n", s.name)
	for _, f := range s.fields {
		v := "v." + f.goName
		switch {
		case f.kind == "runs":
			fmt.Fprintf(b, "if err := checkRuns(%s); err != nil {\nreturn within(%q, err)\n}\n", v, f.name)
		case f.kind != "" && f.kind != "optional":
			form, ok := checks[f.kind]
			if !ok {
				return fmt.Errorf("%s: kind %q has no check", f.goName, f.kind)
			}
			condition := "!" + fmt.Sprintf(form, v)
			if f.kind == "positive" {
				condition = v + " == 0"
				if f.goType != "uint64" {
					condition = v + " <= 0"
				}
			}
			if f.omit {
				condition = f.nonEmpty() + " && " + condition
			}
			fmt.Fprintf(b, "if %s {\nreturn wrong(%q, want[%q])\n}\n", condition, f.name, f.kind)
		case f.isStruct():
			if f.omit {
				fmt.Fprintf(b, "if %s != nil {\n", v)
			}
			fmt.Fprintf(b, "if err := %s.check(); err != nil {\nreturn within(%q, err)\n}\n", v, f.name)
			if f.omit {
				b.WriteString("}\n")
			}
		}
	}
	b.WriteString("return nil\n}\n")
	return nil
}
