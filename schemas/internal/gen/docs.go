package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// docs holds the comments of package events: of types by name, of fields by
// "Type.Field".
type docs map[string]string

func loadDocs(dir string) (docs, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	d := make(docs)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_gen.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range f.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				t := spec.(*ast.TypeSpec)
				d[t.Name.Name] = text(t.Name.Name, g.Doc)
				if st, ok := t.Type.(*ast.StructType); ok {
					for _, field := range st.Fields.List {
						for _, n := range field.Names {
							d[t.Name.Name+"."+n.Name] = text(n.Name, field.Comment)
						}
					}
				}
			}
		}
	}
	return d, nil
}

// text makes a description of a Go comment: without the name it starts with,
// without links' brackets, as one line.
func text(name string, c *ast.CommentGroup) string {
	s := strings.Join(strings.Fields(c.Text()), " ")
	s = strings.NewReplacer("[", "", "]", "").Replace(s)
	s = strings.TrimPrefix(s, name+" ")
	if s != "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return s
}
