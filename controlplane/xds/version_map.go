package xds

import (
	"hash/maphash"
	"iter"
	"maps"
	"math/bits"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"
)

// versionMap maps resource names to versions. If the versions are empty, it is a set of names. In one mesh, the maps of
// most clients are equal. A map therefore consists of an immutable page that several maps share, and its own overrides.
// The maps of a thousand clients then use little more memory than one map. The zero value is an empty map.
type versionMap struct {
	shared    *versionPage
	overrides map[string]override
	size      int
	bytes     int // size of all names and versions, plus nameCost for each entry
	// overrideBytes is the size of the overrides, including removed names.
	overrideBytes int
	sum           uint64 // sum of the hashes of all entries, which does not depend on their order
}

// override is an entry of a map that differs from the shared page.
type override struct {
	version string
	removed bool
}

// versionPage is the content that several version maps share. It is immutable.
type versionPage struct {
	versions map[string]string
	names    []string // sorted
	bytes    int
	sum      uint64
}

// pageCache contains weak references to the pages in use, by their sums. Pages that no map uses can be
// garbage-collected.
type pageCache struct {
	mu    sync.Mutex
	bySum map[uint64]weak.Pointer[versionPage]
}

const (
	// pageSize is the minimum number of entries of a page.
	pageSize = 64
	// pageShare: when the overrides are more than 1/pageShare of a map's entries, compact moves all entries to a page.
	pageShare = 8
)

var hashSeed = maphash.MakeSeed()

// hashEntry returns the hash of an entry. Name and version are hashed together, so that the sum changes if two names
// exchange their versions.
func hashEntry(name, version string) uint64 {
	h := maphash.String(hashSeed, name) + bits.RotateLeft64(maphash.String(hashSeed, version), 29)
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

func (l *versionMap) get(name string) (version string, ok bool) {
	if e, differs := l.overrides[name]; differs {
		return e.version, !e.removed
	}
	if l.shared != nil {
		version, ok = l.shared.versions[name]
	}
	return version, ok
}

func (l *versionMap) has(name string) bool { _, ok := l.get(name); return ok }

func (l *versionMap) len() int { return l.size }

func (l *versionMap) set(name, version string) {
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
			l.removeOverride(name)
			return
		}
	}
	l.setOverride(name, override{version: version})
}

// addAll adds n entries with distinct names. If the map is empty and a cached page has the same entries, the map shares
// that page and allocates nothing. This is the case for most clients of a mesh.
func (l *versionMap) addAll(p *pageCache, n int, all iter.Seq2[string, string]) {
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
	if found := p.find(n, sum, all); found != nil {
		l.share(found)
		return
	}
	l.shared, l.overrides, l.overrideBytes = nil, make(map[string]override, n), 0
	for name, version := range all {
		l.set(name, version)
	}
}

// share replaces the content of the map by the content of p.
func (l *versionMap) share(p *versionPage) {
	*l = versionMap{shared: p, size: len(p.versions), bytes: p.bytes, sum: p.sum}
}

// copy returns an independent copy of the map.
func (l *versionMap) copy() versionMap {
	c := *l
	c.overrides = maps.Clone(l.overrides)
	return c
}

// withoutVersions returns an iterator over names with empty versions.
func withoutVersions(names []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, name := range names {
			if !yield(name, "") {
				return
			}
		}
	}
}

func (l *versionMap) setOverride(name string, e override) {
	if l.overrides == nil {
		l.overrides = map[string]override{}
	}
	l.removeOverride(name)
	l.overrides[name] = e
	l.overrideBytes += len(name) + len(e.version) + nameCost
}

func (l *versionMap) removeOverride(name string) {
	if e, ok := l.overrides[name]; ok {
		l.overrideBytes -= len(name) + len(e.version) + nameCost
		delete(l.overrides, name)
	}
}

// cloneStrings copies the strings of the overrides. They may be substrings of a large request, whose memory they would
// retain.
func (l *versionMap) cloneStrings() {
	own := l.overrides
	l.overrides = make(map[string]override, len(own))
	for name, e := range own {
		e.version = strings.Clone(e.version)
		l.overrides[strings.Clone(name)] = e
	}
}

func (l *versionMap) remove(name string) {
	old, had := l.get(name)
	if !had {
		return
	}
	l.size--
	l.bytes -= len(name) + len(old) + nameCost
	l.sum -= hashEntry(name, old)
	if l.shared != nil {
		if _, ok := l.shared.versions[name]; ok {
			l.setOverride(name, override{removed: true})
			return
		}
	}
	l.removeOverride(name)
}

// all iterates over names and versions. During the iteration, the caller may remove names that were already yielded.
func (l *versionMap) all(yield func(name, version string) bool) {
	if l.shared != nil {
		for name, version := range l.shared.versions {
			if _, differs := l.overrides[name]; !differs && !yield(name, version) {
				return
			}
		}
	}
	for name, e := range l.overrides {
		if !e.removed && !yield(name, e.version) {
			return
		}
	}
}

// sorted returns the sorted names. The caller must not modify the slice.
func (l *versionMap) sorted() []string {
	if len(l.overrides) == 0 {
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

// compact moves all entries to a page if the map has many overrides (see pageShare).
func (l *versionMap) compact(p *pageCache) {
	if l.size < pageSize || len(l.overrides) <= l.size/pageShare {
		return
	}
	l.shared, l.overrides, l.overrideBytes = p.findOrCreate(l), nil, 0
}

// find returns the cached page whose content is exactly all, or nil. n is the number of entries, and sum is the sum of
// their hashes.
func (p *pageCache) find(n int, sum uint64, all iter.Seq2[string, string]) *versionPage {
	p.mu.Lock()
	found := p.bySum[sum].Value()
	p.mu.Unlock()
	if found == nil || !found.hasExactly(n, all) {
		return nil
	}
	return found
}

// hasExactly reports whether the content of the page is exactly all: n entries with distinct names.
func (p *versionPage) hasExactly(n int, all iter.Seq2[string, string]) bool {
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

// findOrCreate returns the cached page with the content of l, and creates it if necessary.
func (p *pageCache) findOrCreate(l *versionMap) *versionPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.bySum[l.sum].Value(); found != nil && found.equals(l) {
		return found
	}
	made := newPage(l)
	if p.bySum == nil {
		p.bySum = map[uint64]weak.Pointer[versionPage]{}
	}
	p.bySum[made.sum] = weak.Make(made)
	runtime.AddCleanup(made, p.removeCollected, made.sum)
	return made
}

// newPage copies the content of l to a page. All strings of the page are substrings of one new string. The strings of l
// may be substrings of large requests, whose memory they would retain.
func newPage(l *versionMap) *versionPage {
	made := &versionPage{versions: make(map[string]string, l.size), names: make([]string, 0, l.size), bytes: l.bytes, sum: l.sum}
	var text strings.Builder
	text.Grow(l.bytes - l.size*nameCost)
	add := func(part string) string {
		from := text.Len()
		text.WriteString(part) // WriteString does not reallocate, because Grow reserved the space
		return text.String()[from:]
	}
	for name, version := range l.all {
		own := add(name)
		made.versions[own] = add(version)
		made.names = append(made.names, own)
	}
	slices.Sort(made.names)
	return made
}

func (p *versionPage) equals(l *versionMap) bool { return p.hasExactly(l.size, l.all) }

// removeCollected removes a garbage-collected page from the cache.
func (p *pageCache) removeCollected(sum uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bySum[sum].Value() == nil {
		delete(p.bySum, sum)
	}
}
