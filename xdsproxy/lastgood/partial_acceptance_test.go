package lastgood

import (
	"strings"
	"testing"
)

// In SotW a type has one version for all its resources. A control plane that compares versions sends nothing to a client
// with the newest version, so the version must be empty if a stored resource is older.
func TestSotWVersionIsEmptyIfResourcesAreOutdated(t *testing.T) {
	plain := Identity{Node: testIdentity.Node, Cluster: testIdentity.Cluster, Protocol: sotw}
	begin := func(t *testing.T) *Store {
		s := openStore(t, t.TempDir(), 0)
		s.Begin(plain, true)
		writeAccepted(s, 1, routes, "a", "1", "A1")
		writeAccepted(s, 2, routes, "b", "1", "B1")
		return s
	}
	writeRejected := func(s *Store, stage uint64, name string) {
		s.WriteResource(stage, routes, name, "", []byte("not accepted"))
		s.WriteResponse(stage, routes, "2", false)
		s.Reject(stage)
	}
	for name, one := range map[string]struct {
		do            func(s *Store)
		want, version string
	}{
		"no outdated resource": {func(s *Store) { writeAccepted(s, 4, routes, "b", "3", "B3") }, "a=1:A1 b=3:B3", "3"},
		"rejected resource": {func(s *Store) {
			writeRejected(s, 3, "a")
			writeAccepted(s, 4, routes, "b", "3", "B3")
		}, "a=1:A1 b=3:B3", ""},
		"rejected resource is sent again": {func(s *Store) {
			writeRejected(s, 3, "a")
			writeAccepted(s, 4, routes, "a", "3", "A3")
		}, "a=3:A3 b=1:B1", "3"},
		"rejected resource is no longer requested": {func(s *Store) {
			writeRejected(s, 3, "a")
			writeAccepted(s, 4, routes, "b", "3", "B3")
			s.Unsubscribe(routes, "a")
		}, "b=3:B3", "3"},
		"all resources are sent again": {func(s *Store) {
			writeRejected(s, 3, "a")
			s.WriteResource(4, routes, "b", "3", []byte("B3"))
			s.WriteResponse(4, routes, "3", true)
			s.Accept(4)
		}, "b=3:B3", "3"},
		"withheld secret": {func(s *Store) {
			writeAccepted(s, 3, routes, "a", "3", "x-----BEGIN PRIVATE KEY-----\n")
		}, "b=1:B1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			one.do(s)
			s.Checkpoint()
			expectVersion(t, s, plain, one.want, one.version)
			s.mu.Lock()
			s.rewrite()
			s.mu.Unlock()
			expectVersion(t, s, plain, one.want, one.version)
			writeAccepted(s, 9, routes, "c", "4", "C4")
			s.Checkpoint()
			if one.version != "" {
				one.version = "4"
			}
			expectVersion(t, s, plain, one.want+" c=4:C4", one.version)
		})
	}
}

// A type without an accepted response is unknown. It must not be served as an empty type to an Envoy that starts.
func TestTypeWithoutAcceptedResponseIsUnknown(t *testing.T) {
	plain := Identity{Node: testIdentity.Node, Cluster: testIdentity.Cluster, Protocol: sotw}
	s := openStore(t, t.TempDir(), 0)
	s.Begin(plain, true)
	writeAccepted(s, 1, clusters, "a", "1", "A1")
	s.WriteResource(2, routes, "bad", "", []byte("not accepted"))
	s.WriteResponse(2, routes, "1", true)
	s.Reject(2)
	s.Checkpoint()
	known := func(want bool) {
		t.Helper()
		snapshot, err := s.Load(plain)
		if err != nil || snapshot == nil {
			t.Fatal(snapshot, err)
		}
		defer func() { _ = snapshot.Close() }()
		if version, ok := snapshot.Version(routes); ok != want || version != "" {
			t.Errorf("version %q, known %v, want %v", version, ok, want)
		}
	}
	known(false)
	s.mu.Lock()
	s.rewrite()
	s.mu.Unlock()
	known(false)
	s.WriteResponse(3, routes, "2", true)
	s.Accept(3)
	s.Checkpoint()
	if snapshot, err := s.Load(plain); err != nil {
		t.Fatal(err)
	} else {
		defer func() { _ = snapshot.Close() }()
		if version, ok := snapshot.Version(routes); !ok || version != "2" {
			t.Errorf("version %q, known %v, after a response without resources was accepted", version, ok)
		}
	}
}

func expectVersion(t *testing.T, s *Store, id Identity, want, version string) {
	t.Helper()
	snapshot, err := s.Load(id)
	if err != nil || snapshot == nil {
		t.Fatal(snapshot, err)
	}
	defer func() { _ = snapshot.Close() }()
	if got := formatSnapshot(t, snapshot); got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
	if got, _ := snapshot.Version(routes); got != version {
		t.Errorf("the version is %q, want %q", got, version)
	}
}

// Names and versions that are too long for a field are not written, and the log stays readable.
func TestTooLongNameIsWithheld(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	s.Begin(testIdentity, true)
	long := strings.Repeat("x", maxField+1)
	writeAccepted(s, 1, clusters, long, "1", "L")
	writeAccepted(s, 2, clusters, "a", "1", "A")
	writeAccepted(s, 3, clusters, "a", long, "A")
	writeAccepted(s, 4, clusters, long[1:], "1", "B")
	s.WriteRemoval(5, clusters, long)
	s.WriteResponse(5, clusters, long, false)
	s.Accept(5, long)
	s.Unsubscribe(clusters, long)
	s.Checkpoint()
	expectStored(t, s, long[1:]+"=1:B")
	if got := s.Status().Withheld; len(got) != 2 || len(got[0]) > 300 {
		t.Errorf("withheld: %.400q", got)
	}
}
