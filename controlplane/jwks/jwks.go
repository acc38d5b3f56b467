// Package jwks fetches the public keys of token issuers periodically. While an issuer is unavailable, the keys that
// were fetched last remain in use, even after a restart.
package jwks

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

const (
	// DefaultRefresh is the default interval between fetches.
	DefaultRefresh = 20 * time.Minute
	// minRetry and maxRetry limit the delay before the next attempt, which doubles after each failure.
	minRetry = time.Second
	maxRetry = time.Minute
	// fetchTimeout limits one fetch, including redirects.
	fetchTimeout = 10 * time.Second
	// maxConcurrent limits the number of concurrent fetches. maxAddresses limits the number of URLs.
	maxConcurrent = 16
	maxAddresses  = 1000
)

// Config configures a Fetcher. The zero value of a field selects its default.
type Config struct {
	// Refresh is the interval of fetches; default DefaultRefresh.
	Refresh time.Duration
	// TLS configures HTTPS connections. By default, the system's root certificates are trusted.
	TLS *tls.Config
	// Guard determines to which addresses the Fetcher may connect, also after redirects.
	Guard fetchguard.Guard
	// Hosts contains the addresses of hosts that DNS cannot resolve.
	Hosts map[string]netip.Addr
	// File is the path of the cache file. If it is empty, there is no cache file.
	File   string
	Logger *slog.Logger
	// Changed is called after the result of Sets changed. It must not block.
	Changed func()
}

// Fetcher fetches and caches key sets. Its methods are safe for concurrent use.
type Fetcher struct {
	cfg    Config
	client *http.Client
	log    *slog.Logger
	wake   chan struct{}

	mu     sync.Mutex
	wanted map[string]*keySource
	sets   map[string]string // immutable; a change creates a new map
	// cached contains key sets of URLs that no document uses at the moment, for example sets from the cache file. If a
	// document is removed and added again, its keys are available even if the issuer is not.
	cached map[string]string
}

// keySource is the state of the fetches from one URL.
type keySource struct {
	due     time.Time
	retry   backoff.Backoff
	reason  string
	since   time.Time // time of the first of the current consecutive failures
	running bool
}

func newKeySource(due time.Time) *keySource {
	return &keySource{due: due, retry: backoff.Backoff{Min: minRetry, Max: maxRetry}}
}

// Failure describes a URL whose keys could not be fetched.
type Failure struct {
	Address string
	Reason  string
	Since   time.Time
	// Known is true if keys from an earlier fetch are in use.
	Known bool
}

// New returns a Fetcher with the key sets in the cache file. It fetches nothing before Run is called.
func New(cfg Config) *Fetcher {
	if cfg.Refresh <= 0 {
		cfg.Refresh = DefaultRefresh
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	f := &Fetcher{
		cfg: cfg, client: newClient(cfg), log: cfg.Logger, wake: make(chan struct{}, 1),
		wanted: map[string]*keySource{}, sets: map[string]string{}, cached: map[string]string{},
	}
	kept, err := readCache(cfg.File)
	if err != nil {
		f.log.Warn("reading the cached keys of token issuers failed; the control plane fetches them again", "file", cfg.File, "error", err)
	}
	f.cached = kept
	return f
}

// SetAddresses replaces the URLs from which the Fetcher fetches. It ignores URLs after the first maxAddresses.
func (f *Fetcher) SetAddresses(addresses []string) {
	if f.setWanted(addresses) {
		f.cfg.Changed()
	}
}

func (f *Fetcher) setWanted(addresses []string) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(addresses) > maxAddresses {
		f.log.Error("too many key URLs of token issuers; the control plane does not fetch the URLs above the limit", "addresses", len(addresses), "limit", maxAddresses)
		addresses = addresses[:maxAddresses]
	}
	news := false
	next := make(map[string]*keySource, len(addresses))
	for _, at := range addresses {
		if next[at] = f.wanted[at]; next[at] == nil {
			next[at], news = newKeySource(time.Time{}), true
		}
	}
	fewer := len(next) < len(f.wanted)
	f.wanted = next
	if !news && !fewer {
		return false
	}
	sets := map[string]string{}
	maps.Copy(f.cached, f.sets)
	for at := range next {
		if set, ok := f.cached[at]; ok {
			sets[at] = set
			delete(f.cached, at)
		}
	}
	for at := range f.cached {
		if len(f.cached) <= maxAddresses {
			break
		}
		delete(f.cached, at)
	}
	if changed = !maps.Equal(sets, f.sets); changed {
		f.sets = sets
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return changed
}

// Sets returns the JWK sets by URL. The map is immutable. Sets returns the same map until a key set changes.
func (f *Fetcher) Sets() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sets
}

// Failures returns the URLs whose last fetch failed, sorted.
func (f *Fetcher) Failures() []Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Failure
	for _, at := range slices.Sorted(maps.Keys(f.wanted)) {
		if a := f.wanted[at]; a.reason != "" {
			_, known := f.sets[at]
			out = append(out, Failure{Address: at, Reason: a.reason, Since: a.since, Known: known})
		}
	}
	return out
}

// Run fetches until ctx ends.
func (f *Fetcher) Run(ctx context.Context) error {
	var fetches sync.WaitGroup
	defer fetches.Wait()
	slots := make(chan struct{}, maxConcurrent)
	done := make(chan bool, maxConcurrent)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-timer.C:
		case changed := <-done:
			if changed {
				f.saveCache()
				f.cfg.Changed()
			}
		}
		for at := f.nextDue(time.Now()); at != ""; at = f.nextDue(time.Now()) {
			select {
			case slots <- struct{}{}:
			default:
				f.release(at)
				at = ""
			}
			if at == "" {
				break
			}
			fetches.Go(func() {
				defer func() { <-slots }()
				set, err := f.fetch(ctx, at)
				changed := ctx.Err() == nil && f.storeResult(at, set, err, time.Now())
				select {
				case done <- changed:
				case <-ctx.Done():
				}
			})
		}
		timer.Reset(f.untilNextDue(time.Now()))
	}
}

// nextDue returns a URL for which a fetch is due, and marks the fetch as running. It returns "" if no fetch is due.
func (f *Fetcher) nextDue(now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := ""
	for at, a := range f.wanted {
		if !a.running && !a.due.After(now) && (first == "" || at < first) {
			first = at
		}
	}
	if first != "" {
		f.wanted[first].running = true
	}
	return first
}

func (f *Fetcher) release(at string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.wanted[at]; a != nil {
		a.running = false
	}
}

// untilNextDue returns the time until the next fetch is due, at most one hour.
func (f *Fetcher) untilNextDue(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait := time.Hour
	for _, a := range f.wanted {
		if !a.running {
			wait = min(wait, a.due.Sub(now))
		}
	}
	return max(wait, 10*time.Millisecond)
}

// storeResult records the result of the fetch from the URL at: set or err. It returns true if the key set changed.
func (f *Fetcher) storeResult(at, set string, err error, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.wanted[at]
	if a == nil {
		return false // the URL is no longer in any document
	}
	a.running = false
	if err != nil {
		f.recordFailure(at, a, err, now)
		return false
	}
	if a.reason != "" {
		f.log.Info("the keys of a token issuer are available again", "address", at)
	}
	*a = *newKeySource(now.Add(jitter(f.cfg.Refresh)))
	if old, ok := f.sets[at]; ok && old == set {
		return false
	}
	sets := maps.Clone(f.sets)
	sets[at] = set
	f.sets = sets
	f.log.Info("fetched the keys of a token issuer", "address", at, "bytes", len(set))
	return true
}

func (f *Fetcher) recordFailure(at string, a *keySource, err error, now time.Time) {
	if a.reason != err.Error() {
		_, known := f.sets[at]
		f.log.Warn("fetching the keys of a token issuer failed", "address", at, "error", err, "earlierKeysInUse", known)
	}
	if a.reason == "" {
		a.since = now
	}
	a.reason = err.Error()
	a.due = now.Add(a.retry.Next())
}

// jitter shortens d by up to a tenth at random, so that different control planes do not fetch at the same time.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/10+1) }
