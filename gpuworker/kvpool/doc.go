// Package kvpool is the paged KV memory of one worker: who owns a page, since
// when, and what must be over before somebody else may have it.
//
// # Pages
//
// A pool is one slab of equal pages. Each page carries a tag: the owner (a
// request id), the boot epoch of the pool, and a generation. Generations come
// from one counter of the pool and are never used twice within an epoch; all
// pages of one allocation share one, so that a page list is short on the wire
// ([events.PageRun]) and a page of another allocation never passes for this
// one's, whoever the owner is.
//
//	         Alloc                Free               drained
//	free ───────────► held ───────────► draining ───────────► scrubbed ─► free
//	 ▲ poison         tag: owner,        readers and            poison,
//	 └ own generation epoch, generation  writers finish         next generation
//
// # Uses
//
// Whoever touches the bytes of an allocation is counted first. A [Pin] is a
// reader: it verifies tag and generation of every page it names and holds those
// pages still. A [Write] is a writer: an engine that fills pages, or a transfer
// that scatters received bytes. [Pool.Free] refuses further uses at once, and
// gives the pages back only after the uses in flight have ended: a page is
// never in the hands of two requests, however late a copy is.
//
// # Devices
//
// The pages lie in host memory or on a [GPU]. Either keeps a tag beside each page
// and looks at it inside every copy: the page table decides, and the memory is the
// second who knows. A GPU's driver is CUDA's, in a build with the tag cuda, or an
// interpreter of the same kernels; [SelfTest] is the suite of all of them.
//
// # Poison
//
// Free pages hold [Poison], which is NaN in every float format an engine may
// store. A page that is read without having been written for its request makes
// attention fail instead of answering from somebody else's text; a zeroed page
// would be legal arithmetic and a silently wrong answer.
//
// # Accounts
//
// Where an engine keeps the KV to itself, the pool is an account of the engine's
// memory: pages without bytes (Config.PageBytes is 0), with owners, generations,
// reservations and a line to wait in like any others. It never promises more
// than the engine has; it can neither scrub nor sum what lies there.
package kvpool
