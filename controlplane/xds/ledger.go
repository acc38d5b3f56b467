package xds

import (
	"hash/maphash"
	"iter"
	"maps"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// ledger is a set of names, with a version each where there is one. Clients of one mesh hold much the same, so most of a
// ledger is a page that all who have the same share, and its own only what differs: a thousand clients cost little more
// than one. The zero value is empty.
type ledger struct {
	shared *page
	own    map[string]entry
	size   int
	bytes  int    // of all names and versions, with nameCost for each
	sum    uint64 // of all names and versions, in whatever order they came
}

// entry is what differs from the page.
type entry struct {
	version string
	gone    bool
}

// page is what several ledgers have. Immutable.
type page struct {
	versions map[string]string
	names    []string // sorted
	bytes    int
	sum      uint64
}

// pages are those that are in use, by their sums.
type pages struct {
	mu    sync.Mutex
	bySum map[uint64]weak.Pointer[page]
}

const (
	// pageSize is the least for which sharing is worth while.
	pageSize = 64
	// pageShare: what a ledger has of its own is settled when it is this part of the whole.
	pageShare = 8
)

var ledgerSeed = maphash.MakeSeed()

// hashEntry is such that sums tell apart what has the same names and the same versions in other pairs.
func hashEntry(name, version string) uint64 {
	h := maphash.String(ledgerSeed, name) + bits.RotateLeft64(maphash.String(ledgerSeed, version), 29)
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

func (l *ledger) get(name string) (version string, ok bool) {
	if e, differs := l.own[name]; differs {
		return e.version, !e.gone
	}
	if l.shared != nil {
		version, ok = l.shared.versions[name]
	}
	return version, ok
}

func (l *ledger) has(name string) bool { _, ok := l.get(name); return ok }

func (l *ledger) len() int { return l.size }

func (l *ledger) set(name, version string) {
	old, had := l.get(name)
	switch {
	case had && old == version:
		return
	case had:
		l.sum -= hashEntry(name, old)
		l.bytes -= len(old)
	default:
		l.size++
		l.bytes += len(name) + nameCost
	}
	l.sum += hashEntry(name, version)
	l.bytes += len(version)
	if l.shared != nil {
		if v, ok := l.shared.versions[name]; ok && v == version {
			delete(l.own, name)
			return
		}
	}
	l.differ(name, entry{version: version})
}

// adopt adds a set of names, each of which is given once. Where the ledger is empty and others hold the same, as most clients
// of a mesh do, it shares what they have without making anything of its own first.
func (l *ledger) adopt(p *pages, n int, all iter.Seq2[string, string]) {
	if l.size > 0 || n < pageSize {
		for name, version := range all {
			l.set(name, version)
		}
		return
	}
	sum := uint64(0)
	for name, version := range all {
		sum += hashEntry(name, version)
	}
	if found := p.holding(n, sum, all); found != nil {
		l.share(found)
		return
	}
	l.shared, l.own = nil, make(map[string]entry, n)
	for name, version := range all {
		l.set(name, version)
	}
}

// share makes an empty ledger hold what a page holds.
func (l *ledger) share(p *page) {
	*l = ledger{shared: p, size: len(p.versions), bytes: p.bytes, sum: p.sum}
}

// copy is one that can change by itself.
func (l *ledger) copy() ledger {
	c := *l
	c.own = maps.Clone(l.own)
	return c
}

// unversioned are names without versions.
func unversioned(names []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, name := range names {
			if !yield(name, "") {
				return
			}
		}
	}
}

func (l *ledger) differ(name string, e entry) {
	if l.own == nil {
		l.own = map[string]entry{}
	}
	l.own[name] = e
}

func (l *ledger) remove(name string) {
	old, had := l.get(name)
	if !had {
		return
	}
	l.size--
	l.bytes -= len(name) + len(old) + nameCost
	l.sum -= hashEntry(name, old)
	if l.shared != nil {
		if _, there := l.shared.versions[name]; there {
			l.differ(name, entry{gone: true})
			return
		}
	}
	delete(l.own, name)
}

// all gives names and versions. What it gives may be removed meanwhile.
func (l *ledger) all(yield func(name, version string) bool) {
	if l.shared != nil {
		for name, version := range l.shared.versions {
			if _, differs := l.own[name]; !differs && !yield(name, version) {
				return
			}
		}
	}
	for name, e := range l.own {
		if !e.gone && !yield(name, e.version) {
			return
		}
	}
}

// sorted gives the names in order. Nobody may change the list.
func (l *ledger) sorted() []string {
	if len(l.own) == 0 {
		if l.shared == nil {
			return nil
		}
		return l.shared.names
	}
	names := make([]string, 0, l.size)
	for name := range l.all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// settle moves what is the ledger's own to a page, if it has become much.
func (l *ledger) settle(p *pages) {
	if l.size < pageSize || len(l.own) <= l.size/pageShare {
		return
	}
	l.shared, l.own = p.of(l), nil
}

// holding gives the page that has just these names and versions, of which there are n with that sum; nil when nobody holds
// one.
func (p *pages) holding(n int, sum uint64, all iter.Seq2[string, string]) *page {
	p.mu.Lock()
	found := p.bySum[sum].Value()
	p.mu.Unlock()
	if found == nil || !found.isAll(n, all) {
		return nil
	}
	return found
}

// isAll says whether the page has just these names, of which there are n, each given once.
func (p *page) isAll(n int, all iter.Seq2[string, string]) bool {
	if len(p.versions) != n {
		return false
	}
	for name, version := range all {
		if v, ok := p.versions[name]; !ok || v != version {
			return false
		}
	}
	return true
}

// of finds the page that has what a ledger has, or makes it.
func (p *pages) of(l *ledger) *page {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.bySum[l.sum].Value(); found != nil && found.is(l) {
		return found
	}
	made := &page{versions: make(map[string]string, l.size), names: l.sorted(), bytes: l.bytes, sum: l.sum}
	for name, version := range l.all {
		made.versions[name] = version
	}
	if p.bySum == nil {
		p.bySum = map[uint64]weak.Pointer[page]{}
	}
	p.bySum[made.sum] = weak.Make(made)
	runtime.AddCleanup(made, p.drop, made.sum)
	return made
}

func (p *page) is(l *ledger) bool { return p.isAll(l.size, l.all) }

// drop forgets a page that nobody has any more.
func (p *pages) drop(sum uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bySum[sum].Value() == nil {
		delete(p.bySum, sum)
	}
}
