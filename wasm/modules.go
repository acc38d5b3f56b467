package wasm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Module says which module a filter is to run.
type Module struct {
	// URL has the scheme http, https or oci.
	URL string
	// SHA256, in hex, is that of the module or of the file that is served, and of an image its digest; empty for any.
	SHA256 string
	// Secret is a Docker configuration with credentials for the registry; nil for none.
	Secret []byte
	// Always has the source asked each time, not only when the module is not kept; but not again for the same Version, if
	// there is one, of the same Resource.
	Always            bool
	Resource, Version string
	// Timeout bounds one attempt; zero is the configuration's.
	Timeout time.Duration
}

// place is what the module is kept by. Who has another pull secret, or none, has to get it from the registry.
func (m Module) place() string {
	if len(m.Secret) == 0 {
		return m.URL
	}
	return m.URL + "\n" + hexSum(string(m.Secret))
}

// shown is the URL without what may be secret: who asks, and how.
func (m Module) shown() string {
	u, err := url.Parse(m.URL)
	if err != nil {
		return "(unreadable)"
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// Modules fetches modules and keeps them. Its methods are safe for concurrent use.
type Modules struct {
	config  Config
	log     *slog.Logger
	store   *store
	metrics *metrics

	// life ends when Run does: a fetch goes on although the stream that asked for it has ended, for it will be asked again.
	life context.Context
	end  context.CancelCauseFunc
	used chan struct{} // closed when the first module is asked for
	once sync.Once

	mu      sync.Mutex
	calls   map[fetchKey]*call
	served  map[string]string // resource name → version that it was served with
	running sync.WaitGroup
}

// fetchKey is what makes two fetches the same.
type fetchKey struct {
	place, sum string
	always     bool
}

// call is one fetch that several may wait for.
type call struct {
	done  chan struct{}
	entry *entry
	err   error
}

// New makes Modules; nothing is opened or made before the first module is asked for.
func New(c Config) (*Modules, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	m := &Modules{
		config: c, log: c.Logger, store: newStore(&c), metrics: newMetrics(), used: make(chan struct{}),
		calls: map[fetchKey]*call{}, served: map[string]string{},
	}
	m.life, m.end = context.WithCancelCause(context.Background())
	return m, m.metrics.register(c.Metrics, m.store)
}

var errEnded = errors.New("the agent ends")

// Run drops modules that nobody has used in a long time, until the context ends. Fetches end with it.
func (m *Modules) Run(ctx context.Context) error {
	defer func() {
		m.mu.Lock()
		m.end(errEnded)
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
				m.log.Info("modules that were not used any more were removed", "number", n)
			}
		}
	}
}

// File is the absolute path of a module in a file, fetched if need be. When the source fails, a module that it gave before
// is good enough, unless another checksum was asked for.
func (m *Modules) File(ctx context.Context, module Module) (string, error) {
	path, _, err := m.file(ctx, module)
	return path, err
}

// file is File, and says why the module is one from before, if it is.
func (m *Modules) file(ctx context.Context, module Module) (path string, stale, err error) {
	m.once.Do(func() { close(m.used) })
	module.SHA256 = strings.ToLower(module.SHA256)
	known := m.store.find(module.place(), module.SHA256)
	fresh := known != nil && !m.outdated(module)
	m.metrics.lookup(fresh)
	if !fresh {
		e, err := m.shared(ctx, module, known)
		switch {
		case err == nil:
			known = e
		case known == nil || errors.Is(err, errEnded) || ctx.Err() != nil:
			return "", nil, fmt.Errorf("fetching module %s: %w", module.shown(), err)
		default:
			stale = err
			m.log.Warn("a module could not be fetched anew; the one that was fetched before goes on being used",
				"url", module.shown(), "fetched", known.Fetched, "error", err)
		}
	}
	m.store.use(module.Resource, known.path, false)
	if stale == nil {
		m.mu.Lock()
		m.served[module.Resource] = module.Version
		m.mu.Unlock()
	}
	path, err = filepath.Abs(filepath.Join(m.config.Dir, known.path))
	return path, stale, err
}

// mostWait is how many times the first wait the longest wait is for a module that cannot be had.
const mostWait = 20

// await waits until a module that could not be had can be. It asks for it now and then, ever less often.
func (m *Modules) await(ctx context.Context, module Module) error {
	m.metrics.waiting.Inc()
	defer m.metrics.waiting.Dec()
	wait := m.config.Again
	for {
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.life.Done():
			return errEnded
		}
		_, stale, err := m.file(ctx, module)
		if err = cmp.Or(err, stale); err == nil {
			m.log.Info("a module can be had after all", "url", module.shown(), "filter", module.Resource)
			return nil
		}
		m.log.Info("a module still cannot be had", "url", module.shown(), "filter", module.Resource, "error", err)
		wait = min(2*wait, mostWait*m.config.Again)
	}
}

// outdated says whether the source is to be asked although the module is kept.
func (m *Modules) outdated(module Module) bool {
	if !module.Always || module.SHA256 != "" {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	version, ok := m.served[module.Resource]
	return !ok || module.Version == "" || version != module.Version
}

// shared fetches, or waits for whoever fetches the same already.
func (m *Modules) shared(ctx context.Context, module Module, known *entry) (*entry, error) {
	key := fetchKey{module.place(), module.SHA256, module.Always}
	m.mu.Lock()
	c := m.calls[key]
	if c == nil {
		if m.life.Err() != nil {
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

// fetchInto fetches a module into the store.
func (m *Modules) fetchInto(module Module, known *entry) (*entry, error) {
	f, err := m.fetch(m.life, module, known)
	if errors.Is(err, errUnchanged) {
		m.metrics.fetched(nil)
		m.store.use(module.Resource, known.path, true)
		return known, nil
	}
	if err == nil && module.SHA256 != "" && module.SHA256 != f.sum && module.SHA256 != f.digest {
		_ = os.Remove(f.file)
		err = fmt.Errorf("it has the checksum %s: %w", f.sum, errMismatch)
	}
	m.metrics.fetched(err)
	if err != nil {
		return nil, err
	}
	e, err := m.store.put(module.place(), f)
	if e == nil {
		return nil, err
	}
	if err != nil {
		m.log.Warn("a module will not be found again after a restart", "url", module.shown(), "error", err)
	}
	m.log.Info("module fetched", "url", module.shown(), "bytes", f.size, "sha256", f.sum)
	return e, nil
}
