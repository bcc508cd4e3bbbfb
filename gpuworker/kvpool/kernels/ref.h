// The engine "ref" over the pages of a pool: what it does to every token, in
// integers, so that the result is the host's bit for bit. The layout is
// engine.refLayout: 64 keys of 8 words, then 64 values of 16 words.
#pragma once
#include "pages.h"

#define PAGE_TOKENS 64u
#define HEADS 7u
#define KEY_WORDS 8u
#define VALUE_WORDS 16u
#define WINDOW 40u
#define GAIN 12u
#define UNIT_SCALE 0x3f800000ull
#define REF_ODD (1ull << 32) /* in a scan's flags; below are the status bits */

KV_FN u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Write tokens [first, first+count), a thread each. text holds the 40 bytes before
// the first token, then the tokens; codes are the value vectors' signs. job[0] is
// the page of token first.
KV_KERNEL ref_fill(u64 pool, u64 meta, u64 npages, u64 vectors, u64 jobs, u64 text, u64 codes, u64 first, u64 count, u64 out) {
  u64 i = (u64)BIDX * THREADS + TID;
  if (i >= count) return;
  u64 at = first % PAGE_TOKENS + i, slot = at % PAGE_TOKENS;
  const u64 *job = (const u64 *)jobs + 4 * (at / PAGE_TOKENS);
  u64 bad = verdict((const u64 *)meta, job[0], npages, job[2], job[3]);
  if (bad) {
    atomic_or((u64 *)out, bad);
    return;
  }
  const u8 *token = (const u8 *)text + WINDOW + i;
  u64 h[5];
#pragma unroll
  for (u32 w = 0; w < 5; w++) {
    h[w] = 0;
#pragma unroll
    for (u32 b = 0; b < 8; b++) h[w] |= (u64)token[-1 - (int)(8 * w + b)] << (8 * b);
  }
  u64 k[KEY_WORDS];
  k[0] = mix(mix(1) ^ (h[0] & 0xff));
  k[1] = mix(mix(3) ^ (h[0] & 0xffffff));
  k[2] = mix(mix(5) ^ (h[0] & 0xffffffffffull));
  k[3] = mix(mix(8) ^ h[0]);
  k[4] = mix(mix(mix(12) ^ h[0]) ^ (h[1] & 0xffffffff));
  k[5] = mix(mix(mix(mix(20) ^ h[0]) ^ h[1]) ^ (h[2] & 0xffffffff));
  k[6] = mix(mix(mix(mix(mix(mix(40) ^ h[0]) ^ h[1]) ^ h[2]) ^ h[3]) ^ h[4]);
  k[7] = UNIT_SCALE;
  u64 *page = (u64 *)pool + 2 * vectors * job[0];
#pragma unroll
  for (u32 w = 0; w < KEY_WORDS; w += 2) {
    v2 v;
    v.a = k[w];
    v.b = k[w + 1];
    st_stream(page + KEY_WORDS * slot + w, v);
  }
  u64 code = ((const u64 *)codes)[*token];
  page += KEY_WORDS * PAGE_TOKENS + VALUE_WORDS * slot;
#pragma unroll
  for (u32 w = 0; w < VALUE_WORDS; w += 2) { // a dimension is -1, or 1 where its bit is set
    v2 v;
    v.a = 0xbf800000bf800000ull ^ ((code >> (2 * w) & 1) << 31) ^ ((code >> (2 * w + 1) & 1) << 63);
    v.b = 0xbf800000bf800000ull ^ ((code >> (2 * w + 2) & 1) << 31) ^ ((code >> (2 * w + 3) & 1) << 63);
    st_stream(page + w, v);
  }
}

// q·k of one step over all tokens, a thread each, job i being page i:
// out[i] = { best score, flags }. A page that begins in the prompt is covered to
// the prompt's end, another to the last token. REF_ODD says that some key's scale
// is not one.
KV_KERNEL ref_scan(u64 pool, u64 meta, u64 npages, u64 vectors, u64 jobs, u64 prompt, u64 tokens, u64 outs,
                   u64 q0, u64 q1, u64 q2, u64 q3, u64 q4, u64 q5, u64 q6) {
  u64 at = (u64)BIDX * THREADS + TID;
  u64 end = at - at % PAGE_TOKENS < prompt ? prompt : tokens;
  if (at >= end) return;
  const u64 *job = (const u64 *)jobs + 4 * (at / PAGE_TOKENS);
  u64 *out = (u64 *)outs + 2 * (at / PAGE_TOKENS);
  u64 bad = verdict((const u64 *)meta, job[0], npages, job[2], job[3]);
  if (bad) {
    atomic_or(&out[1], bad);
    return;
  }
  const u64 *key = (const u64 *)pool + 2 * vectors * job[0] + KEY_WORDS * (at % PAGE_TOKENS);
  v2 a = ld_stream(key), b = ld_stream(key + 2), c = ld_stream(key + 4), d = ld_stream(key + 6);
  if (d.b != UNIT_SCALE) atomic_or(&out[1], REF_ODD);
  u32 n[HEADS] = {popcount(a.a ^ q0), popcount(a.b ^ q1), popcount(b.a ^ q2), popcount(b.b ^ q3),
                  popcount(c.a ^ q4), popcount(c.b ^ q5), popcount(d.a ^ q6)};
  u64 score = 0, open = 1; // a head counts only when all shorter ones do
#pragma unroll
  for (u32 j = 0; j < HEADS; j++) {
    open &= n[j] < GAIN;
    score += open ? GAIN - n[j] : 0;
  }
  if (score) atomic_max(&out[0], score);
}
