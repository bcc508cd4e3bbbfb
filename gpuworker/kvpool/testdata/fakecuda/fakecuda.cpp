// A pretended libcuda.so.1: the driver calls that pdgate makes, over host memory,
// with the kernels compiled for the CPU from the source that the PTX is made of. The
// binary built with -tags cuda runs on it where there is no GPU.
//
//   FAKECUDA_FAIL=N   call N, counted from 1 over all calls that can fail, and every
//                     later one but those that give something back, fails as after a
//                     fault in a kernel
//   FAKECUDA_LOG=FILE what failed, and what was not given back at the end
//   FAKECUDA_NODEV=1  there is no GPU
#define KV_HOST 1
#include "../../kernels/kernels.cu"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

typedef int R;
enum { OK = 0, INVALID = 1, OOM = 2, NODEV = 100, BADDEV = 101, BADIMAGE = 200, NOCTX = 201, NOTFOUND = 500, FAILED = 719 };

static std::mutex mu;
static std::map<u64, size_t> live, pinned;
static thread_local void *current;
static int context_, module_, stream_, event_;
static long calls;
static char failing[64]; // FAKECUDA_FAIL as it was when counting began
static bool broken;

static void note(const char *what, long n) {
  const char *path = getenv("FAKECUDA_LOG");
  if (!path) return;
  if (FILE *f = fopen(path, "a")) {
    fprintf(f, "%s %ld\n", what, n);
    fclose(f);
  }
}
static R fail(const char *name) {
  const char *e = getenv("FAKECUDA_FAIL");
  std::lock_guard<std::mutex> g(mu);
  if (!e) e = "";
  if (strcmp(failing, e)) { // another run in this process
    snprintf(failing, sizeof failing, "%s", e);
    calls = 0, broken = false;
  }
  if (!*e) return OK;
  if (++calls == atol(e)) {
    note(name, calls);
    broken = true;
  }
  return broken ? FAILED : OK;
}
static bool inside(u64 p, size_t n) {
  std::lock_guard<std::mutex> g(mu);
  auto it = live.upper_bound(p);
  if (it == live.begin()) return false;
  --it;
  return p >= it->first && p + n <= it->first + it->second;
}

#define X extern "C" __attribute__((visibility("default"))) R
#define MAYFAIL                        \
  if (R r = fail(__func__)) return r; \
  if (!current) return NOCTX

X cuInit(unsigned) { return getenv("FAKECUDA_NODEV") ? NODEV : OK; }
X cuGetErrorName(R r, const char **s) {
  switch (r) {
    case INVALID: *s = "CUDA_ERROR_INVALID_VALUE"; return OK;
    case OOM: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case NODEV: *s = "CUDA_ERROR_NO_DEVICE"; return OK;
    case BADDEV: *s = "CUDA_ERROR_INVALID_DEVICE"; return OK;
    case BADIMAGE: *s = "CUDA_ERROR_INVALID_IMAGE"; return OK;
    case NOCTX: *s = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
    case NOTFOUND: *s = "CUDA_ERROR_NOT_FOUND"; return OK;
    case FAILED: *s = "CUDA_ERROR_LAUNCH_FAILED"; return OK;
  }
  return INVALID;
}
X cuDeviceGetCount(int *n) {
  if (R r = fail(__func__)) return r;
  *n = 2;
  return OK;
}
X cuDeviceGet(int *d, int ordinal) {
  if (R r = fail(__func__)) return r;
  *d = ordinal;
  return ordinal < 2 ? OK : BADDEV;
}
X cuDeviceGetName(char *b, int n, int d) {
  if (R r = fail(__func__)) return r;
  snprintf(b, n, "pretended GPU %d", d);
  return OK;
}
X cuDevicePrimaryCtxRetain(void **c, int) {
  if (R r = fail(__func__)) return r;
  *c = &context_;
  return OK;
}
X cuDevicePrimaryCtxRelease_v2(int) {
  std::lock_guard<std::mutex> g(mu);
  if (!live.empty() || !pinned.empty()) note("leak", (long)(live.size() + pinned.size()));
  return OK;
}
X cuCtxSetCurrent(void *c) {
  if (R r = fail(__func__)) return r;
  current = c;
  return OK;
}
X cuModuleLoadData(void **m, const void *image) {
  MAYFAIL;
  if (!strstr((const char *)image, ".version")) return BADIMAGE;
  *m = &module_;
  return OK;
}
X cuModuleUnload(void *) { return OK; }

typedef void (*Call)(const u64 *);
struct Kernel {
  const char *name;
  Call call;
};
static const Kernel table[] = {
    {"kv_gather", [](const u64 *a) { kv_gather(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]); }},
    {"kv_finalize", [](const u64 *a) { kv_finalize(a[0], a[1], a[2], a[3], a[4], a[5], a[6]); }},
    {"kv_scatter", [](const u64 *a) { kv_scatter(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]); }},
    {"kv_sum", [](const u64 *a) { kv_sum(a[0], a[1], a[2], a[3], a[4], a[5], a[6]); }},
    {"kv_scrub", [](const u64 *a) { kv_scrub(a[0], a[1], a[2], a[3], a[4], a[5], a[6]); }},
    {"kv_audit", [](const u64 *a) { kv_audit(a[0], a[1], a[2], a[3], a[4], a[5]); }},
    {"kv_retag", [](const u64 *a) { kv_retag(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]); }},
    {"bench_gather", [](const u64 *a) { bench_gather(a[0], a[1], a[2], a[3]); }},
    {"ref_fill", [](const u64 *a) { ref_fill(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]); }},
    {"ref_scan", [](const u64 *a) { ref_scan(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14]); }},
};
static const int params[] = {9, 7, 9, 7, 7, 6, 9, 4, 10, 15};

X cuModuleGetFunction(void **f, void *, const char *name) {
  MAYFAIL;
  for (const Kernel &k : table)
    if (!strcmp(k.name, name)) {
      *f = (void *)&k;
      return OK;
    }
  return NOTFOUND;
}
X cuStreamCreate(void **s, unsigned) {
  MAYFAIL;
  *s = &stream_;
  return OK;
}
X cuStreamDestroy_v2(void *) { return OK; }
X cuStreamSynchronize(void *) {
  MAYFAIL;
  return OK;
}
X cuEventCreate(void **e, unsigned) {
  MAYFAIL;
  *e = &event_;
  return OK;
}
X cuEventDestroy_v2(void *) { return OK; }
X cuEventRecord(void *, void *) {
  MAYFAIL;
  return OK;
}
X cuEventElapsedTime(float *ms, void *, void *) {
  MAYFAIL;
  *ms = 1;
  return OK;
}
X cuMemAlloc_v2(u64 *p, size_t n) {
  MAYFAIL;
  void *q = nullptr;
  if (!n || posix_memalign(&q, 512, n)) return OOM;
  memset(q, 0xcd, n);
  *p = (u64)q;
  std::lock_guard<std::mutex> g(mu);
  live[*p] = n;
  return OK;
}
X cuMemFree_v2(u64 p) {
  std::lock_guard<std::mutex> g(mu);
  if (!live.erase(p)) return INVALID;
  free((void *)p);
  return OK;
}
X cuMemHostAlloc(void **p, size_t n, unsigned) {
  MAYFAIL;
  if (!n || posix_memalign(p, 4096, n)) return OOM;
  memset(*p, 0xcd, n);
  std::lock_guard<std::mutex> g(mu);
  pinned[(u64)*p] = n;
  return OK;
}
X cuMemFreeHost(void *p) {
  std::lock_guard<std::mutex> g(mu);
  if (!pinned.erase((u64)p)) return INVALID;
  free(p);
  return OK;
}
X cuMemcpyHtoDAsync_v2(u64 d, const void *s, size_t n, void *) {
  MAYFAIL;
  if (!inside(d, n)) return INVALID;
  memcpy((void *)d, s, n);
  return OK;
}
X cuMemcpyDtoHAsync_v2(void *d, u64 s, size_t n, void *) {
  MAYFAIL;
  if (!inside(s, n)) return INVALID;
  memcpy(d, (void *)s, n);
  return OK;
}
X cuMemcpyDtoDAsync_v2(u64 d, u64 s, size_t n, void *) {
  MAYFAIL;
  if (!inside(d, n) || !inside(s, n)) return INVALID;
  memmove((void *)d, (void *)s, n);
  return OK;
}
X cuMemsetD32Async(u64 d, unsigned v, size_t n, void *) {
  MAYFAIL;
  if (!inside(d, 4 * n)) return INVALID;
  for (size_t i = 0; i < n; i++) ((u32 *)d)[i] = v;
  return OK;
}
X cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *, void **p, void **) {
  MAYFAIL;
  if (!gx || !gy || gy > 65535 || gz != 1 || bx != THREADS || by != 1 || bz != 1 || shared) return INVALID;
  const Kernel *k = (const Kernel *)f;
  u64 args[15];
  for (int i = 0; i < params[k - table]; i++) args[i] = *(u64 *)p[i];
  for (u32 y = 0; y < gy; y++)
    for (u32 x = 0; x < gx; x++)
      for (u32 t = 0; t < THREADS; t++) {
        kv_tid.x = t, kv_bid.x = x, kv_bid.y = y;
        k->call(args);
      }
  return OK;
}
