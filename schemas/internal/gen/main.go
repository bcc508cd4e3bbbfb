// Command gen writes the files of package schemas that follow from package
// events: a JSON Schema for everything that crosses a wire, and the AsyncAPI
// document of the NATS API. Types, words, subjects and who may send what come
// from the Go code; descriptions come from its comments.
//
// Run it by go generate in package schemas; its test fails while a committed
// file differs from what it would write.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	files, err := generate(filepath.Join("..", "events"))
	if err != nil {
		log.Fatal(err)
	}
	for name, b := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// generate returns the generated files by their names below package schemas.
func generate(events string) (map[string][]byte, error) {
	docs, err := loadDocs(events)
	if err != nil {
		return nil, err
	}
	files, err := jsonSchemas(docs)
	if err != nil {
		return nil, err
	}
	files["asyncapi.yaml"], err = asyncAPI(docs)
	return files, err
}
