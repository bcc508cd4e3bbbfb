// Package projection is the read side: one row for each request, folded from
// the log into SQLite, for lists, searches and the console.
//
// Nothing is decided from it. The service's follower offers it each envelope that
// it passes, with the events decoded ([Projection.Offer]); what it has no room for,
// or missed, it reads from the log by itself. It says how far it is
// ([View.Applied]), which under load is up to half a second and the time of one
// write behind the log; the same transaction that stores rows stores that
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
