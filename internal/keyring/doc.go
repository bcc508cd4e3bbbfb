// Package keyring holds the secrets of one installation as files, one secret a
// file, so that a person can see, copy and withdraw each of them.
//
//	lifecycle-log.nk      NATS users: the seed of an nkey, in the form that
//	lifecycle-bus.nk      `nats --nkey FILE` and other NATS tools read
//	lifecycle-trim.nk
//	gateway-<name>.nk
//	prefill-<name>.nk
//	decode-<name>.nk
//	operator.nk
//	auditor.nk
//	auditor-bus.nk
//	eraser.nk
//	admin.nk
//	log-mac.key           32 bytes in hex: authenticates what lifecycle stores
//	digest-secret.key     32 bytes in hex: key of the digests of all tenants without one
//	tenants/<name>.key    32 bytes in hex: key of one tenant's digests and disclosures
//	grant.pem             Ed25519: signs the rights to pull KV
//	grant.pub.pem         its public half, for workers on other machines
//	audit.pem             Ed25519: signs the tree of the log
//	audit.pub.pem         its public half
//	audit-readers         who may read entries and receipts from the auditor: a
//	                      line each, a name and the SHA-256 of its token in hex
//	audit-token           the token of the reader that Open writes there first
//	prefill-<name>.pem    Ed25519: a worker's identity on the data plane
//	decode-<name>.pem
//
// [Open] creates what is missing and never overwrites: a lost log key cannot be
// told from a forged log, and a changed digest secret orphans every digest.
// Tenants' keys are made when a tenant is, and are the only ones that are ever
// destroyed.
// [Load] creates nothing; a machine that runs one part holds that part's files
// and no others. Files are refused when others may read them.
//
// Who needs what:
//
//	lifecycle  lifecycle-log, lifecycle-bus, log-mac, digest-secret, tenants/, grant;
//	           with a retention lifecycle-trim and audit.pub
//	gateway    gateway-<name>, digest-secret, tenants/
//	worker     <role>-<name>.nk, <role>-<name>.pem, grant.pub
//	auditor    auditor.nk, auditor-bus.nk, log-mac, audit.pem, audit-readers
//	nats       every .nk file, or the configuration that it prints
package keyring
