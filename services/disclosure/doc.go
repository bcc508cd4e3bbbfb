// Package disclosure keeps the plain values of personal fields, which the log
// holds as salted digests only.
//
// A message of the stream PDGATE_DISCLOSURES, on pdgate.disclosed.<tenant>.<request
// id>, holds the fields of one request:
//
//	{"event":"01a2….1","fields":[{"field":"user","box":"…"}]}
//
// Each box is sealed by AES-256-GCM under a key that is derived from the tenant's
// key and the event's id; tenant, event and field are authenticated with it. So a
// value cannot be moved to another request or field, and whoever has the stream
// and not the key has nothing. A salt is not stored: the tenant's key makes it
// again.
//
// The stream lies in a NATS account of its own. Gateways may add to it, the user
// eraser may read and purge it, and lifecycle makes it; nobody else can name it.
// What a gateway's neighbours might smuggle in through a reply subject does not
// open, and is passed over.
package disclosure
