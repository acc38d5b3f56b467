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

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

const (
	indexName  = "wasm-modules.json"
	tempPrefix = ".wasm-module-"
	// largestIndex bounds the index that is read: some ten thousand modules.
	largestIndex = 4 << 20
)

// modulePath is how the files of modules are named, below the store's directory; it is large once it is compiled.
var modulePath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{64}/[0-9a-f]{64}\.wasm$`)
})

// store keeps modules in a directory, with an index that outlives the process. Which URLs they came from is in it as a
// checksum only, for a URL may hold a password.
type store struct {
	dir     string
	owner   *owner.Owner
	max     int64
	expiry  time.Duration
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	opened  bool
	entries map[string]*entry // by path below dir
	// verified are the files whose content was looked at by this process.
	verified map[string]bool
	// users have, by resource of Envoy, the path that it was given last.
	users map[string]string
}

// entry is one module that is kept.
type entry struct {
	// Digest is that of the image, or of the file as it was served; ETag is HTTP's.
	Digest string `json:"digest,omitempty"`
	ETag   string `json:"etag,omitempty"`
	Size   int64  `json:"size"`
	// Fetched and Used are when it was fetched, or found to be unchanged, and asked for.
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

// open reads the index, the first time. What is not as it should be is left out: it can be fetched again.
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
	if json.NewDecoder(io.LimitReader(file, largestIndex)).Decode(&entries) != nil {
		return
	}
	for path, e := range entries {
		if e != nil && modulePath().MatchString(path) {
			e.path = path
			s.entries[path] = e
		}
	}
}

// find is the module that a place last gave, or the one with the given checksum; nil if it is not kept.
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
	if found == nil || !s.whole(found) {
		return nil
	}
	copied := *found
	return &copied
}

// show lets Envoy read a module, and change nothing.
func (s *store) show(path string) error {
	return cmp.Or(s.owner.Show(s.dir), s.owner.Show(filepath.Join(s.dir, filepath.Dir(path))), s.owner.Show(filepath.Join(s.dir, path)))
}

// whole looks once whether a file is what its name says, and forgets it otherwise.
func (s *store) whole(e *entry) bool {
	info, err := os.Lstat(filepath.Join(s.dir, e.path))
	good := err == nil && info.Mode().IsRegular() && info.Size() == e.Size
	if good && !s.verified[e.path] {
		good = s.sumOf(e.path) == e.sum() && s.show(e.path) == nil // it may be from before Envoy ran as another user
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

// temporary makes a file for a module that is being fetched.
func (s *store) temporary() (*os.File, error) {
	if err := s.owner.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.owner.Show(s.dir); err != nil {
		return nil, err
	}
	return os.CreateTemp(s.dir, tempPrefix) // with mode 0600
}

// put takes over a module that was fetched, and makes room for it.
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
		err = s.show(path)
	}
	if err != nil {
		_ = os.Remove(f.file)
		return nil, fmt.Errorf("keeping the module: %w", err)
	}
	now := s.now()
	e := &entry{Digest: f.digest, ETag: f.etag, Size: f.size, Fetched: now, Used: now, path: path}
	s.entries[path], s.verified[path] = e, true
	s.shrink(path)
	copied := *e
	return &copied, s.save()
}

// use notes that a resource of Envoy was given a module, and that the module is fresh if it is.
func (s *store) use(resource, path string, fresh bool) {
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
	_ = s.save() // a use that is forgotten costs a fetch at most
}

// shrink drops the modules that were used longest ago until the rest is small enough, those that no resource uses first.
func (s *store) shrink(but string) {
	var total int64
	for _, e := range s.entries {
		total += e.Size
	}
	for _, e := range s.byAge() {
		if total <= s.max {
			return
		}
		if e.path != but {
			total -= e.Size
			s.drop(e)
		}
	}
}

// dropUnused drops the module that was used longest ago, of those that no resource uses and but for one, and says whether there was
// any.
func (s *store) dropUnused(but *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	for _, e := range s.byAge() {
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

func (s *store) byAge() []*entry {
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

// purge drops what nobody has asked for in a long time, counted from this process's start at the earliest: Envoy may have
// been given modules by an earlier one. Left-overs of fetches that were cut off go too.
func (s *store) purge() (dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open()
	limit := s.now().Add(-s.expiry)
	if s.started.After(limit) {
		return 0
	}
	for _, e := range s.byAge() {
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

// sweep removes old files of modules that the index does not know.
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
	_ = os.Remove(filepath.Join(s.dir, filepath.Dir(e.path))) // when it is empty
	delete(s.entries, e.path)
	delete(s.verified, e.path)
}

// save writes the index beside the old one and swaps them.
func (s *store) save() error {
	content, err := json.Marshal(s.entries)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, indexName)
	_ = os.Remove(file + ".new") // which may be a link, if the directory was not always the agent's
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		_ = os.Remove(file + ".new")
		return fmt.Errorf("keeping the index of modules: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("keeping the index of modules: %w", err)
	}
	return nil
}

// count is how many modules are kept, and their size.
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
