package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

type wireStruct struct {
	name    string
	fields  []field
	outside bool // comes from outside, so it is checked
	event   bool // is an event's data, or part of it
}

type field struct {
	goName string
	goType string // as written, for instance "*AdmissionFacts"
	name   string // of the member
	omit   bool
	kind   string // of the is tag
}

// roots are the structs that are read or written by themselves and have no
// EventType or CommandType method. What they hold comes along.
var roots = map[string]bool{
	"Work": true, "PromptRequest": true, "Heartbeat": true, "Answer": true, "Grant": true, "SignedGrant": true,
	"GetQuery": true, "HistoryQuery": true, "ListQuery": true, "WorkersQuery": true, "InfoQuery": true,
}

// load returns the package's wire structs in the order of the source, those of
// a file before those of the next.
func load(dir string) ([]*wireStruct, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]*wireStruct)
	var order []*wireStruct
	wanted := make(map[string]bool) // and whether it comes from outside
	inEvents := make(map[string]bool)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || filepath.Base(name) == output {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Base(name), src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && (d.Name.Name == "EventType" || d.Name.Name == "CommandType") {
					if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
						name := typeName(star.X)
						wanted[name] = d.Name.Name == "CommandType"
						inEvents[name] = d.Name.Name == "EventType"
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					t, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					if st, ok := t.Type.(*ast.StructType); ok {
						s := &wireStruct{name: t.Name.Name, fields: fields(st)}
						all[s.name] = s
						order = append(order, s)
					}
				}
			}
		}
	}
	for name := range roots {
		if all[name] == nil {
			return nil, fmt.Errorf("struct %s is not there", name)
		}
		wanted[name] = true
	}
	var visit func(name string, outside, event bool)
	visit = func(name string, outside, event bool) {
		for _, f := range all[name].fields {
			inner := strings.TrimPrefix(f.goType, "*")
			if all[inner] == nil {
				continue
			}
			if was, seen := wanted[inner]; !seen || outside && !was || event && !inEvents[inner] {
				wanted[inner] = outside || was
				inEvents[inner] = event || inEvents[inner]
				visit(inner, outside, event)
			}
		}
	}
	for name, outside := range maps.Clone(wanted) {
		visit(name, outside, inEvents[name])
	}
	var out []*wireStruct
	for _, s := range order {
		var is bool
		if s.outside, is = wanted[s.name]; is {
			s.event = inEvents[s.name]
			out = append(out, s)
		}
	}
	return out, nil
}

func fields(st *ast.StructType) []field {
	var out []field
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		name, opts, _ := strings.Cut(tag.Get("json"), ",")
		for _, n := range f.Names {
			out = append(out, field{n.Name, typeName(f.Type), name, opts != "", tag.Get("is")})
		}
	}
	return out
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.ArrayType:
		return "[]" + typeName(e.Elt)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	}
	return "?"
}
