package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := generate(filepath.Join(root, "..", "events"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not what package events calls for: run go generate ./schemas", name)
		}
	}
	on, err := filepath.Glob(filepath.Join(root, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range on {
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if files[name] == nil {
			t.Errorf("%s is left over", name)
		}
	}
}
