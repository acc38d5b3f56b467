package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Wasm configures how the agent fetches Wasm modules for Envoy.
type Wasm struct {
	// Dir is the directory of the module cache.
	Dir                            string
	Expiry, PurgeInterval, Timeout time.Duration
	// Retries is the number of retries after a failed fetch.
	Retries int
	// RetryInterval is the time between a failed fetch of a module and the next one. It doubles after each further
	// failure.
	RetryInterval time.Duration
	// MaxSize is the maximum size of a module in bytes.
	MaxSize int64
	// Insecure lists the hosts whose certificates the agent does not verify.
	Insecure []string
	// Blocked lists the networks from which the agent does not fetch modules.
	Blocked []netip.Prefix
}

const (
	// istioWasmDir is the module directory of Istio's agent. If the agent cannot write to it, it uses ownWasmDir in
	// configPath instead.
	istioWasmDir   = "/var/lib/istio/data"
	ownWasmDir     = "wasm"
	maxWasmRetries = 100
)

// resolveWasm resolves how the agent fetches Wasm modules, unless Envoy fetches them itself.
func (r *resolver) resolveWasm() {
	if !r.env.boolean("wasm.fetch", "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", true) {
		return
	}
	c := &Wasm{}
	c.Dir = r.env.text("wasm.directory", "WASM_MODULE_DIR", r.defaultWasmDir(), sourceDefault)
	c.Expiry = r.positiveDuration("wasm.expiry", "WASM_MODULE_EXPIRY", 24*time.Hour)
	c.PurgeInterval = r.positiveDuration("wasm.purgeInterval", "WASM_PURGE_INTERVAL", time.Hour)
	c.Timeout = r.positiveDuration("wasm.timeout", "WASM_HTTP_REQUEST_TIMEOUT", 15*time.Second)
	c.Retries = parseVariable(r.env, "wasm.retries", "WASM_HTTP_REQUEST_MAX_RETRIES", 5, "write a number from 0 to 100", func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err == nil && (n < 0 || n > maxWasmRetries) {
			err = strconv.ErrRange
		}
		return n, err
	})
	c.RetryInterval = r.positiveDuration("wasm.retryInterval", "WASM_RETRY_INTERVAL", 30*time.Second)
	c.MaxSize = parseVariable(r.env, "wasm.maxSize", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES", 256<<20, "write a number of bytes, such as 268435456", func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && (n <= 0 || n > 1<<40) {
			err = strconv.ErrRange
		}
		return n, err
	})
	c.Insecure = r.parseList("wasm.insecureRegistries", "WASM_INSECURE_REGISTRIES")
	c.Blocked = r.parsePrefixes("wasm.blocked", "BLOCKED_CIDRS_IN_WASM_FETCH")
	r.config.Wasm = c
}

// positiveDuration returns a duration above 0.
func (r *resolver) positiveDuration(name, variable string, fallback time.Duration) time.Duration {
	return parseVariable(r.env, name, variable, fallback, "write a duration longer than 0, such as 15s or 24h", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err == nil && d <= 0 {
			err = strconv.ErrRange
		}
		return d, err
	})
}

// defaultWasmDir returns istioWasmDir if this process can write to it, and otherwise ownWasmDir in configPath.
func (r *resolver) defaultWasmDir() string {
	if isWritable(istioWasmDir) {
		return istioWasmDir
	}
	return filepath.Join(filepath.Dir(r.config.ControlPlane.Socket), ownWasmDir)
}

// isWritable reports whether this process can create files in dir. It creates and removes a file to test that.
func isWritable(dir string) bool {
	file, err := os.CreateTemp(dir, ".pilotfish-")
	if err != nil {
		return false
	}
	_ = file.Close()
	return os.Remove(file.Name()) == nil
}
