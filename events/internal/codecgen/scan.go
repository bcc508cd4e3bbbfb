package main

import (
	"bytes"
	"fmt"
)

// emitScan writes the reader of what the encoder writes, in the encoder's order.
// It has nothing to say about other bytes than that they are others.
func emitScan(b *bytes.Buffer, s *wireStruct) error {
	if !s.event {
		return nil
	}
	fmt.Fprintf(b, "\nfunc (v *%s) scanJSON(p *scan) {\n", s.name)
	for _, f := range s.fields {
		if f.goType == "[]PageRun" {
			fmt.Fprintf(b, "reused%s := v.%s[:0]\n", f.goName, f.goName)
		}
	}
	fmt.Fprintf(b, "*v = %s{}\n", s.name)
	for i, f := range s.fields {
		before := ","
		if i == 0 {
			before = "{"
		}
		key := fmt.Sprintf("%s%q:", before, f.name)
		read, quoted, err := f.scan()
		switch {
		case err != nil:
			return err
		case i == 0 && f.omit:
			return fmt.Errorf("%s: an event's first member is never left out", f.goName)
		case quoted:
			key += `"`
		}
		if f.omit {
			fmt.Fprintf(b, "if p.has(`%s`) {\n%s}\n", key, read)
		} else {
			fmt.Fprintf(b, "p.lit(`%s`)\n%s", key, read)
		}
	}
	b.WriteString("p.lit(`}`)\n}\n")
	return nil
}

// scan is the statement that reads the field's value, and whether its opening
// quote is read with its name.
func (f field) scan() (statement string, quoted bool, err error) {
	v := "v." + f.goName
	switch {
	case f.goType == "string" && f.omit:
		return v + " = p.filled()\n", true, nil
	case f.goType == "string":
		return v + " = p.text()\n", true, nil
	case words[f.goType] != "" && f.kind == "optional":
		return fmt.Sprintf("if p.has(`\"\"`) {\n%s = \"\"\n} else {\np.lit(`\"`)\n%s = scanWord(p, %s)\n}\n", v, v, words[f.goType]), false, nil
	case words[f.goType] != "" && !f.omit:
		return fmt.Sprintf("%s = scanWord(p, %s)\n", v, words[f.goType]), true, nil
	case f.goType == "bool" && f.omit: // false is left out
		return "p.lit(\"true\")\n" + v + " = true\n", false, nil
	case f.goType == "bool":
		return v + " = p.bool()\n", false, nil
	case f.goType == "int", f.goType == "int64", f.goType == "uint64":
		read := "uint"
		if f.omit {
			read = "positive"
		}
		return fmt.Sprintf("%s = %s(p.%s())\n", v, f.goType, read), false, nil
	case f.goType == "time.Time":
		read := "time"
		if f.omit {
			read = "moment"
		}
		return fmt.Sprintf("%s = p.%s()\n", v, read), true, nil
	case f.goType == "[]PageRun" && !f.omit:
		return fmt.Sprintf("%s = p.runs(reused%s)\n", v, f.goName), false, nil
	case f.isStruct() && f.omit && f.goType[0] == '*':
		return fmt.Sprintf("%s = new(%s)\n%s.scanJSON(p)\n", v, f.goType[1:], v), false, nil
	case f.isStruct() && !f.omit && f.goType[0] != '*':
		return v + ".scanJSON(p)\n", false, nil
	}
	return "", false, fmt.Errorf("%s: an event's %s has no scanner", f.goName, f.goType)
}
