package wasm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

const (
	indexName  = "wasm-modules.json"
	tempPrefix = ".wasm-module-"
	// maxIndex limits the size of the index file, which is enough for some ten thousand modules.
	maxIndex = 4 << 20
)

// modulePath matches the paths of modules below the store's directory. It is compiled on first use, because it is
// large.
var modulePath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{64}/[0-9a-f]{64}\.wasm$`)
})

// store is a cache of modules in a directory, with an index that survives a restart. It stores only the checksums of
// the modules' URLs, because a URL may contain a password.
type store struct {
	dir     string
	owner   *owner.Owner
	max     int64
	expiry  time.Duration
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	opened  bool
	entries map[string]*entry // key: path below dir
	// verified are the files whose content this process has verified.
	verified map[string]bool
	// users maps the name of an Envoy resource to the path of its current module.
	users map[string]string
}

// entry is one cached module.
type entry struct {
	// Digest is the digest of the image or of the served file; ETag is the HTTP ETag.
	Digest string `json:"digest,omitempty"`
	ETag   string `json:"etag,omitempty"`
	Size   int64  `json:"size"`
	// Fetched is when the module was fetched or found unchanged. Used is when it was last requested.
	Fetched time.Time `json:"fetched"`
	Used    time.Time `json:"used"`

	path string
}

func (e *entry) sum() string { return strings.TrimSuffix(filepath.Base(e.path), ".wasm") }

func newStore(c *Config) *store {
	return &store{
		dir: c.Dir, owner: c.Owner, max: c.MaxTotal, expiry: c.Expiry, now: c.Now, started: c.Now(),
		entries: map[string]*entry{}, verified: map[string]bool{}, users: map[string]string{},
	}
}

// open reads the index on the first call. It omits invalid entries, because their modules can be fetched again.
func (s *store) open() {
	if s.opened {
		return
	}
	s.opened = true
	file, err := os.Open(filepath.Join(s.dir, indexName))
	if err != nil {
		return
	}
	defer file.Close()
	var entries map[string]*entry
	if json.NewDecoder(io.LimitReader(file, maxIndex)).Decode(&entries) != nil {
		return
	}
	for path, e := range entries {
		if e != nil && modulePath().MatchString(path) {
			e.path = path
			s.entries[path] = e
		}
	}
}

// find returns a copy of the newest entry of a cache key whose checksum or digest is sum; an empty sum matches every
// entry. It returns nil if there is none.
func (s *store) find(place, sum string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	var found *entry
	for _, e := range s.entries {
		of := filepath.Dir(e.path) == hexSum(place) && (sum == "" || sum == e.sum() || sum == e.Digest)
		if of && (found == nil || e.Fetched.After(found.Fetched)) {
			found = e
		}
	}
	if found == nil || !s.isIntact(found) {
		return nil
	}
	copied := *found
	return &copied
}

// makeReadable lets Envoy read a module, but not change it.
func (s *store) makeReadable(path string) error {
	return cmp.Or(s.owner.MakeReadable(s.dir), s.owner.MakeReadable(filepath.Join(s.dir, filepath.Dir(path))), s.owner.MakeReadable(filepath.Join(s.dir, path)))
}

// isIntact reports whether a file has the checksum in its name, which it computes once per process. It drops an invalid
// entry.
func (s *store) isIntact(e *entry) bool {
	info, err := os.Lstat(filepath.Join(s.dir, e.path))
	good := err == nil && info.Mode().IsRegular() && info.Size() == e.Size
	if good && !s.verified[e.path] {
		good = s.sumOf(e.path) == e.sum() && s.makeReadable(e.path) == nil // an earlier agent may have run Envoy as another user
	}
	s.verified[e.path] = good
	if !good {
		s.drop(e)
	}
	return good
}

func (s *store) sumOf(path string) string {
	file, err := os.Open(filepath.Join(s.dir, path))
	if err != nil {
		return ""
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return ""
	}
	return hexOf(sum)
}

// temporary creates a file for a module that is being fetched.
func (s *store) temporary() (*os.File, error) {
	if err := s.owner.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.owner.MakeReadable(s.dir); err != nil {
		return nil, err
	}
	return os.CreateTemp(s.dir, tempPrefix) // with mode 0600
}

// put moves a fetched module into the cache and evicts others if the cache is full.
func (s *store) put(place string, f *fetched) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	path := filepath.Join(hexSum(place), f.sum+".wasm")
	err := os.MkdirAll(filepath.Join(s.dir, hexSum(place)), 0o700)
	if err == nil {
		err = os.Rename(f.file, filepath.Join(s.dir, path))
	}
	if err == nil {
		err = s.makeReadable(path)
	}
	if err != nil {
		_ = os.Remove(f.file)
		return nil, fmt.Errorf("storing the module: %w", err)
	}
	now := s.now()
	e := &entry{Digest: f.digest, ETag: f.etag, Size: f.size, Fetched: now, Used: now, path: path}
	s.entries[path], s.verified[path] = e, true
	s.shrink(path)
	copied := *e
	return &copied, s.save()
}

// recordUse records that an Envoy resource uses a module. If fresh is true, the source has just confirmed the module.
func (s *store) recordUse(resource, path string, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	s.users[resource] = path
	e := s.entries[path]
	if e == nil {
		return
	}
	e.Used = s.now()
	if fresh {
		e.Fetched = e.Used
	}
	_ = s.save() // a lost record causes at most one fetch
}

// shrink drops the least recently used modules until the cache is small enough. It drops unused ones first.
func (s *store) shrink(but string) {
	var total int64
	for _, e := range s.entries {
		total += e.Size
	}
	for _, e := range s.sortedByAge() {
		if total <= s.max {
			return
		}
		if e.path != but {
			total -= e.Size
			s.drop(e)
		}
	}
}

// dropUnused drops the least recently used module that no resource uses, except one entry, and reports whether it
// dropped a module.
func (s *store) dropUnused(but *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	for _, e := range s.sortedByAge() {
		if s.inUse(e.path) {
			break
		}
		if but == nil || e.path != but.path {
			s.drop(e)
			return true
		}
	}
	return false
}

func (s *store) sortedByAge() []*entry {
	all := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		if usedA, usedB := s.inUse(a.path), s.inUse(b.path); usedA != usedB {
			if usedA {
				return 1
			}
			return -1
		}
		return cmp.Or(a.Used.Compare(b.Used), strings.Compare(a.path, b.path))
	})
	return all
}

func (s *store) inUse(path string) bool {
	for _, used := range s.users {
		if used == path {
			return true
		}
	}
	return false
}

// purge drops unused modules that have expired, and files of interrupted fetches. It drops none within the first expiry
// period of this process, because Envoy may use modules that an earlier process recorded.
func (s *store) purge() (dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	limit := s.now().Add(-s.expiry)
	if s.started.After(limit) {
		return 0
	}
	for _, e := range s.sortedByAge() {
		if !s.inUse(e.path) && e.Used.Before(limit) {
			s.drop(e)
			dropped++
		}
	}
	s.sweep(limit)
	if dropped > 0 {
		_ = s.save()
	}
	return dropped
}

// sweep removes old module files and temporary files that are not in the index.
func (s *store) sweep(limit time.Time) {
	modules, _ := filepath.Glob(filepath.Join(s.dir, "*", "*.wasm"))
	left, _ := filepath.Glob(filepath.Join(s.dir, tempPrefix+"*"))
	for _, file := range append(modules, left...) {
		path, err := filepath.Rel(s.dir, file)
		info, statErr := os.Lstat(file)
		if err != nil || statErr != nil || !info.Mode().IsRegular() || info.ModTime().After(limit) {
			continue
		}
		ours := modulePath().MatchString(filepath.ToSlash(path)) || strings.HasPrefix(path, tempPrefix)
		if ours && s.entries[path] == nil {
			_ = os.Remove(file)
		}
	}
}

func (s *store) drop(e *entry) {
	_ = os.Remove(filepath.Join(s.dir, e.path))
	_ = os.Remove(filepath.Join(s.dir, filepath.Dir(e.path))) // fails unless the directory is empty
	delete(s.entries, e.path)
	delete(s.verified, e.path)
}

// save writes the index to a new file and renames it over the old one.
func (s *store) save() error {
	content, err := json.Marshal(s.entries)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(s.dir, indexName), content); err != nil {
		return fmt.Errorf("storing the index of modules: %w", err)
	}
	return nil
}

// count returns the number and total size of the cached modules.
func (s *store) count() (n int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		bytes += e.Size
	}
	return len(s.entries), bytes
}

func hexSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
