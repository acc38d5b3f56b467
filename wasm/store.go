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
	// maxIndex limits the size of the index file in bytes. It is sufficient for about 10,000 modules.
	maxIndex = 4 << 20
)

// modulePath matches the path of a module relative to the store's directory. The expression is compiled on first use,
// because it uses much memory.
var modulePath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{64}/[0-9a-f]{64}\.wasm$`)
})

// store is a cache of modules in a directory, with an index file that is read after a restart. It stores only the
// SHA-256 of a module's cache key, because the key contains the URL and may contain a password.
type store struct {
	dir     string
	owner   *owner.Owner
	max     int64
	expiry  time.Duration
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	opened  bool
	entries map[string]*entry // by path relative to dir
	// verified contains the paths of the files whose content this process has verified.
	verified map[string]bool
	// users maps the name of an ECDS resource to the path of its current module.
	users map[string]string
}

// entry is one cached module.
type entry struct {
	// Digest is the SHA-256 of the image or of the served file. ETag is the HTTP ETag.
	Digest string `json:"digest,omitempty"`
	ETag   string `json:"etag,omitempty"`
	Size   int64  `json:"size"`
	// Fetched is when the module was last fetched, or found unchanged at its source. Used is when it was last requested.
	Fetched time.Time `json:"fetched"`
	Used    time.Time `json:"used"`

	path string // relative to the store's directory
}

// sum returns the SHA-256 of the module, which is its file name.
func (e *entry) sum() string { return strings.TrimSuffix(filepath.Base(e.path), ".wasm") }

func newStore(c *Config) *store {
	return &store{
		dir: c.Dir, owner: c.Owner, max: c.MaxTotal, expiry: c.Expiry, now: c.Now, started: c.Now(),
		entries: map[string]*entry{}, verified: map[string]bool{}, users: map[string]string{},
	}
}

// open reads the index on the first call; the caller holds mu. It ignores an unreadable index and invalid entries,
// because modules can be fetched again.
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

// find returns a copy of the newest entry for a cache key whose checksum or digest is sum. An empty sum matches every
// entry. It returns nil if there is none or the file is damaged.
func (s *store) find(key, sum string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	var found *entry
	for _, e := range s.entries {
		matches := filepath.Dir(e.path) == hexSum(key) && (sum == "" || sum == e.sum() || sum == e.Digest)
		if matches && (found == nil || e.Fetched.After(found.Fetched)) {
			found = e
		}
	}
	if found == nil || !s.isIntact(found) {
		return nil
	}
	copied := *found
	return &copied
}

// makeReadable permits Envoy to read a module, but not to change it.
func (s *store) makeReadable(path string) error {
	return cmp.Or(s.owner.MakeReadable(s.dir), s.owner.MakeReadable(filepath.Join(s.dir, filepath.Dir(path))), s.owner.MakeReadable(filepath.Join(s.dir, path)))
}

// isIntact reports whether a module's file has the checksum that is its name. It computes the checksum once per process.
// It removes a damaged module from the cache. The caller holds mu.
func (s *store) isIntact(e *entry) bool {
	info, err := os.Lstat(filepath.Join(s.dir, e.path))
	good := err == nil && info.Mode().IsRegular() && info.Size() == e.Size
	if good && !s.verified[e.path] {
		// An earlier agent may have run Envoy as another user, so the permissions are set again.
		good = s.sumOf(e.path) == e.sum() && s.makeReadable(e.path) == nil
	}
	s.verified[e.path] = good
	if !good {
		s.drop(e)
	}
	return good
}

// sumOf computes the SHA-256 of a file, or returns "" if the file cannot be read.
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

// temporary creates a temporary file for a module that is being fetched.
func (s *store) temporary() (*os.File, error) {
	if err := s.owner.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.owner.MakeReadable(s.dir); err != nil {
		return nil, err
	}
	return os.CreateTemp(s.dir, tempPrefix) // with mode 0600
}

// put moves a fetched module into the cache, and removes other modules if the cache is full. If only writing the index
// fails, put returns both the entry and the error.
func (s *store) put(key string, f *fetched) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	path := filepath.Join(hexSum(key), f.sum+".wasm")
	err := os.MkdirAll(filepath.Join(s.dir, hexSum(key)), 0o700)
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

// recordUse records that an ECDS resource uses a module. current means that the source has just confirmed that the
// module is unchanged.
func (s *store) recordUse(resource, path string, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	s.users[resource] = path
	e := s.entries[path]
	if e == nil {
		return
	}
	e.Used = s.now()
	if current {
		e.Fetched = e.Used
	}
	_ = s.save() // a lost record causes at most one fetch
}

// shrink removes modules until the size of the cache is at most max: first unused modules, then the least recently used
// ones. It retains the module at keepPath.
func (s *store) shrink(keepPath string) {
	var total int64
	for _, e := range s.entries {
		total += e.Size
	}
	for _, e := range s.sortedByAge() {
		if total <= s.max {
			return
		}
		if e.path != keepPath {
			total -= e.Size
			s.drop(e)
		}
	}
}

// dropUnused removes the least recently used module that is not used by a resource. It does not remove except, which may
// be nil. It reports whether it removed a module.
func (s *store) dropUnused(except *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	for _, e := range s.sortedByAge() {
		if s.inUse(e.path) {
			break
		}
		if except == nil || e.path != except.path {
			s.drop(e)
			return true
		}
	}
	return false
}

// sortedByAge returns the entries in the order of removal: unused modules first, and the least recently used first.
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

// inUse reports whether a resource uses the module at the path.
func (s *store) inUse(path string) bool {
	for _, used := range s.users {
		if used == path {
			return true
		}
	}
	return false
}

// purge removes expired modules that are not used, and the files of interrupted fetches. It removes nothing until this
// process has run for expiry, because Envoy may use modules that an earlier process fetched.
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

// drop removes a module from the disk and from the entries.
func (s *store) drop(e *entry) {
	_ = os.Remove(filepath.Join(s.dir, e.path))
	_ = os.Remove(filepath.Join(s.dir, filepath.Dir(e.path))) // removes the directory only if it is empty
	delete(s.entries, e.path)
	delete(s.verified, e.path)
}

// save replaces the index file atomically.
func (s *store) save() error {
	content, err := json.Marshal(s.entries)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(s.dir, indexName), content); err != nil {
		return fmt.Errorf("writing the index of the module cache: %w", err)
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
