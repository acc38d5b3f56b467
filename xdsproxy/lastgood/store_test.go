package lastgood

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	clusters = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	routes   = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

var testIdentity = Identity{Node: "sidecar~10.0.0.1~a.b~b.svc", Cluster: "a.b", Protocol: "delta"}

func openStore(t testing.TB, dir string, maxBytes int64) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// writeAccepted writes one resource that Envoy accepts.
func writeAccepted(s *Store, stage uint64, typeURL, name, version, content string) {
	s.WriteResource(stage, typeURL, name, version, []byte(content))
	s.WriteResponse(stage, typeURL, version, false)
	s.Accept(stage)
}

// loadText returns the resources that a store would serve: name=version:content.
func loadText(t testing.TB, s *Store, id Identity) string {
	t.Helper()
	snapshot, err := s.Load(id)
	if err != nil {
		return err.Error()
	}
	if snapshot == nil {
		return "nothing"
	}
	defer func() { _ = snapshot.Close() }()
	return formatSnapshot(t, snapshot)
}

func formatSnapshot(t testing.TB, snapshot *Snapshot) string {
	var all []string
	for _, typeURL := range snapshot.Types() {
		for _, name := range snapshot.Names(typeURL) {
			version, content, ok, err := snapshot.Resource(typeURL, name)
			if err != nil || !ok {
				t.Fatal(typeURL, name, ok, err)
			}
			all = append(all, fmt.Sprintf("%s=%s:%s", name, version, content))
		}
	}
	return strings.Join(all, " ")
}

func expectStored(t testing.TB, s *Store, want string) {
	t.Helper()
	if got := loadText(t, s, testIdentity); got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
}

func TestOnlyAcceptedResourcesAreStored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, dir, 0)
	expectStored(t, s, "nothing")
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.WriteResource(2, clusters, "a", "2", []byte("broken"))
	s.WriteResponse(2, clusters, "2", false)
	s.Reject(2)
	s.WriteResource(3, clusters, "b", "3", []byte("B"))
	s.WriteResource(3, clusters, "c", "3", []byte("bad"))
	s.WriteResponse(3, clusters, "3", false)
	s.Accept(3, "c")
	s.WriteResource(4, clusters, "d", "4", []byte("unanswered"))
	s.WriteResponse(4, clusters, "4", false)
	s.Checkpoint()
	expectStored(t, s, "a=1:A b=3:B")

	s.WriteRemoval(5, clusters, "a")
	s.WriteResponse(5, clusters, "5", false)
	s.Accept(5)
	s.Unsubscribe(clusters, "b")
	s.Checkpoint()
	expectStored(t, s, "")

	s.WriteResource(6, routes, "x", "", []byte("X"))
	s.WriteResponse(6, routes, "6", true)
	s.Accept(6)
	s.WriteResource(7, routes, "y", "", []byte("Y"))
	s.WriteResponse(7, routes, "7", true)
	s.Accept(7)
	s.Checkpoint()
	expectStored(t, s, "y=:Y")
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, fileName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", path, info.Mode(), err, want)
		}
	}
}

func TestLastCheckpointSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	writeAccepted(s, 2, clusters, "b", "1", "B")
	s.Close() // B was written after the last checkpoint

	s = openStore(t, dir, 0)
	expectStored(t, s, "a=1:A")
	s.Begin(testIdentity, false)
	writeAccepted(s, 1, clusters, "c", "1", "C")
	s.Checkpoint()
	expectStored(t, s, "a=1:A c=1:C")
	s.Begin(testIdentity, true) // all resources are to be sent again, and none has arrived yet
	s.Flush()
	writeAccepted(s, 1, clusters, "z", "1", "Z")
	s.Flush()
	expectStored(t, s, "a=1:A c=1:C")
	s.Checkpoint()
	expectStored(t, s, "z=1:Z")
}

func TestConfigurationOfAnotherProxyIsRefused(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	for _, other := range []Identity{
		{Node: "sidecar~10.0.0.2~a.b~b.svc", Cluster: testIdentity.Cluster, Protocol: testIdentity.Protocol},
		{Node: testIdentity.Node, Cluster: testIdentity.Cluster, Protocol: "sotw"},
	} {
		if _, err := s.Load(other); !errors.Is(err, ErrForeign) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	other := Identity{Node: "other", Protocol: "delta"}
	s.Begin(other, false)
	writeAccepted(s, 1, clusters, "o", "1", "O")
	s.Checkpoint()
	if got := loadText(t, s, other); got != "o=1:O" {
		t.Errorf("stored %q", got)
	}
}

func TestSecretsAreNotWritten(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 0)
	s.Begin(testIdentity, true)
	key := "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0\n-----END EC PRIVATE KEY-----\n"
	writeAccepted(s, 1, clusters, "keyed", "1", "harmless before")
	writeAccepted(s, 2, clusters, "keyed", "2", "x"+key)
	writeAccepted(s, 3, secretType, "default", "1", "hidden")
	writeAccepted(s, 4, clusters, "a", "1", "A")
	s.Checkpoint()
	expectStored(t, s, "a=1:A")
	file, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file, []byte("c2VjcmV0")) || bytes.Contains(file, []byte("hidden")) {
		t.Error("a secret is in the file")
	}
	if got := s.Status().Withheld; len(got) != 1 || got[0] != clusters+" keyed" {
		t.Errorf("withheld: %q", got)
	}
}

// TestTruncatedFileYieldsEarlierCheckpointOrError covers crashes, full disks and truncated or damaged files.
func TestTruncatedFileYieldsEarlierCheckpointOrError(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	writeAccepted(s, 2, clusters, "b", "1", "B")
	s.Checkpoint()
	s.Close()
	path := filepath.Join(dir, fileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	try := func(content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, dir, 0)
		got := loadText(t, s, testIdentity)
		s.Close()
		if got != "a=1:A b=1:B" && got != "a=1:A" && !strings.Contains(got, ErrCorrupt.Error()) && !strings.Contains(got, ErrEmpty.Error()) &&
			!strings.Contains(got, ErrFormat.Error()) {
			t.Fatalf("%d bytes: loaded %q", len(content), got)
		}
		states[got]++
	}
	for n := range whole {
		try(whole[:n])
		flipped := bytes.Clone(whole)
		flipped[n] ^= 0x10
		try(flipped)
	}
	if states["a=1:A"] == 0 {
		t.Errorf("no truncation yields the state of the first checkpoint: %v", states)
	}
}

func TestLongLogIsRewritten(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 64<<20)
	s.Begin(testIdentity, true)
	content := strings.Repeat("x", 10<<10)
	writeAccepted(s, 1, routes, "r", "1", "R")
	for i := range 1000 {
		writeAccepted(s, uint64(i+2), clusters, "a", fmt.Sprint(i), content)
		s.Checkpoint()
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || info.Size() > 2*minRewriteSize {
		t.Errorf("after 10 MB of updates of one resource the file has %d bytes, %v", info.Size(), err)
	}
	expectStored(t, s, "a=999:"+content+" r=1:R")
	writeAccepted(s, 1, routes, "q", "1", "Q")
	s.Checkpoint()
	s.Close()
	expectStored(t, openStore(t, dir, 0), "a=999:"+content+" q=1:Q r=1:R")
}

func TestSizeLimitRetainsLastCheckpoint(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 10<<10)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	writeAccepted(s, 2, clusters, "big", "1", strings.Repeat("x", 20<<10))
	writeAccepted(s, 3, clusters, "c", "1", "C")
	s.Checkpoint()
	if st := s.Status(); st.Failures != 1 || !strings.Contains(st.Reason, "larger than the limit") {
		t.Errorf("status: %+v", st)
	}
	expectStored(t, s, "a=1:A")
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "d", "1", "D")
	s.Checkpoint()
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
	expectStored(t, s, "d=1:D")
}

func TestDirectoryIsLockedByOneProcess(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 0)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("the second: %v", err)
	}
	s.Close()
	openStore(t, dir, 0)
}

func TestUpToDateIsTimeOfLastCheckpointOrConfirmation(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s, err := Open(Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	now = now.Add(time.Hour)
	writeAccepted(s, 2, clusters, "b", "1", "B")
	s.ConfirmUpToDate()
	snapshot, err := s.Load(testIdentity)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Close() }()
	if !snapshot.UpToDate.Equal(now) || formatSnapshot(t, snapshot) != "a=1:A" {
		t.Errorf("up to date until %v: %s", snapshot.UpToDate, formatSnapshot(t, snapshot))
	}
}

// FuzzRead replays arbitrary files: they are either loaded or refused.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	s := openStore(f, dir, 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.WriteRemoval(2, clusters, "a")
	s.WriteResponse(2, clusters, "2", true)
	s.Accept(2, "b")
	s.Unsubscribe(clusters, "a")
	s.Checkpoint()
	s.ConfirmUpToDate()
	s.Close()
	path := filepath.Join(dir, fileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, 0, byte(0))
	f.Add(whole[:len(whole)-3], 200, byte(7))
	f.Fuzz(func(t *testing.T, content []byte, at int, to byte) {
		if len(content) > 0 {
			content = bytes.Clone(content)
			content[uint(at)%uint(len(content))] ^= to
			fixChecksums(content)
		}
		snapshot, err := replayFile(newMemorySource(t, content), testIdentity)
		if err != nil {
			return
		}
		formatSnapshot(t, snapshot)
		_ = snapshot.Close()
	})
}

// newMemorySource returns a file with the content.
func newMemorySource(t testing.TB, content []byte) source {
	m := newMemory(1 << 30)
	f, err := m.create(fileName)
	if err == nil {
		_, err = f.Write(content)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.openCurrent()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fixChecksums corrects the checksums, so that fuzzed records are parsed.
func fixChecksums(content []byte) {
	if len(content) < len(magic)+4 {
		return
	}
	copy(content, magic)
	end := len(magic) + 4 + int(binary.BigEndian.Uint32(content[len(magic):]))
	for start := 0; end >= 0 && end+checksumLen <= len(content) && end <= 1<<20; {
		binary.BigEndian.PutUint32(content[end:], crc32.Checksum(content[start:end], castagnoli))
		start = end + checksumLen
		if start+recordHeaderLen > len(content) {
			return
		}
		end = start + recordHeaderLen + int(binary.BigEndian.Uint32(content[start+1:]))
	}
}
