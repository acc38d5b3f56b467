package config

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGood configures the storage of the last accepted configuration. Envoy starts with it if no control plane responds.
type LastGood struct {
	// Dirs lists the candidate directories in order of preference. If the list is empty, the agent stores nothing on
	// disk.
	Dirs     []string
	MaxBytes int64
}

const (
	// podData is the path of a volume on disk that Istio's injector mounts. The agent prefers it to configPath, whose
	// volume is in memory.
	podData       = "/var/lib/istio/data"
	lastGoodInDir = "last-good"
	// noDir is the value of KEEP_CONFIGURATION_DIR that disables the storage.
	noDir = "none"
)

func (r *resolver) resolveLastGood() {
	c := &r.config.LastGood
	keep := r.env.boolean("lastGood.keep", "KEEP_CONFIGURATION", true)
	c.MaxBytes = parseVariable(r.env, "lastGood.maxBytes", "KEEP_CONFIGURATION_MAX_BYTES", int64(lastgood.DefaultMaxBytes),
		"write a number of bytes, such as 268435456", bytesParser(1))
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

// bytesParser returns a function that parses a number of bytes. The function fails if the number is less than minimum.
func bytesParser(minimum int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && n < minimum {
			err = strconv.ErrRange
		}
		return n, err
	}
}

func (r *resolver) lastGoodDirs() []string {
	dirs := []string{filepath.Join(r.config.Proxy.GetConfigPath(), lastGoodInDir)}
	if !r.isInPod() {
		return dirs
	}
	if info, err := os.Stat(podData); err != nil || !info.IsDir() {
		return dirs
	}
	return append([]string{filepath.Join(podData, lastGoodInDir)}, dirs...)
}
