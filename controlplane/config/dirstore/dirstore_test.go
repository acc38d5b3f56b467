package dirstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// runningStore is a Store that runs during a test.
type runningStore struct {
	*Store
	t   *testing.T
	dir string

	mu      sync.Mutex
	changed []config.Key
}

func startStore(t *testing.T, dir string) *runningStore {
	t.Helper()
	return startStoreWith(t, Config{Paths: []string{dir}, Rescan: time.Hour})
}

func startStoreWith(t *testing.T, cfg Config) *runningStore {
	t.Helper()
	store, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &runningStore{Store: store, t: t, dir: cfg.Paths[0]}
	cancelSubscription := store.Subscribe(func(keys []config.Key) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changed = append(f.changed, keys...)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
		cancelSubscription()
		goleak.VerifyNone(t)
	})
	return f
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f *runningStore) write(name, text string) { write(f.t, filepath.Join(f.dir, name), text) }

// waitFor waits for a condition and fails with the store's documents and problems after a timeout.
func (f *runningStore) waitFor(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("never happened: %s\ndocuments %+v\nproblems %v", what, f.Documents(), f.Problems())
		}
	}
}

func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {selector: {app: a}, ports: [{port: %d}]}\n", name, port)
}

// listErrors returns the problems of severity Error.
func listErrors(problems []config.Problem) (out []config.Problem) {
	for _, p := range problems {
		if p.Severity == config.Error {
			out = append(out, p)
		}
	}
	return out
}

func serviceKey(name string) config.Key {
	return config.Key{Kind: config.Service, Namespace: "default", Name: name}
}

func portOf(store config.Store, name string) uint32 {
	if r := store.Get(serviceKey(name)); r != nil {
		return r.Spec.(*config.ServiceSpec).Ports[0].Port
	}
	return 0
}

func (f *runningStore) document(name string) config.Document {
	for _, d := range f.Documents() {
		if d.Key == serviceKey(name) {
			return d
		}
	}
	return config.Document{}
}

func TestChangedFilesAreRead(t *testing.T) {
	f := startStore(t, t.TempDir())
	f.write("a.yaml", service("a", 80))
	f.waitFor("a new file is read", func() bool { return portOf(f, "a") == 80 })
	created := f.Get(serviceKey("a")).Created

	f.write("a.yaml", service("a", 81))
	f.waitFor("a changed file is read", func() bool { return portOf(f, "a") == 81 })
	if !f.Get(serviceKey("a")).Created.Equal(created) {
		t.Error("a changed document has become younger")
	}

	f.write("deep/er/b.yml", service("b", 82))
	f.waitFor("a file of a new directory is read", func() bool { return portOf(f, "b") == 82 })
	f.write("deep/er/c.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"},"spec":{"ports":[{"port":83}]}}`)
	f.waitFor("a file in a directory below is read", func() bool { return portOf(f, "c") == 83 })

	if err := os.Remove(filepath.Join(f.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.waitFor("a removed file's document is removed", func() bool { return f.Get(serviceKey("a")) == nil })
	if err := os.RemoveAll(filepath.Join(f.dir, "deep")); err != nil {
		t.Fatal(err)
	}
	f.waitFor("a removed directory's documents are removed", func() bool { return len(f.List(config.Service)) == 0 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.changed) != 7 {
		t.Errorf("notified of %v", f.changed)
	}
}

func TestFilesReplacedByRenameAreRead(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	f := startStore(t, dir)
	var gone atomic.Bool
	defer f.Subscribe(func([]config.Key) {
		if f.Get(serviceKey("a")) == nil {
			gone.Store(true)
		}
	})()
	path := filepath.Join(dir, "a.yaml")
	for port := 81; port < 90; port++ {
		if port%2 == 0 { // written to a new file and renamed over it
			f.write(".a.yaml.tmp123", service("a", port))
			if err := os.Rename(filepath.Join(dir, ".a.yaml.tmp123"), path); err != nil {
				t.Fatal(err)
			}
		} else { // renamed to a backup and written again
			if err := os.Rename(path, path+"~"); err != nil {
				t.Fatal(err)
			}
			f.write("a.yaml", service("a", port))
		}
		f.waitFor(fmt.Sprintf("port %d is read", port), func() bool { return portOf(f, "a") == uint32(port) })
	}
	if gone.Load() {
		t.Error("the document was gone for a moment")
	}
}

func TestKubernetesVolumesAreWatched(t *testing.T) {
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		temp := filepath.Join(dir, "..tmp")
		if err := os.Symlink(target, temp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "..2024_1", "a.yaml"), service("a", 80))
	link("..2024_1", "..data")
	link("..data/a.yaml", "a.yaml")
	f := startStore(t, dir)
	if portOf(f, "a") != 80 || len(f.Problems()) != 0 {
		t.Fatalf("the first version is not read once: %v", f.Problems())
	}
	f.write("..2024_2/a.yaml", service("a", 81))
	link("..2024_2", "..data")
	f.waitFor("the replaced volume is read", func() bool { return portOf(f, "a") == 81 })
}

func TestRefusedDocumentRetainsLastGoodVersion(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80)+"---\n"+service("b", 80))
	f := startStore(t, dir)
	since := f.document("a").Since

	f.write("a.yaml", strings.Replace(service("a", 80), "port:", "prot:", 1)+"---\n"+service("b", 81))
	f.waitFor("the other document is in force", func() bool { return portOf(f, "b") == 81 })
	if portOf(f, "a") != 80 {
		t.Error("the last accepted version is not in force any more")
	}
	if d := f.document("a"); d.State != config.Stale || !d.Since.Equal(since) || d.At.Line != 1 {
		t.Errorf("document is %+v", d)
	}
	if p := listErrors(f.Problems()); len(p) != 1 || p[0].Field != "spec.ports[0].prot" || p[0].At.File != filepath.Join(dir, "a.yaml") {
		t.Errorf("problems are %v", p)
	}

	f.write("a.yaml", service("b", 81))
	f.waitFor("the bad document is removed, and its last accepted version with it", func() bool { return f.Get(serviceKey("a")) == nil })
	if p := listErrors(f.Problems()); len(p) != 0 {
		t.Errorf("problems are %v", p)
	}
}

func TestFileWithSyntaxErrorRetainsAllDocuments(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80)+"---\n"+service("b", 80))
	f := startStore(t, dir)
	for name, text := range map[string]string{
		"one document broken": service("a", 80) + "---\n" + "apiVersion: v1\n  kind: Service\n",
		"all broken":          "{",
		"unknown kind":        service("a", 80) + "---\n" + strings.Replace(service("b", 80), "Service", "Servce", 1),
		"not UTF-8":           "\xff\xfe",
	} {
		f.write("a.yaml", text)
		f.waitFor(name, func() bool { return f.document("b").State == config.Stale })
		if portOf(f, "a") != 80 || portOf(f, "b") != 80 {
			t.Errorf("%s: %v are in force", name, f.List(config.Service))
		}
		f.write("a.yaml", service("a", 80)+"---\n"+service("b", 80))
		f.waitFor("mended", func() bool { return f.document("b").State == config.InForce })
	}
}

func TestUnknownKindDoesNotRetainARemovedDocument(t *testing.T) {
	dir := t.TempDir()
	other := "---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n"
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80)+"---\n"+service("b", 80)+other)
	f := startStore(t, dir)
	f.write("a.yaml", service("b", 80)+other)
	f.waitFor("the document is removed", func() bool { return f.Get(serviceKey("a")) == nil })
	if portOf(f, "b") != 80 {
		t.Error("the other is gone too")
	}
}

func TestMovedAndRefusedDocumentRetainsLastGoodVersion(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80)+"---\n"+service("b", 80))
	f := startStore(t, dir)
	f.write("b.yaml", strings.Replace(service("b", 80), "port:", "prot:", 1))
	f.waitFor("the second document is refused", func() bool { return len(listErrors(f.Problems())) == 1 })
	f.write("a.yaml", service("a", 81))
	f.waitFor("the file it moved from is read", func() bool { return portOf(f, "a") == 81 })
	if portOf(f, "b") != 80 {
		t.Error("the last accepted version is not in force any more")
	}
}

func TestEmptyFileRemovesDocumentsAfterGracePeriod(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	clock := time.Now()
	store, err := New(Config{Paths: []string{dir}, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", " \n"} {
		write(t, filepath.Join(dir, "a.yaml"), text)
		for range 2 {
			if again := store.scan(nil); !again || portOf(store, "a") != 80 {
				t.Error("an empty file was believed at once")
			}
			clock = clock.Add(emptyGrace / 2)
		}
		if again := store.scan(nil); again || portOf(store, "a") != 0 {
			t.Error("an empty file was not believed in the end")
		}
		write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
		store.scan(map[string]bool{filepath.Join(dir, "a.yaml"): true})
	}
}

func TestTruncatedAndRewrittenFileRetainsDocuments(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	clock := time.Now()
	store, err := New(Config{Paths: []string{dir}, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	defer store.Subscribe(func([]config.Key) { changes++ })()
	for port := 81; port < 84; port++ { // a new file each time
		write(t, filepath.Join(dir, "a.yaml"), "")
		store.scan(nil)
		clock = clock.Add(emptyGrace - time.Millisecond)
		store.scan(nil)
		write(t, filepath.Join(dir, "a.yaml"), service("a", port))
		store.scan(nil)
		if portOf(store, "a") != uint32(port) {
			t.Errorf("port %d is in force, not %d", portOf(store, "a"), port)
		}
	}
	if changes != 3 {
		t.Errorf("notified of %d changes", changes)
	}
}

func TestRemovedFileHasAShorterGracePeriod(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	clock := time.Now()
	store, err := New(Config{Paths: []string{dir}, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if again := store.scan(nil); !again || portOf(store, "a") != 80 {
		t.Error("a removed file was believed at once")
	}
	clock = clock.Add(removalGrace)
	if again := store.scan(nil); again || portOf(store, "a") != 0 {
		t.Error("a removed file was not believed in the end")
	}
}

func TestDuplicateInAnotherFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), service("a", 80))
	f := startStore(t, dir)
	f.write("a.yaml", service("a", 81))
	f.waitFor("the duplicate is reported", func() bool { return len(listErrors(f.Problems())) == 1 })
	p := f.Problems()[0]
	if portOf(f, "a") != 80 || p.At.File != filepath.Join(dir, "a.yaml") || !strings.Contains(p.Message, filepath.Join(dir, "b.yaml")+":1:1") {
		t.Errorf("port %d is in force; %s", portOf(f, "a"), p)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	f.waitFor("the other takes its place", func() bool { return portOf(f, "a") == 81 })
	if len(f.Problems()) != 0 {
		t.Errorf("problems remain: %v", f.Problems())
	}
}

func TestHiddenAndForeignFilesAreSkipped(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{".a.yaml", "a.yaml~", "a.yaml.swp", "#a.yaml#", "a.txt", ".git/a.yaml", "a.yaml.bak", "yaml"} {
		write(t, filepath.Join(dir, name), service(fmt.Sprintf("a%d", i), 80))
	}
	if err := os.Symlink(dir, filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	store, err := New(Config{Paths: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	if list := store.List(config.Service); len(list) != 0 {
		t.Errorf("read %v", list)
	}
}

func TestSingleFilesOfAnyNameAreWatched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.conf")
	write(t, path, service("a", 80))
	f := startStore(t, path)
	write(t, path, service("a", 81))
	f.waitFor("the file is read again", func() bool { return portOf(f, "a") == 81 })
}

func TestMissingDirectoryRetainsDocumentsUntilItReturns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	f := startStore(t, dir)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	f.waitFor("the loss is reported", func() bool { ok, _ := f.Health(); return !ok })
	if _, reason := f.Health(); portOf(f, "a") != 80 || !strings.Contains(reason, dir) {
		t.Errorf("port %d, reason %q", portOf(f, "a"), reason)
	}
	write(t, filepath.Join(dir, "a.yaml"), service("a", 81))
	f.waitFor("the directory is followed again", func() bool { ok, _ := f.Health(); return ok && portOf(f, "a") == 81 })
}

func TestMissingDirectoryIsAnError(t *testing.T) {
	_, err := New(Config{Paths: []string{"/does/not/exist"}})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v", err)
	}
	if _, err = New(Config{}); err == nil {
		t.Error("no path at all is accepted")
	}
}

func TestRescanFindsChangesWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	store, err := New(Config{Paths: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	store.scan(nil)
	if portOf(store, "a") != 80 {
		t.Error("a scan does not find a new file")
	}
}

func TestDocumentsWithoutEffectAreListed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\n"+service("a", 80)+"---\n"+strings.Replace(service("b", 80), "port:", "prot:", 1))
	store, err := New(Config{Paths: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range store.Documents() {
		got = append(got, fmt.Sprintf("%s %s %d", d.Key, d.State, d.At.Line))
	}
	want := "Deployment default/d no effect 1, Service default/a in force 5, Service default/b refused 10"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %v", got)
	}
}

func TestMovedDocumentCausesNoNotification(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), service("a", 80))
	f := startStore(t, dir)
	f.write("a.yaml", "# a comment\n\n"+service("a", 80))
	f.waitFor("its new place is known", func() bool { return f.Get(serviceKey("a")).Origin.Line == 3 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.changed) != 0 {
		t.Errorf("notified of %v", f.changed)
	}
}

// Events of the removed directory arrive when the next one is already watched.
func TestRepeatedlyReplacedDirectoryIsWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), service("a", 1000))
	f := startStore(t, dir)
	for round := range uint32(40) {
		old := dir + "-old"
		for _, err := range []error{os.Rename(dir, old), os.CopyFS(dir, os.DirFS(old)), os.RemoveAll(old)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		write(t, filepath.Join(dir, "below", "b.yaml"), service("b", int(2000+round)))
		if round%4 != 0 { // several immediate replacements
			continue
		}
		f.waitFor("the last replacement is in force", func() bool { return portOf(f, "b") == 2000+round && portOf(f, "a") == 1000 })
	}
}
