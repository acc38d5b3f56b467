// Package jwks fetches the public keys of token issuers, and keeps them fresh. What it last got stays in use however long
// an issuer is away, also over a restart.
package jwks

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultRefresh is how often a set of keys is fetched anew.
	DefaultRefresh = 20 * time.Minute
	// firstRetry and lastRetry bound the wait after a failure, which doubles.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// fetchTimeout bounds one look, with all its redirects.
	fetchTimeout = 10 * time.Second
	// atOnce bounds how many addresses are asked at the same time, mostAddresses how many there are.
	atOnce        = 16
	mostAddresses = 1000
)

// Config says how keys are fetched. The zero value of a field is its default.
type Config struct {
	// Refresh is how often; default DefaultRefresh.
	Refresh time.Duration
	// TLS is for addresses of HTTPS; default: the system's roots.
	TLS *tls.Config
	// File keeps what was fetched; empty: nothing is kept.
	File   string
	Logger *slog.Logger
	// Changed is called after keys changed. It must not block.
	Changed func()
}

// Fetcher keeps sets of keys. Its methods are safe for concurrent use.
type Fetcher struct {
	cfg    Config
	client *http.Client
	log    *slog.Logger
	wake   chan struct{}

	mu     sync.Mutex
	wanted map[string]*address
	sets   map[string]string // replaced, never changed
	// kept is what was fetched of addresses that are not wanted at present, by this control plane or one before it: a
	// document that goes and comes back finds its keys, even when their issuer is away.
	kept map[string]string
}

// address is one place of keys.
type address struct {
	due      time.Time
	failures int
	reason   string
	since    time.Time // of the failures
	running  bool
}

// Failure is an address whose keys could not be fetched.
type Failure struct {
	Address string
	Reason  string
	Since   time.Time
	// Known: keys that were fetched before are in use.
	Known bool
}

// New makes a fetcher with what was kept; Run fetches.
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
		cfg: cfg, client: newClient(cfg.TLS), log: cfg.Logger, wake: make(chan struct{}, 1),
		wanted: map[string]*address{}, sets: map[string]string{}, kept: map[string]string{},
	}
	kept, err := readKept(cfg.File)
	if err != nil {
		f.log.Warn("keys of token issuers that were fetched earlier cannot be read; they are fetched anew", "file", cfg.File, "error", err)
	}
	f.kept = kept
	return f
}

// Want says which addresses are in use; others are no longer fetched.
func (f *Fetcher) Want(addresses []string) {
	if f.want(addresses) {
		f.cfg.Changed()
	}
}

func (f *Fetcher) want(addresses []string) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(addresses) > mostAddresses {
		f.log.Error("too many addresses of keys; the last ones are not fetched", "addresses", len(addresses), "limit", mostAddresses)
		addresses = addresses[:mostAddresses]
	}
	news := false
	next := make(map[string]*address, len(addresses))
	for _, at := range addresses {
		if next[at] = f.wanted[at]; next[at] == nil {
			next[at], news = &address{}, true
		}
	}
	fewer := len(next) < len(f.wanted)
	f.wanted = next
	if !news && !fewer {
		return false
	}
	sets := map[string]string{}
	maps.Copy(f.kept, f.sets)
	for at := range next {
		if set, ok := f.kept[at]; ok {
			sets[at] = set
			delete(f.kept, at)
		}
	}
	for at := range f.kept {
		if len(f.kept) <= mostAddresses {
			break
		}
		delete(f.kept, at)
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

// Sets are the keys by address, as JWK sets. The map is not changed after it was given; as long as no key changes, it is
// the same.
func (f *Fetcher) Sets() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sets
}

// Failures are the addresses that cannot be fetched at present, sorted.
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

// Run fetches until the context ends.
func (f *Fetcher) Run(ctx context.Context) error {
	var fetches sync.WaitGroup
	defer fetches.Wait()
	slots := make(chan struct{}, atOnce)
	done := make(chan bool, atOnce)
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
				f.keep()
				f.cfg.Changed()
			}
		}
		for at := f.next(time.Now()); at != ""; at = f.next(time.Now()) {
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
				changed := ctx.Err() == nil && f.store(at, set, err, time.Now())
				select {
				case done <- changed:
				case <-ctx.Done():
				}
			})
		}
		timer.Reset(f.wait(time.Now()))
	}
}

// next takes an address that is due; "" when none is.
func (f *Fetcher) next(now time.Time) string {
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

// wait is how long until the next address is due; the end of a fetch wakes too.
func (f *Fetcher) wait(now time.Time) time.Duration {
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

// store takes note of a fetch, and says whether keys changed.
func (f *Fetcher) store(at, set string, err error, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.wanted[at]
	if a == nil {
		return false // no longer wanted
	}
	a.running = false
	if err != nil {
		f.failed(at, a, err, now)
		return false
	}
	if a.reason != "" {
		f.log.Info("the keys of a token issuer are there again", "address", at)
	}
	*a = address{due: now.Add(jitter(f.cfg.Refresh))}
	if old, ok := f.sets[at]; ok && old == set {
		return false
	}
	sets := maps.Clone(f.sets)
	sets[at] = set
	f.sets = sets
	f.log.Info("keys of a token issuer were fetched", "address", at, "bytes", len(set))
	return true
}

func (f *Fetcher) failed(at string, a *address, err error, now time.Time) {
	if a.reason != err.Error() {
		_, known := f.sets[at]
		f.log.Warn("the keys of a token issuer could not be fetched", "address", at, "error", err, "earlierKeysInUse", known)
	}
	if a.reason == "" {
		a.since = now
	}
	a.reason = err.Error()
	a.due = now.Add(jitter(min(firstRetry<<min(a.failures, 10), lastRetry)))
	a.failures++
}

// jitter keeps many fetchers from asking in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/10+1) }
