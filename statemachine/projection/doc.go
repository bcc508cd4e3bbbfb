// Package projection is the read side: one row for each request, folded from
// the log into SQLite, for lists, searches and the console.
//
// Nothing is decided from it. It follows the log at its own pace and says how
// far it is ([View.Applied]); the same transaction that stores rows stores that
// position, so a crash anywhere costs at most the batch in flight, which is read
// again. The file holds no fact of its own: [Open] throws it away and begins
// again when its schema is another version's, and [Projection.Check] does so
// when it belongs to another log.
//
// A batch is folded in memory first and written once: a request that went
// through five events in one batch costs one row. Requests are ordered by their
// id, which begins with the time of admission, so a page of a list is a range of
// one index, whatever it is restricted by.
package projection
