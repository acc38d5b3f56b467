package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

var testIdentity = Identity{Node: "sidecar~10.0.0.1~a.b~b.svc", Cluster: "a.b", Protocol: "delta"}

func openStore(t testing.TB, config Config) *Store {
	t.Helper()
	if config.Delay == 0 {
		config.Delay = time.Millisecond
	}
	s := Open(config)
	t.Cleanup(func() {
		select {
		case <-s.closing:
		default:
			s.Close()
		}
	})
	return s
}

// newResponse returns a delta response with resources "name=content", whose version is that of the response.
func newResponse(t testing.TB, typeURL, version string, resources ...string) (wire.Response, *wire.Message) {
	t.Helper()
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version}
	for _, r := range resources {
		name, content, _ := strings.Cut(r, "=")
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(content)}})
	}
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	message := wire.NewMessage(data)
	r, err := wire.ParseResponse(wire.Delta, message.Data)
	if err != nil {
		t.Fatal(err)
	}
	return r, message
}

func accept(t testing.TB, r *Recording, version string, resources ...string) {
	t.Helper()
	response, message := newResponse(t, clusterType, version, resources...)
	r.Accept(response, message, false, nil)
}

func remove(r *Recording, names ...string) {
	r.Accept(wire.Response{TypeURL: clusterType, Version: "r", Removed: names}, wire.NewMessage(nil), false, nil)
}

func complete(r *Recording) { r.Complete(nil, nil) }

// load returns the stored resources: name=version:content.
func load(t testing.TB, s *Store, id Identity) string {
	t.Helper()
	snapshot := <-s.Load(t.Context(), id)
	if snapshot == nil {
		return "nothing"
	}
	defer func() { _ = snapshot.Close() }()
	var all []string
	for _, typeURL := range snapshot.Types() {
		for _, name := range snapshot.Names(typeURL) {
			version, content, ok, err := snapshot.Resource(typeURL, name)
			var r discoveryv3.Resource
			if err != nil || !ok || proto.Unmarshal(content, &r) != nil || r.Name != name {
				t.Fatal(typeURL, name, ok, err)
			}
			all = append(all, fmt.Sprintf("%s=%s:%s", name, version, r.Resource.GetValue()))
		}
	}
	return strings.Join(all, " ")
}

func expectStored(t testing.TB, s *Store, want string) {
	t.Helper()
	if got := load(t, s, testIdentity); got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
}

func TestAcceptedChangesAreMergedAcrossRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, Config{Dirs: []string{dir}})
	expectStored(t, s, "nothing")
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A", "b=B", "c=C")
	complete(r)
	expectStored(t, s, "a=1:A b=1:B c=1:C")
	accept(t, r, "2", "b=BB", "d=D")
	remove(r, "a")
	r.Remove(clusterType, []string{"c"})
	expectStored(t, s, "b=2:BB d=2:D")
	accept(t, r, "3", "a=A3")
	s.Close() // saves

	s = openStore(t, Config{Dirs: []string{dir}})
	expectStored(t, s, "a=3:A3 b=2:BB d=2:D")
	r = s.Begin(testIdentity)
	accept(t, r, "4", "b=4")
	r.Complete([]string{clusterType}, func(_, name string) bool { return name != "d" })
	expectStored(t, s, "a=3:A3 b=4:4")
	file, _ := (&directory{path: dir}).file(clusterType)
	for path, want := range map[string]os.FileMode{dir: 0o700, file: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", path, info, err, want)
		}
	}
}

func TestRejectedResourcesOfAcceptedResponseAreNotStored(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A", "b=B")
	response, message := newResponse(t, clusterType, "2", "a=good", "b=bad")
	r.Accept(response, message, false, []string{"b"})
	complete(r)
	expectStored(t, s, "a=2:good b=1:B")
}

func TestFullResponseReplacesAllResources(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A", "b=B")
	complete(r)
	expectStored(t, s, "a=1:A b=1:B")
	response, message := newResponse(t, clusterType, "2", "c=C")
	r.Accept(response, message, true, nil)
	expectStored(t, s, "c=2:C")
}

func TestIncompleteConfigurationIsSavedOnlyAfterMaxDelay(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Config{Dirs: []string{dir}})
	accept(t, s.Begin(testIdentity), "1", "a=A")
	expectStored(t, s, "nothing")
	s.Close()
	s = openStore(t, Config{Dirs: []string{dir}, MaxDelay: 10 * time.Millisecond})
	expectStored(t, s, "nothing")
	accept(t, s.Begin(testIdentity), "1", "a=A")
	testenv.Eventually(t, "the changes are saved", func() error {
		if got := load(t, s, testIdentity); got != "a=1:A" {
			return errors.New(got)
		}
		return nil
	})
}

func TestDiscardedChangesAreNotSaved(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, Delay: time.Hour})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	r.Discard()
	accept(t, r, "1", "b=B")
	complete(r)
	expectStored(t, s, "b=1:B")
}

func TestNewStreamRetainsUnsavedChangesOfCompleteConfiguration(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, Delay: time.Hour})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	complete(r)
	s.Begin(testIdentity)
	accept(t, r, "1", "late=L") // has no effect, because a newer recording was started
	testenv.Eventually(t, "the changes are saved", func() error {
		if s.Status().Saved.IsZero() {
			return errors.New("not yet")
		}
		return nil
	})
	expectStored(t, s, "a=1:A")
}

func TestConfigurationOfAnotherProxyIsNotLoadedAndReplaced(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	complete(r)
	expectStored(t, s, "a=1:A")
	other := Identity{Node: "other", Protocol: "delta"}
	if got := load(t, s, other); got != "nothing" {
		t.Errorf("loaded %q", got)
	}
	r = s.Begin(other)
	accept(t, r, "1", "o=O")
	complete(r)
	if got := load(t, s, other); got != "o=1:O" {
		t.Errorf("stored %q", got)
	}
	expectStored(t, s, "nothing")
}

func TestSecretsAreNotStored(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Config{Dirs: []string{dir}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "keyed=harmless before")
	accept(t, r, "2", "keyed=-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0\n-----END EC PRIVATE KEY-----\n", "a=A")
	response, message := newResponse(t, secretType, "1", "default=hidden")
	r.Accept(response, message, false, nil)
	complete(r)
	expectStored(t, s, "a=2:A")
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || bytes.Contains(content, []byte("c2VjcmV0")) || bytes.Contains(content, []byte("hidden")) {
			t.Errorf("%s contains a secret, or %v", file, err)
		}
	}
	if got := s.Status().Withheld; len(got) != 1 || got[0] != clusterType+" keyed" {
		t.Errorf("withheld: %q", got)
	}
}

// In SotW, a type has one version. It is not stored while a resource is missing or outdated, so that the control plane
// sends all.
func TestVersionIsNotStoredWhileResourceIsOutdated(t *testing.T) {
	id := Identity{Node: "n", Protocol: sotw}
	s := openStore(t, Config{Dirs: []string{t.TempDir()}})
	expect := func(want string) {
		t.Helper()
		snapshot := <-s.Load(t.Context(), id)
		defer func() { _ = snapshot.Close() }()
		if got, _ := snapshot.Version(clusterType); got != want {
			t.Errorf("version %q, want %q", got, want)
		}
	}
	r := s.Begin(id)
	accept(t, r, "1", "a=A", "b=B")
	complete(r)
	expect("1")
	rejected, message := newResponse(t, clusterType, "2", "a=2")
	message.Free()
	r.Invalidate(rejected)
	expect("")
	accept(t, r, "3", "b=3")
	expect("")
	accept(t, r, "4", "a=4")
	expect("4")
	accept(t, r, "5", "b=PRIVATE KEY-----")
	expect("")
	accept(t, r, "6", "a=6")
	expect("")
	accept(t, r, "7", "b=7")
	expect("7")
}

// A crash, a full disk or another process may truncate or change a file.
func TestDamagedFileIsNotLoaded(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, Config{Dirs: []string{dir}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A", "b=B")
	complete(r)
	s.Close()
	d := &directory{path: dir}
	path, _ := d.file(clusterType)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if snapshot, err := d.load(testIdentity); err == nil && snapshot != nil {
			t.Errorf("%d bytes were loaded", len(content))
			_ = snapshot.Close()
		}
	}
	for n := range content {
		try(content[:n])
		flipped := bytes.Clone(content)
		flipped[n] ^= 0x10
		try(flipped)
	}
	try(append(bytes.Clone(content), 0))

	// The next recording replaces the file, at the latest on its second attempt.
	s = openStore(t, Config{Dirs: []string{dir}})
	for range 2 {
		r = s.Begin(testIdentity)
		accept(t, r, "2", "c=C")
		complete(r)
		load(t, s, testIdentity)
	}
	expectStored(t, s, "c=2:C")
}

func TestSizeLimitStopsSavingUntilNextStream(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, MaxBytes: 10 << 10})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	complete(r)
	expectStored(t, s, "a=1:A")
	accept(t, r, "2", "big="+strings.Repeat("x", 20<<10))
	expectStored(t, s, "a=1:A")
	if st := s.Status(); st.Failures != 1 || !strings.Contains(st.Reason, "larger than the limit") || r.IsActive() {
		t.Errorf("status: %+v", st)
	}
	accept(t, r, "3", "c=C")
	expectStored(t, s, "a=1:A")
	r = s.Begin(testIdentity)
	accept(t, r, "4", "d=D")
	complete(r)
	expectStored(t, s, "a=1:A d=4:D")
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
}

func TestUnusableDirectoriesAreReported(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	first := openStore(t, Config{Dirs: []string{"/proc/no/such", dir}})
	load(t, first, testIdentity) // it is open
	if st := first.Status(); st.Directory != dir {
		t.Errorf("status: %+v", st)
	}
	if err := os.WriteFile(filepath.Join(other, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second := openStore(t, Config{Dirs: []string{dir, other}})
	load(t, second, testIdentity)
	if st := second.Status(); second.IsUsable() || !strings.Contains(st.Reason, "another process") || !strings.Contains(st.Reason, "notes.txt") {
		t.Errorf("status: %+v", st)
	}
	if second.Begin(testIdentity).IsActive() {
		t.Error("changes are recorded although no directory is usable")
	}
	if _, err := os.Stat(filepath.Join(other, "notes.txt")); err != nil {
		t.Error(err)
	}
}

func TestFilesOfEarlierVersionAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"configuration.log", "configuration.new", ".draft-123"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, Config{Dirs: []string{dir}})
	load(t, s, testIdentity)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
}

func TestHungDiskStopsSavingUntilNextStream(t *testing.T) {
	hangs := make(chan struct{})
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, HangTimeout: time.Millisecond, beforeOpen: func() { <-hangs }})
	r := s.Begin(testIdentity)
	testenv.Eventually(t, "the store reports the hung disk", func() error {
		if st := s.Status(); r.IsActive() || st.Failures != 1 || !strings.Contains(st.Reason, "hangs") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	accept(t, r, "1", "a=A") // does not block
	if s.Begin(testIdentity).IsActive() {
		t.Error("changes are recorded while the disk hangs")
	}
	close(hangs)
	testenv.Eventually(t, "saving resumes", func() error {
		r = s.Begin(testIdentity)
		if !r.IsActive() {
			return errors.New("not yet")
		}
		return nil
	})
	s.config.HangTimeout = time.Minute
	accept(t, r, "1", "b=B")
	complete(r)
	expectStored(t, s, "b=1:B")
}

func TestCloseDoesNotWaitForHungDisk(t *testing.T) {
	hangs := make(chan struct{})
	s := Open(Config{Dirs: []string{t.TempDir()}, HangTimeout: time.Millisecond, beforeOpen: func() { <-hangs }})
	s.Close()
	close(hangs)
	<-s.done
}

func TestUpToDateIsTimeOfLastSaveOrConfirmation(t *testing.T) {
	now := time.Now().Add(-time.Hour).Truncate(time.Second)
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, Now: func() time.Time { return now }})
	expect := func() {
		t.Helper()
		snapshot := <-s.Load(t.Context(), testIdentity)
		if !snapshot.UpToDate.Equal(now) {
			t.Errorf("up to date until %v, want %v", snapshot.UpToDate, now)
		}
		_ = snapshot.Close()
	}
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	complete(r)
	expect()
	now = now.Add(time.Minute)
	r.MarkUpToDate()
	expect()
}

// trackedPool counts the buffers in use.
type trackedPool struct{ used int }

func (p *trackedPool) Get(n int) *[]byte { p.used++; b := make([]byte, n); return &b }
func (p *trackedPool) Put(*[]byte)       { p.used-- }

// A message is freed when all its resources are saved or superseded.
func TestMessagesAreFreed(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, Delay: time.Hour, MaxDelay: time.Hour})
	r := s.Begin(testIdentity)
	pool := &trackedPool{}
	acceptLarge := func(version, name string, size int) {
		t.Helper()
		response, message := newResponse(t, clusterType, version, name+"="+strings.Repeat("x", size))
		pooled := mem.Copy(message.Data.Materialize(), pool)
		r.Accept(response, &wire.Message{Data: mem.BufferSlice{pooled}}, false, nil)
	}
	acceptLarge("1", "a", smallMessage)
	acceptLarge("2", "a", smallMessage)
	acceptLarge("3", "b", smallMessage)
	if pool.used != 2 {
		t.Errorf("%d messages are in memory, want 2", pool.used)
	}
	acceptLarge("4", "c", smallMessage/2)
	if pool.used != 2 {
		t.Errorf("a small message is not copied: %d messages are in memory", pool.used)
	}
	remove(r, "b")
	if pool.used != 1 {
		t.Errorf("%d messages are in memory, want 1", pool.used)
	}
	complete(r)
	load(t, s, testIdentity)
	if pool.used != 0 {
		t.Errorf("%d messages are in memory after the save", pool.used)
	}
	acceptLarge("5", "a", smallMessage)
	r.Discard()
	if pool.used != 0 {
		t.Errorf("%d messages are in memory after the discard", pool.used)
	}
}

// Large changes are saved without delay even if the configuration is incomplete, except listeners.
func TestLargeChangesAreSavedWithoutDelay(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}, Delay: time.Hour, MaxDelay: time.Hour})
	r := s.Begin(testIdentity)
	response, message := newResponse(t, listenerType, "1", "l="+strings.Repeat("x", maxUnsavedBytes))
	r.Accept(response, message, false, nil)
	accept(t, r, "1", "c="+strings.Repeat("x", maxUnsavedBytes))
	testenv.Eventually(t, "clusters are saved", func() error {
		if s.Status().Saved.IsZero() {
			return errors.New("not yet")
		}
		return nil
	})
	snapshot := <-s.Load(t.Context(), testIdentity)
	if !snapshot.HasResource(clusterType, "c") || snapshot.HasResource(listenerType, "l") {
		t.Errorf("stored types: %q", snapshot.Types())
	}
	_ = snapshot.Close()
	complete(r)
	snapshot = <-s.Load(t.Context(), testIdentity)
	if !snapshot.HasResource(listenerType, "l") {
		t.Errorf("stored types: %q", snapshot.Types())
	}
	_ = snapshot.Close()
}

// After a save, the next save waits in proportion to the written bytes. A forced save does not wait.
func TestSavesAreLimitedByWrittenBytes(t *testing.T) {
	s := openStore(t, Config{Dirs: []string{t.TempDir()}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a="+strings.Repeat("x", 100*maxWriteRate))
	complete(r)
	testenv.Eventually(t, "the first change is saved", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.nextSave.IsZero() {
			return errors.New("not yet")
		}
		return nil
	})
	accept(t, r, "2", "a=A")
	s.mu.Lock()
	pause := time.Until(s.nextSave)
	due := r.removeDue(false)
	s.mu.Unlock()
	if pause < 40*time.Second || pause > 101*time.Second {
		t.Errorf("the next save waits %s, want 100 s", pause)
	}
	if len(due.types) != 0 {
		t.Errorf("changes of %d types are due before that", len(due.types))
	}
	expectStored(t, s, "a=2:A") // loading forces a save
}

func TestPauseBetweenSavesIsLimited(t *testing.T) {
	if got := pauseAfter(1 << 40); got != maxPause {
		t.Errorf("the pause after a save of 1 TiB is %s, want %s", got, maxPause)
	}
}

// FuzzLoad loads arbitrary files: they are either loaded or refused.
func FuzzLoad(f *testing.F) {
	dir := f.TempDir()
	s := openStore(f, Config{Dirs: []string{dir}})
	r := s.Begin(testIdentity)
	accept(f, r, "1", "a=A", "b=B")
	complete(r)
	s.Close()
	d := &directory{path: dir}
	path, _ := d.file(clusterType)
	content, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add(content[:len(content)-3])
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		snapshot, err := d.load(testIdentity)
		if err != nil || snapshot == nil {
			return
		}
		for _, name := range snapshot.Names(clusterType) {
			if _, _, _, err := snapshot.Resource(clusterType, name); err != nil {
				t.Error(err)
			}
		}
		_ = snapshot.Close()
	})
}
