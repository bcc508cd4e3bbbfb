// Kernels over the pages of a pool. All parameters are 64 bits wide: cu's Launch
// copies 8 bytes a parameter.
//
//   meta[page] = { owner tag, generation }              owner 0: the page is free
//   job[i]     = { page, staging slot, wanted owner, wanted generation }
//   out[i]     = { status, checksum }
//
// Jobs of one launch are consecutive pages of one copy: job i's words are counted
// from i whole pages on. grid.x covers a page in chunks of 32 KiB, grid.y the
// jobs, at most 65535 of them; a block has 256 threads.
#pragma once
#include "device.h"

#define ST_OWNER 1ull
#define ST_GENERATION 2ull
#define ST_RANGE 4ull
#define ST_TORN 8ull
#define ST_SLOT 16ull

#define UNROLL 8u
#define THREADS 256u
#define CHUNK (UNROLL * THREADS) /* vectors of 16 bytes that a block moves */
#define VECTOR(k) ((u64)BIDX * CHUNK + TID + (k) * THREADS)

// The checksum of kvpool.Sum.
#define KG 0x9E3779B97F4A7C15ull
#define KM 0x9FB21C651E98DF25ull
KV_FN u64 term(u64 word, u64 i, u64 key) {
  u64 x = (word ^ (key + i * KG)) * KM;
  return x ^ (x >> 32);
}
KV_FN u64 terms(v2 r, u64 v, u64 key) { return term(r.a, 2 * v, key) + term(r.b, 2 * v + 1, key); }

// verdict on one page: 0 where it carries the wanted tag. Nobody may want the tag
// of free pages.
KV_FN u64 verdict(const u64 *meta, u64 page, u64 npages, u64 owner, u64 generation) {
  if (page >= npages) return ST_RANGE;
  v2 m = ld_meta(meta + 2 * page);
  return (m.a != owner || owner == 0 ? ST_OWNER : 0) | (m.b != generation ? ST_GENERATION : 0);
}
KV_FN u64 verdict(const u64 *meta, const u64 *job, u64 npages, u64 nslots) {
  return verdict(meta, job[0], npages, job[2], job[3]) | (job[1] >= nslots ? ST_SLOT : 0);
}

// Pages out into staging: verified, copied and summed in one pass. Loads begin
// before the verdict, from page 0 where the job names none; nothing is stored
// unless it is good.
KV_KERNEL kv_gather(u64 pool, u64 meta, u64 npages, u64 vectors, u64 jobs, u64 stage, u64 nslots, u64 outs, u64 key) {
  const u64 *job = (const u64 *)jobs + 4 * (u64)BIDY;
  u64 *out = (u64 *)outs + 2 * (u64)BIDY;
  const u64 *src = (const u64 *)pool + 2 * vectors * (job[0] < npages ? job[0] : 0);
  u64 *dst = (u64 *)stage + 2 * vectors * job[1];
  v2 r[UNROLL];
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++) {
    r[k].a = r[k].b = 0;
    if (VECTOR(k) < vectors) r[k] = ld_stream(src + 2 * VECTOR(k));
  }
  u64 bad = verdict((const u64 *)meta, job, npages, nslots);
  if (bad) {
    if (TID == 0) atomic_or(&out[0], bad);
    return;
  }
  key += (u64)BIDY * 2 * vectors * KG;
  u64 sum = 0;
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) {
      st_stream(dst + 2 * VECTOR(k), r[k]);
      sum += terms(r[k], VECTOR(k), key);
    }
  reduce_add(&out[1], sum);
}

// The same copy without verdict and sum: the yardstick of a benchmark.
KV_KERNEL bench_gather(u64 pool, u64 vectors, u64 jobs, u64 stage) {
  const u64 *job = (const u64 *)jobs + 4 * (u64)BIDY;
  const u64 *src = (const u64 *)pool + 2 * vectors * job[0];
  u64 *dst = (u64 *)stage + 2 * vectors * job[1];
  v2 r[UNROLL];
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) r[k] = ld_stream(src + 2 * VECTOR(k));
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) st_stream(dst + 2 * VECTOR(k), r[k]);
}

// The second verdict, after the copy; stream order is the fence between the two.
// A page that changed hands meanwhile is torn: some chunks passed and some did
// not. The slot of every bad job is wiped, whichever verdict found it.
KV_KERNEL kv_finalize(u64 meta, u64 npages, u64 vectors, u64 jobs, u64 stage, u64 nslots, u64 outs) {
  const u64 *job = (const u64 *)jobs + 4 * (u64)BIDY;
  u64 *out = (u64 *)outs + 2 * (u64)BIDY;
  u64 bad = verdict((const u64 *)meta, job, npages, nslots);
  u64 first = ld_meta(out).a;
  if (!bad && !first) return;
  if (TID == 0 && bad && !first) atomic_or(&out[0], bad | ST_TORN);
  if (job[1] >= nslots) return;
  u64 *dst = (u64 *)stage + 2 * vectors * job[1];
  v2 zero;
  zero.a = zero.b = 0;
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) st_stream(dst + 2 * VECTOR(k), zero);
}

// Staging into pages: a page that does not carry the wanted tag is left alone. The
// sum is over what was stored.
KV_KERNEL kv_scatter(u64 pool, u64 meta, u64 npages, u64 vectors, u64 jobs, u64 stage, u64 nslots, u64 outs, u64 key) {
  const u64 *job = (const u64 *)jobs + 4 * (u64)BIDY;
  u64 *out = (u64 *)outs + 2 * (u64)BIDY;
  u64 bad = verdict((const u64 *)meta, job, npages, nslots);
  if (bad) {
    if (TID == 0) atomic_or(&out[0], bad);
    return;
  }
  const u64 *src = (const u64 *)stage + 2 * vectors * job[1];
  u64 *dst = (u64 *)pool + 2 * vectors * job[0];
  key += (u64)BIDY * 2 * vectors * KG;
  u64 sum = 0;
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) {
      v2 r = ld_stream(src + 2 * VECTOR(k));
      st_stream(dst + 2 * VECTOR(k), r);
      sum += terms(r, VECTOR(k), key);
    }
  reduce_add(&out[1], sum);
}

// Sum of pages where they lie.
KV_KERNEL kv_sum(u64 pool, u64 meta, u64 npages, u64 vectors, u64 jobs, u64 outs, u64 key) {
  const u64 *job = (const u64 *)jobs + 4 * (u64)BIDY;
  u64 *out = (u64 *)outs + 2 * (u64)BIDY;
  u64 bad = verdict((const u64 *)meta, job[0], npages, job[2], job[3]);
  if (bad) {
    if (TID == 0) atomic_or(&out[0], bad);
    return;
  }
  const u64 *src = (const u64 *)pool + 2 * vectors * job[0];
  key += (u64)BIDY * 2 * vectors * KG;
  u64 sum = 0;
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) sum += terms(ld_stream(src + 2 * VECTOR(k)), VECTOR(k), key);
  reduce_add(&out[1], sum);
}

// Overwrite listed pages; one that has an owner is left alone and reported.
KV_KERNEL kv_scrub(u64 pool, u64 meta, u64 npages, u64 vectors, u64 list, u64 pattern, u64 outs) {
  u64 page = ((const u64 *)list)[BIDY];
  u64 bad = page >= npages ? ST_RANGE : ld_meta((const u64 *)meta + 2 * page).a != 0 ? ST_OWNER : 0;
  if (bad) {
    if (TID == 0) atomic_or((u64 *)outs + BIDY, bad);
    return;
  }
  u64 *dst = (u64 *)pool + 2 * vectors * page;
  v2 p;
  p.a = p.b = pattern;
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors) st_stream(dst + 2 * VECTOR(k), p);
}

// Proof of a scrub: out[i] counts the words of a page that differ from the pattern.
// A page that does not exist counts as one such word a thread.
KV_KERNEL kv_audit(u64 pool, u64 npages, u64 vectors, u64 list, u64 pattern, u64 outs) {
  u64 page = ((const u64 *)list)[BIDY];
  u64 n = page < npages ? 0 : 1;
  const u64 *src = (const u64 *)pool + 2 * vectors * (page < npages ? page : 0);
#pragma unroll
  for (u32 k = 0; k < UNROLL; k++)
    if (VECTOR(k) < vectors && page < npages) {
      v2 r = ld_stream(src + 2 * VECTOR(k));
      n += (r.a != pattern) + (r.b != pattern);
    }
  reduce_add((u64 *)outs + BIDY, n);
}

// Give listed pages a tag, each of which must carry the tag that the caller knows:
// a page that has another holder keeps it. One thread a page.
KV_KERNEL kv_retag(u64 meta, u64 npages, u64 list, u64 count, u64 owner, u64 generation, u64 to_owner, u64 to_generation, u64 out) {
  u64 i = (u64)BIDX * THREADS + TID;
  if (i >= count) return;
  u64 page = ((const u64 *)list)[i];
  u64 bad = ST_RANGE;
  if (page < npages) {
    v2 m = ld_meta((const u64 *)meta + 2 * page);
    bad = (m.a != owner ? ST_OWNER : 0) | (m.b != generation ? ST_GENERATION : 0);
  }
  if (bad) {
    atomic_or((u64 *)out, bad);
    return;
  }
  v2 to;
  to.a = to_owner;
  to.b = to_generation;
  st_stream((u64 *)meta + 2 * page, to);
}
