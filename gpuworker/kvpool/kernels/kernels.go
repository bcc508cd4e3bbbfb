// Package kernels holds what runs on a GPU: one source, and the PTX that clang
// made of it, which is what is embedded and what every test runs. build.sh makes
// it again, byte for byte.
package kernels

import _ "embed"

// PTX is the compiled module.
//
//go:embed kernels.ptx
var PTX string

// Threads is the size of every block.
const Threads = 256

// Chunk is how many bytes of a page one block of a page kernel moves.
const Chunk = 8 * Threads * 16

// MaxJobs is the most pages that one launch of a page kernel takes.
const MaxJobs = 65535

// Status bits of a page.
const (
	StatusOwner      = 1 << iota // the page's tag has another owner
	StatusGeneration             // … or another generation
	StatusRange                  // there is no such page
	StatusTorn                   // the tag changed between the copy and the second look
	StatusSlot                   // there is no such place in the staging
)

// ScanOdd is ref_scan's flag of a page with a key whose scale is not one.
const ScanOdd = 1 << 32

// Params is the number of parameters of each kernel, all of 8 bytes.
var Params = map[string]int{
	"kv_gather": 9, "kv_finalize": 7, "kv_scatter": 9, "kv_sum": 7, "kv_scrub": 7, "kv_audit": 6, "kv_retag": 9,
	"bench_gather": 4,
	"ref_fill":     10, "ref_scan": 15,
}
