package agent

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGoodConfig says where what Envoy has accepted is kept, for an Envoy that starts while no control plane answers.
type LastGoodConfig struct {
	// Dirs are tried in turn; none means that nothing is kept on disk.
	Dirs     []string
	MaxBytes int64
	// MaxMemory bounds the memory that it is kept in where no directory can be written to; zero keeps nothing there.
	MaxMemory int64
}

const (
	// podData is the volume of an injected pod that is on disk; the one of configPath is in memory.
	podData       = "/var/lib/istio/data"
	lastGoodInDir = "last-good"
	// noDir, in place of a directory, keeps it in memory alone.
	noDir = "none"
)

func (r *resolver) lastGood() {
	c := &r.config.LastGood
	keep := r.env.boolean("lastGood.keep", "KEEP_CONFIGURATION", true)
	c.MaxBytes = parsed(r.env, "lastGood.maxBytes", "KEEP_CONFIGURATION_MAX_BYTES", int64(lastgood.DefaultMaxBytes),
		"write a number of bytes, as 268435456", bytesFrom(1))
	memory := parsed(r.env, "lastGood.maxMemory", "KEEP_CONFIGURATION_MEMORY_MAX_BYTES", int64(lastgood.DefaultMaxMemory),
		"write a number of bytes, as 33554432, or 0 to keep nothing in memory", bytesFrom(0))
	otherwise := r.lastGoodDirs()
	dir := r.env.text("lastGood.directory", "KEEP_CONFIGURATION_DIR", otherwise[0], sourceDefault)
	if !keep || r.config.Envoy.Disabled {
		return
	}
	c.MaxMemory = memory
	switch dir {
	case noDir:
	case otherwise[0]:
		c.Dirs = otherwise
	default:
		c.Dirs = []string{dir}
	}
}

// bytesFrom reads a number of bytes that is not less than least.
func bytesFrom(least int64) func(string) (int64, error) {
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

// lastGood is what the relay is told of it.
func (a *Agent) lastGood() xdsproxy.LastGood {
	c := a.Config.LastGood
	return xdsproxy.LastGood{Dirs: c.Dirs, MaxBytes: c.MaxBytes, MaxMemory: c.MaxMemory}
}
