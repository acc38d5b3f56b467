package config

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGood configures the storage of the last accepted configuration, with which Envoy starts while no control
// plane answers.
type LastGood struct {
	// Dirs are tried in order; if empty, nothing is stored on disk.
	Dirs     []string
	MaxBytes int64
}

const (
	// podData is an on-disk volume that the injector mounts. The volume of configPath is in memory.
	podData       = "/var/lib/istio/data"
	lastGoodInDir = "last-good"
	// noDir, in place of a directory, disables the storage.
	noDir = "none"
)

func (r *resolver) resolveLastGood() {
	c := &r.config.LastGood
	keep := r.env.boolean("lastGood.keep", "KEEP_CONFIGURATION", true)
	c.MaxBytes = parseVariable(r.env, "lastGood.maxBytes", "KEEP_CONFIGURATION_MAX_BYTES", int64(lastgood.DefaultMaxBytes),
		"write a number of bytes, as 268435456", bytesParser(1))
	otherwise := r.lastGoodDirs()
	dir := r.env.text("lastGood.directory", "KEEP_CONFIGURATION_DIR", otherwise[0], sourceDefault)
	if !keep || r.config.Envoy.Disabled {
		return
	}
	switch dir {
	case noDir:
	case otherwise[0]:
		c.Dirs = otherwise
	default:
		c.Dirs = []string{dir}
	}
}

// bytesParser returns a parser of byte counts that are at least least.
func bytesParser(least int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && n < least {
			err = strconv.ErrRange
		}
		return n, err
	}
}

func (r *resolver) lastGoodDirs() []string {
	dirs := []string{filepath.Join(r.config.Proxy.GetConfigPath(), lastGoodInDir)}
	if r.env.vars["KUBERNETES_SERVICE_HOST"] == "" {
		return dirs
	}
	if info, err := os.Stat(podData); err != nil || !info.IsDir() {
		return dirs
	}
	return append([]string{filepath.Join(podData, lastGoodInDir)}, dirs...)
}
