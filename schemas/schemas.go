// Package schemas holds the machine-readable contracts of pdgate's boundaries,
// as files that are embedded in the binary:
//
//	events/<type>.json     JSON Schema 2020-12 of a recorded event, with its CloudEvents envelope
//	commands/<command>.json    of a command's payload
//	queries/<query>.json   of a query, and queries/<query>.reply.json of its answer
//	messages/<name>.json   of answers, work items, heartbeats, grants and prompt requests
//	asyncapi.yaml          AsyncAPI 3.0: the NATS API, with who may send what
//	openapi.yaml           OpenAPI 3.0: the gateway's HTTP API
//
// The schemas are for other people's tools, for tests and for imports. Package
// events itself checks by hand, at a hundredth of a validator's cost, and in two
// points more strictly than a schema can say: canonical form, and page lists
// that name each page once.
//
// All but openapi.yaml are generated from package events, so a type that changes
// without its contract fails a test.
package schemas

//go:generate go run ./internal/gen

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

// FS holds all files under the names above.
//
//go:embed events/*.json commands/*.json queries/*.json messages/*.json asyncapi.yaml openapi.yaml
var FS embed.FS

// Names lists the contracts in the order of the alphabet, as [Read] takes them:
// without ".json" or ".yaml", for instance "commands/admit" and "openapi".
func Names() []string {
	var names []string
	// Walking an embedded tree cannot fail.
	_ = fs.WalkDir(FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimSuffix(name, path.Ext(name)))
		}
		return err
	})
	return names
}

// Read returns one contract. The error of a name that is not there is
// [fs.ErrNotExist].
func Read(name string) ([]byte, error) {
	b, err := FS.ReadFile(name + ".json")
	if err != nil {
		if yaml, yamlErr := FS.ReadFile(name + ".yaml"); yamlErr == nil {
			return yaml, nil
		}
	}
	return b, err
}
