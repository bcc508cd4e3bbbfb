package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Machine is where a run took place. What the system does not tell is empty.
type Machine struct {
	OS         string  `json:"os"`
	Kernel     string  `json:"kernel,omitempty"`
	CPU        string  `json:"cpu,omitempty"`
	CPUs       int     `json:"cpus"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	MemoryMB   int     `json:"memory_mb,omitempty"`
	FileSystem string  `json:"file_system,omitempty"` // of the data directory
	LoadBefore float64 `json:"load_before"`           // one-minute average; a busy machine measures its own business
	LoadAfter  float64 `json:"load_after"`
	// Fsync is a write of 4 KiB followed by fsync, on the data directory: what
	// no durable append can be quicker than.
	Fsync *Latency `json:"fsync"`
}

// Build is what was measured.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // the checkout differs from the commit
	Go       string `json:"go"`
}

func build(version string) Build {
	b := Build{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func machine(dir string) (Machine, error) {
	m := Machine{
		OS: runtime.GOOS + "/" + runtime.GOARCH, Kernel: line("/proc/sys/kernel/osrelease"),
		CPU: field("/proc/cpuinfo", "model name"), CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		FileSystem: fileSystem(dir), LoadBefore: loadAverage(),
	}
	if kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.MemoryMB = kb >> 10
	}
	var err error
	m.Fsync, err = fsync(dir, 200, 500*time.Millisecond)
	return m, err
}

// line is a file's first line; empty where there is no such file.
func line(path string) string {
	b, _ := os.ReadFile(path)
	s, _, _ := strings.Cut(string(b), "\n")
	return s
}

// field is the value of the first "name : value" line of a file.
func field(path, name string) string {
	b, _ := os.ReadFile(path)
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func loadAverage() float64 {
	first, _, _ := strings.Cut(line("/proc/loadavg"), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

// fileSystem is the kind of the mount that holds dir.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	b, _ := os.ReadFile("/proc/self/mounts")
	at, kind := "", ""
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) > 2 && len(f[1]) >= len(at) && (f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/")) {
			at, kind = f[1], f[2]
		}
	}
	return kind
}

// fsync measures n writes of a page, each with its fsync; fewer on a slow disk.
func fsync(dir string, n int, most time.Duration) (*Latency, error) {
	f, err := os.CreateTemp(dir, "fsync-*")
	if err != nil {
		return nil, fmt.Errorf("measure fsync: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var r Recorder
	page := make([]byte, 4096)
	for began := time.Now(); len(r.d) < n && (len(r.d) < 10 || time.Since(began) < most); {
		start := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, fmt.Errorf("measure fsync: %w", err)
		}
		if err := f.Sync(); err != nil {
			return nil, fmt.Errorf("measure fsync: %w", err)
		}
		r.Add(time.Since(start))
	}
	return r.Latency(), nil
}

// Usage is what a process has used so far.
type Usage struct {
	CPU     time.Duration `json:"cpu_ns"` // user and system
	PeakRSS int64         `json:"peak_rss_bytes"`
	GCs     uint64        `json:"gcs,omitempty"` // garbage collections
	// Of [rested] only.
	RSS  int64 `json:"rss_bytes,omitempty"`
	Heap int64 `json:"heap_bytes,omitempty"` // what is reachable
}

func usage() Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return Usage{} // it knows no other error than a wrong argument
	}
	unit := int64(1024)
	if runtime.GOOS == "darwin" {
		unit = 1
	}
	gcs := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(gcs)
	peak := int64(r.Maxrss) * unit
	// Linux counts into it what the process that started this one had at that time.
	status, _ := os.ReadFile("/proc/self/status") // elsewhere there is none
	if _, rest, ok := strings.Cut(string(status), "\nVmHWM:"); ok {
		if f := strings.Fields(rest); len(f) > 0 {
			if kb, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				peak = kb << 10
			}
		}
	}
	return Usage{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), PeakRSS: peak, GCs: gcs[0].Value.Uint64()}
}

// rested is the usage after what is garbage has been collected, and what is free
// given back to the system.
func rested() Usage {
	runtime.GC() // finalizers run after it, and let go of more
	debug.FreeOSMemory()
	u := usage()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap, u.RSS = int64(m.HeapAlloc), u.PeakRSS
	if f := strings.Fields(line("/proc/self/statm")); len(f) > 1 {
		if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			u.RSS = pages * int64(os.Getpagesize())
		}
	}
	return u
}

// freeDisk is how many bytes may still be written to the file system of dir.
func freeDisk(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(uint64(st.Bavail) * uint64(st.Bsize)), nil
}

// flush waits until what the system has not written yet is on disk. Otherwise
// whoever measures fsync next waits for it.
func flush() { syscall.Sync() }

// sizeOf is the size of the files below dir whose paths have part in them.
func sizeOf(dir, part string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil || d.IsDir() || !strings.Contains(path, part) {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
