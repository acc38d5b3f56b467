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

var me = Identity{Node: "sidecar~10.0.0.1~a.b~b.svc", Cluster: "a.b", Protocol: "delta"}

func open(t testing.TB, dir string, maxBytes int64) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// accept writes one resource that Envoy accepts.
func accept(s *Store, stage uint64, typeURL, name, version, content string) {
	s.Resource(stage, typeURL, name, version, []byte(content))
	s.Response(stage, typeURL, version, false)
	s.Accepted(stage)
}

// kept is what a store would serve: name=version:content.
func kept(t testing.TB, s *Store, id Identity) string {
	t.Helper()
	snapshot, err := s.Load(id)
	if err != nil {
		return err.Error()
	}
	if snapshot == nil {
		return "nothing"
	}
	defer func() { _ = snapshot.Close() }()
	return describe(t, snapshot)
}

func describe(t testing.TB, snapshot *Snapshot) string {
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

func expectKept(t testing.TB, s *Store, want string) {
	t.Helper()
	if got := kept(t, s, me); got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
}

func TestOnlyWhatEnvoyAcceptedIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir, 0)
	expectKept(t, s, "nothing")
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Resource(2, clusters, "a", "2", []byte("broken"))
	s.Response(2, clusters, "2", false)
	s.Rejected(2)
	s.Resource(3, clusters, "b", "3", []byte("B"))
	s.Resource(3, clusters, "c", "3", []byte("bad"))
	s.Response(3, clusters, "3", false)
	s.Accepted(3, "c")
	s.Resource(4, clusters, "d", "4", []byte("unanswered"))
	s.Response(4, clusters, "4", false)
	s.Mark()
	expectKept(t, s, "a=1:A b=3:B")

	s.Removed(5, clusters, "a")
	s.Response(5, clusters, "5", false)
	s.Accepted(5)
	s.Dropped(clusters, "b")
	s.Mark()
	expectKept(t, s, "")

	s.Resource(6, routes, "x", "", []byte("X"))
	s.Response(6, routes, "6", true)
	s.Accepted(6)
	s.Resource(7, routes, "y", "", []byte("Y"))
	s.Response(7, routes, "7", true)
	s.Accepted(7)
	s.Mark()
	expectKept(t, s, "y=:Y")
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, fileName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", path, info.Mode(), err, want)
		}
	}
}

func TestStateAtTheLastMarkOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	accept(s, 2, clusters, "b", "1", "B")
	s.Close() // B came without a mark

	s = open(t, dir, 0)
	expectKept(t, s, "a=1:A")
	s.Begin(me, false)
	accept(s, 1, clusters, "c", "1", "C")
	s.Mark()
	expectKept(t, s, "a=1:A c=1:C")
	s.Begin(me, true) // everything comes anew, but nothing of it has yet
	s.Flush()
	accept(s, 1, clusters, "z", "1", "Z")
	s.Flush()
	expectKept(t, s, "a=1:A c=1:C")
	s.Mark()
	expectKept(t, s, "z=1:Z")
}

func TestConfigurationOfAnotherProxyIsRefused(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	for _, other := range []Identity{
		{Node: "sidecar~10.0.0.2~a.b~b.svc", Cluster: me.Cluster, Protocol: me.Protocol},
		{Node: me.Node, Cluster: me.Cluster, Protocol: "sotw"},
	} {
		if _, err := s.Load(other); !errors.Is(err, ErrForeign) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	other := Identity{Node: "other", Protocol: "delta"}
	s.Begin(other, false)
	accept(s, 1, clusters, "o", "1", "O")
	s.Mark()
	if got := kept(t, s, other); got != "o=1:O" {
		t.Errorf("kept %q", got)
	}
}

func TestSecretsAreNotWritten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	s.Begin(me, true)
	key := "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0\n-----END EC PRIVATE KEY-----\n"
	accept(s, 1, clusters, "keyed", "1", "harmless before")
	accept(s, 2, clusters, "keyed", "2", "x"+key)
	accept(s, 3, secretType, "default", "1", "hidden")
	accept(s, 4, clusters, "a", "1", "A")
	s.Mark()
	expectKept(t, s, "a=1:A")
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

// TestFileThatEndsAnywhereGivesAnEarlierStateOrNone is the promise for a crash, a full disk and a file that was cut off.
func TestFileThatEndsAnywhereGivesAnEarlierStateOrNone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	accept(s, 2, clusters, "b", "1", "B")
	s.Mark()
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
		s := open(t, dir, 0)
		got := kept(t, s, me)
		s.Close()
		if got != "a=1:A b=1:B" && got != "a=1:A" && !strings.Contains(got, ErrCorrupt.Error()) && !strings.Contains(got, ErrEmpty.Error()) &&
			!strings.Contains(got, ErrFormat.Error()) {
			t.Fatalf("%d bytes give %q", len(content), got)
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
		t.Errorf("no cut gives the state of the first mark: %v", states)
	}
}

func TestLogIsWrittenAnewWhenItHasBecomeLong(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 64<<20)
	s.Begin(me, true)
	content := strings.Repeat("x", 10<<10)
	accept(s, 1, routes, "r", "1", "R")
	for i := range 1000 {
		accept(s, uint64(i+2), clusters, "a", fmt.Sprint(i), content)
		s.Mark()
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || info.Size() > 2*rewriteAt {
		t.Errorf("after 10 MB of updates of one resource the file has %d bytes, %v", info.Size(), err)
	}
	expectKept(t, s, "a=999:"+content+" r=1:R")
	accept(s, 1, routes, "q", "1", "Q")
	s.Mark()
	s.Close()
	expectKept(t, open(t, dir, 0), "a=999:"+content+" q=1:Q r=1:R")
}

func TestLimitLeavesWhatWasKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10<<10)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	accept(s, 2, clusters, "big", "1", strings.Repeat("x", 20<<10))
	accept(s, 3, clusters, "c", "1", "C")
	s.Mark()
	if st := s.Status(); st.Failures != 1 || !strings.Contains(st.Reason, "larger than the limit") {
		t.Errorf("status: %+v", st)
	}
	expectKept(t, s, "a=1:A")
	s.Begin(me, true)
	accept(s, 1, clusters, "d", "1", "D")
	s.Mark()
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
	expectKept(t, s, "d=1:D")
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("the second: %v", err)
	}
	s.Close()
	open(t, dir, 0)
}

func TestTimeIsThatOfTheLastMarkOrSight(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s, err := Open(Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	now = now.Add(time.Hour)
	accept(s, 2, clusters, "b", "1", "B")
	s.Seen()
	snapshot, err := s.Load(me)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Close() }()
	if !snapshot.UpToDate.Equal(now) || describe(t, snapshot) != "a=1:A" {
		t.Errorf("up to date until %v: %s", snapshot.UpToDate, describe(t, snapshot))
	}
}

// FuzzRead feeds files of any content: they are read or refused, and nothing else happens.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	s := open(f, dir, 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Removed(2, clusters, "a")
	s.Response(2, clusters, "2", true)
	s.Accepted(2, "b")
	s.Dropped(clusters, "a")
	s.Mark()
	s.Seen()
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
			repair(content)
		}
		snapshot, err := read(inMemory(t, content), me)
		if err != nil {
			return
		}
		describe(t, snapshot)
		_ = snapshot.Close()
	})
}

// inMemory is a file of that content.
func inMemory(t testing.TB, content []byte) source {
	m := newMemory(1 << 30)
	f, err := m.create(fileName)
	if err == nil {
		_, err = f.Write(content)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.read()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// repair sets the checksums right, so that what is behind them is read.
func repair(content []byte) {
	if len(content) < len(magic)+4 {
		return
	}
	copy(content, magic)
	end := len(magic) + 4 + int(binary.BigEndian.Uint32(content[len(magic):]))
	for start := 0; end >= 0 && end+recordTail <= len(content) && end <= 1<<20; {
		binary.BigEndian.PutUint32(content[end:], crc32.Checksum(content[start:end], castagnoli))
		start = end + recordTail
		if start+recordHead > len(content) {
			return
		}
		end = start + recordHead + int(binary.BigEndian.Uint32(content[start+1:]))
	}
}
