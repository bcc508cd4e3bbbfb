package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// hostDevice is the default of --device.
const hostDevice = "host"

func deviceFlag(f *pflag.FlagSet, device *string) {
	f.StringVar(device, "device", hostDevice, "where the KV pool lies: host, cuda or cuda:N (a binary built for CUDA), or interpreter (the GPU's kernels on the CPU)")
}

// checkHostMemory is checkMemory for a pool in host memory.
func checkHostMemory(device, flag string, tokens int, cfg engine.Config) error {
	if device != hostDevice {
		return nil
	}
	return checkMemory(flag, tokens, cfg)
}

// openPool makes a pool on a device, and what closes the device when nothing uses
// the pool any more.
func openPool(device string, cfg kvpool.Config) (*kvpool.Pool, func() error, error) {
	done := func() error { return nil }
	if device != "" && device != hostDevice {
		drv, err := kvpool.OpenDriver(device)
		if err != nil {
			return nil, nil, err
		}
		gpu, err := kvpool.NewGPU(drv, kvpool.GPUConfig{Pages: cfg.Pages, PageBytes: cfg.PageBytes})
		if err != nil {
			return nil, nil, errors.Join(err, drv.Close())
		}
		cfg.Device = gpu
		done = func() error { return errors.Join(gpu.Close(), drv.Close()) }
	}
	pool, err := kvpool.New(cfg)
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return pool, done, nil
}
