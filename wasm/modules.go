package wasm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// Module specifies the Wasm module of a filter.
type Module struct {
	// URL has the scheme http, https or oci.
	URL string
	// SHA256 is the expected SHA-256 in hex, of the module, of the served file, or of the OCI image; empty means any.
	SHA256 string
	// Secret is a Docker configuration with the registry's credentials; nil means none.
	Secret []byte
	// Always means that the source is queried even if the module is cached, once per Version of the Resource. An empty
	// Version means each time.
	Always bool
	// Resource is the name of the ECDS resource that uses the module, and Version the version of that resource.
	Resource, Version string
	// Timeout limits one attempt to fetch the module; zero means Config.Timeout.
	Timeout time.Duration
}

// cacheKey returns the module's cache key. It contains the pull secret, so that a filter with another secret, or without
// one, cannot use the cached module without access to the registry.
func (m Module) cacheKey() string {
	if len(m.Secret) == 0 {
		return m.URL
	}
	return m.URL + "\n" + hexSum(string(m.Secret))
}

// redactedURL returns the URL without its user and query, which may be secret.
func (m Module) redactedURL() string {
	u, err := url.Parse(m.URL)
	if err != nil {
		return "(unreadable)"
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// Modules fetches and caches modules. Its methods are safe for concurrent use.
type Modules struct {
	config  Config
	log     *slog.Logger
	store   *store
	metrics *metrics

	// fetchContext is the context of fetches; it ends when Run returns. A fetch does not stop when Envoy's stream closes,
	// because the next stream needs the same module.
	fetchContext  context.Context
	cancelFetches context.CancelCauseFunc
	reportMissing func(reason string) // see ReportMissing; nil if not set
	used          chan struct{}       // closed when the first module is requested
	once          sync.Once

	mu      sync.Mutex
	calls   map[fetchKey]*call
	missing map[string]*missingModule // filters with placeholders, by name
	served  map[string]string         // Module.Version of the last returned module, by Module.Resource
	running sync.WaitGroup
}

// fetchKey identifies fetches that can share one result.
type fetchKey struct {
	cacheKey, sum string
	always        bool
}

// call is one running fetch. Several callers may wait for it.
type call struct {
	done  chan struct{}
	entry *entry
	err   error
}

// New returns Modules. It does not use the file system; the first request for a module does.
func New(c Config) (*Modules, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	m := &Modules{
		config: c, log: c.Logger, store: newStore(&c), metrics: newMetrics(), used: make(chan struct{}),
		calls: map[fetchKey]*call{}, missing: map[string]*missingModule{}, served: map[string]string{},
	}
	m.fetchContext, m.cancelFetches = context.WithCancelCause(context.Background())
	return m, m.metrics.register(c.Metrics, m.store)
}

var errEnded = errors.New("the agent is stopping")

// Run removes expired modules periodically until ctx ends. It then cancels all fetches and waits for them.
func (m *Modules) Run(ctx context.Context) error {
	defer func() {
		m.mu.Lock()
		m.cancelFetches(errEnded)
		m.mu.Unlock()
		m.running.Wait()
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-m.used:
	}
	timer := time.NewTicker(m.config.PurgeInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			if n := m.store.purge(); n > 0 {
				m.log.Info("removed expired modules from the cache", "number", n)
			}
		}
	}
}

// File returns the absolute path of a module's file. It fetches the module if the module is not cached, or if the
// source must be queried (Module.Always). If the fetch fails, File returns the cached file of a module with the
// specified checksum, if one exists.
func (m *Modules) File(ctx context.Context, module Module) (string, error) {
	path, _, err := m.file(ctx, module)
	return path, err
}

// file is like File. If it returns a cached module because the fetch failed, stale is the error of the fetch.
func (m *Modules) file(ctx context.Context, module Module) (path string, stale, err error) {
	m.once.Do(func() { close(m.used) })
	module.SHA256 = strings.ToLower(module.SHA256)
	known := m.store.find(module.cacheKey(), module.SHA256)
	fresh := known != nil && !m.isOutdated(module)
	m.metrics.countLookup(fresh)
	if !fresh {
		e, err := m.fetchShared(ctx, module, known)
		switch {
		case err == nil:
			known = e
		case known == nil || errors.Is(err, errEnded) || ctx.Err() != nil:
			return "", nil, fmt.Errorf("fetching module %s: %w", module.redactedURL(), err)
		default:
			stale = err
			m.log.Warn("a cached module could not be updated and is still used",
				"url", module.redactedURL(), "fetched", known.Fetched, "error", err)
		}
	}
	m.store.recordUse(module.Resource, known.path, false)
	if stale == nil {
		m.mu.Lock()
		m.served[module.Resource] = module.Version
		m.mu.Unlock()
	}
	path, err = filepath.Abs(filepath.Join(m.config.Dir, known.path))
	return path, stale, err
}

// maxWait is the maximum delay between retries in waitForModule, as a multiple of Config.RetryInterval.
const maxWait = 20

// waitForModule tries to fetch a module with backoff. It returns nil when the module was fetched, and an error if ctx
// ends or Run returns.
func (m *Modules) waitForModule(ctx context.Context, module Module) error {
	m.metrics.waiting.Inc()
	defer m.metrics.waiting.Dec()
	retry := backoff.Backoff{Min: m.config.RetryInterval, Max: maxWait * m.config.RetryInterval}
	for {
		select {
		case <-time.After(retry.Next()):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.fetchContext.Done():
			return errEnded
		}
		_, stale, err := m.file(ctx, module)
		if err = cmp.Or(err, stale); err == nil {
			m.log.Info("a module was fetched after earlier failures", "url", module.redactedURL(), "filter", module.Resource)
			return nil
		}
		m.log.Info("a module still cannot be fetched", "url", module.redactedURL(), "filter", module.Resource, "error", err)
	}
}

// isOutdated reports whether the source must be queried even though the module is cached.
func (m *Modules) isOutdated(module Module) bool {
	if !module.Always || module.SHA256 != "" {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	version, ok := m.served[module.Resource]
	return !ok || module.Version == "" || version != module.Version
}

// fetchShared fetches a module. Concurrent calls for the same module share one fetch.
func (m *Modules) fetchShared(ctx context.Context, module Module, known *entry) (*entry, error) {
	key := fetchKey{module.cacheKey(), module.SHA256, module.Always}
	m.mu.Lock()
	c := m.calls[key]
	if c == nil {
		if m.fetchContext.Err() != nil {
			m.mu.Unlock()
			return nil, errEnded
		}
		c = &call{done: make(chan struct{})}
		m.calls[key] = c
		m.running.Go(func() {
			c.entry, c.err = m.fetchInto(module, known)
			m.mu.Lock()
			delete(m.calls, key)
			m.mu.Unlock()
			close(c.done)
		})
	}
	m.mu.Unlock()
	select {
	case <-c.done:
		return c.entry, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fetchInto fetches a module and adds it to the cache. known is the cached module, or nil.
func (m *Modules) fetchInto(module Module, known *entry) (*entry, error) {
	f, err := m.fetch(m.fetchContext, module, known)
	if errors.Is(err, errUnchanged) {
		m.metrics.countFetch(nil)
		m.store.recordUse(module.Resource, known.path, true)
		return known, nil
	}
	if err == nil && module.SHA256 != "" && module.SHA256 != f.sum && module.SHA256 != f.digest {
		_ = os.Remove(f.file)
		err = fmt.Errorf("the module has the checksum %s: %w", f.sum, errMismatch)
	}
	m.metrics.countFetch(err)
	if err != nil {
		return nil, err
	}
	e, err := m.store.put(module.cacheKey(), f)
	if e == nil {
		return nil, err
	}
	if err != nil {
		m.log.Warn("the cache index could not be written; the module will be fetched again after a restart", "url", module.redactedURL(), "error", err)
	}
	m.log.Info("fetched a module", "url", module.redactedURL(), "bytes", f.size, "sha256", f.sum)
	return e, nil
}
