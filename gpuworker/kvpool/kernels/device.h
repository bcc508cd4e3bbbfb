// What the kernels need of a device. The same source is compiled
//   by clang, without any CUDA SDK, to the PTX that is embedded;
//   by nvcc or nvrtc, for whoever wants a cubin or a profile;
//   as plain C++ with KV_HOST, one thread after the other, for the test driver.
#pragma once
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;
struct v2 { u64 a, b; };

#if defined(KV_HOST)

struct kv_dim { u32 x, y; };
static thread_local kv_dim kv_tid, kv_bid;
#define KV_KERNEL extern "C" void
#define KV_FN static inline
#define TID kv_tid.x
#define BIDX kv_bid.x
#define BIDY kv_bid.y
KV_FN v2 ld_stream(const u64 *p) { v2 r = {p[0], p[1]}; return r; }
KV_FN void st_stream(u64 *p, v2 v) { p[0] = v.a; p[1] = v.b; }
KV_FN v2 ld_meta(const u64 *p) { return ld_stream(p); }
KV_FN void reduce_add(u64 *dst, u64 v) { *dst += v; }
KV_FN void atomic_or(u64 *dst, u64 v) { *dst |= v; }
KV_FN void atomic_max(u64 *dst, u64 v) { if (v > *dst) *dst = v; }
KV_FN u32 popcount(u64 v) { return (u32)__builtin_popcountll(v); }

#else

#if defined(__clang__) && !defined(__CUDACC__) && !defined(__CUDA__)
#define KV_KERNEL extern "C" __attribute__((nvptx_kernel)) void
#define KV_FN static inline __attribute__((always_inline))
#define TID __nvvm_read_ptx_sreg_tid_x()
#define BIDX __nvvm_read_ptx_sreg_ctaid_x()
#define BIDY __nvvm_read_ptx_sreg_ctaid_y()
#else
#define KV_KERNEL extern "C" __global__ void
#define KV_FN static __device__ __forceinline__
#define TID threadIdx.x
#define BIDX blockIdx.x
#define BIDY blockIdx.y
#endif

// Volatile assembly stays where it is written: loads are issued before the
// verdict on them is known, and each once.
KV_FN v2 ld_stream(const u64 *p) {
  v2 r;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0,%1}, [%2];" : "=l"(r.a), "=l"(r.b) : "l"(p));
  return r;
}
KV_FN void st_stream(u64 *p, v2 v) {
  asm volatile("st.global.cs.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(v.a), "l"(v.b) : "memory");
}
// ld_meta reads a tag where all blocks agree on it, never from a stale line of L1.
KV_FN v2 ld_meta(const u64 *p) {
  v2 r;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(r.a), "=l"(r.b) : "l"(p) : "memory");
  return r;
}
KV_FN u64 shuffle_down(u64 v, u32 d) {
  u32 lo, hi, l2, h2;
  asm volatile("mov.b64 {%0,%1}, %2;" : "=r"(lo), "=r"(hi) : "l"(v));
  asm volatile("shfl.sync.down.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(l2) : "r"(lo), "r"(d));
  asm volatile("shfl.sync.down.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(h2) : "r"(hi), "r"(d));
  asm volatile("mov.b64 %0, {%1,%2};" : "=l"(v) : "r"(l2), "r"(h2));
  return v;
}
KV_FN void atomic_add(u64 *p, u64 v) { asm volatile("red.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
KV_FN void atomic_or(u64 *p, u64 v) { asm volatile("red.global.or.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
KV_FN void atomic_max(u64 *p, u64 v) { asm volatile("red.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
// reduce_add adds up a block's values. Whole warps must call it together.
KV_FN void reduce_add(u64 *dst, u64 v) {
#pragma unroll
  for (u32 d = 16; d; d >>= 1) v += shuffle_down(v, d);
  if ((TID & 31) == 0) atomic_add(dst, v);
}
KV_FN u32 popcount(u64 v) {
  u32 r;
  asm("popc.b64 %0, %1;" : "=r"(r) : "l"(v));
  return r;
}

#endif
