package agent

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGoodConfig says where what Envoy has accepted is kept, for an Envoy that starts while no control plane answers.
type LastGoodConfig struct {
	// Dirs are tried in turn; none means that nothing is kept.
	Dirs     []string
	MaxBytes int64
}

const (
	// podData is the volume of an injected pod that is on disk; the one of configPath is in memory.
	podData       = "/var/lib/istio/data"
	lastGoodInDir = "last-good"
)

func (r *resolver) lastGood() {
	c := &r.config.LastGood
	keep := r.env.boolean("lastGood.keep", "KEEP_CONFIGURATION", true)
	c.MaxBytes = parsed(r.env, "lastGood.maxBytes", "KEEP_CONFIGURATION_MAX_BYTES", int64(lastgood.DefaultMaxBytes),
		"write a number of bytes, as 268435456", func(s string) (int64, error) {
			n, err := strconv.ParseInt(s, 10, 64)
			if err == nil && n <= 0 {
				err = strconv.ErrRange
			}
			return n, err
		})
	otherwise := r.lastGoodDirs()
	dir := r.env.text("lastGood.directory", "KEEP_CONFIGURATION_DIR", otherwise[0], sourceDefault)
	switch {
	case !keep || r.config.Envoy.Disabled:
	case dir != otherwise[0]:
		c.Dirs = []string{dir}
	default:
		c.Dirs = otherwise
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
