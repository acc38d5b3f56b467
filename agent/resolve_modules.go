package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// WasmConfig says how the Wasm modules of Envoy's filters are fetched.
type WasmConfig struct {
	// Dir is where they are kept.
	Dir                            string
	Expiry, PurgeInterval, Timeout time.Duration
	// Retries follow a fetch that failed; 0 for none.
	Retries int
	// Again is how long after that the module is asked for once more; it doubles from time to time.
	Again time.Duration
	// MaxSize bounds a module, in bytes.
	MaxSize int64
	// Insecure are hosts that may go without a certificate that can be verified; Blocked are never fetched from.
	Insecure []string
	Blocked  []netip.Prefix
}

const (
	// contractWasmDir is where Istio's agent keeps modules; ownWasmDir, below configPath, takes its place where that cannot
	// be written.
	contractWasmDir = "/var/lib/istio/data"
	ownWasmDir      = "wasm"
	maxWasmRetries  = 100
)

// wasm modules are fetched by the agent unless Envoy is to do that itself.
func (r *resolver) wasm() {
	if !r.env.boolean("wasm.fetch", "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", true) {
		return
	}
	c := &WasmConfig{}
	c.Dir = r.env.text("wasm.directory", "WASM_MODULE_DIR", r.wasmDir(), sourceDefault)
	c.Expiry = r.positive("wasm.expiry", "WASM_MODULE_EXPIRY", 24*time.Hour)
	c.PurgeInterval = r.positive("wasm.purgeInterval", "WASM_PURGE_INTERVAL", time.Hour)
	c.Timeout = r.positive("wasm.timeout", "WASM_HTTP_REQUEST_TIMEOUT", 15*time.Second)
	c.Retries = parsed(r.env, "wasm.retries", "WASM_HTTP_REQUEST_MAX_RETRIES", 5, "write a number from 0 to 100", func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err == nil && (n < 0 || n > maxWasmRetries) {
			err = strconv.ErrRange
		}
		return n, err
	})
	c.Again = r.positive("wasm.again", "WASM_RETRY_INTERVAL", 30*time.Second)
	c.MaxSize = parsed(r.env, "wasm.maxSize", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES", 256<<20, "write a number of bytes, as 268435456", func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil && (n <= 0 || n > 1<<40) {
			err = strconv.ErrRange
		}
		return n, err
	})
	c.Insecure = r.list("wasm.insecureRegistries", "WASM_INSECURE_REGISTRIES")
	c.Blocked = r.prefixes("wasm.blocked", "BLOCKED_CIDRS_IN_WASM_FETCH")
	r.config.Wasm = c
}

// positive is a duration that is not nothing.
func (r *resolver) positive(name, variable string, otherwise time.Duration) time.Duration {
	return parsed(r.env, name, variable, otherwise, "write a duration longer than 0, as 15s or 24h", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err == nil && d <= 0 {
			err = strconv.ErrRange
		}
		return d, err
	})
}

// wasmDir is the contract's directory if it is there and this process may write to it.
func (r *resolver) wasmDir() string {
	if writable(contractWasmDir) {
		return contractWasmDir
	}
	return filepath.Join(filepath.Dir(r.config.ControlPlane.Socket), ownWasmDir)
}

// writable says whether files can be made in a directory, by making one.
func writable(dir string) bool {
	file, err := os.CreateTemp(dir, ".pilotfish-")
	if err != nil {
		return false
	}
	_ = file.Close()
	return os.Remove(file.Name()) == nil
}
