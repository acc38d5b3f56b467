package lastgood

import (
	"strings"
	"testing"
)

// In SotW a type has one version for all its resources. A control plane that keeps versions sends nothing to who has the
// newest one: it must not be claimed where something is kept that is older.
func TestVersionIsNotClaimedForWhatIsNotKeptAsItHasIt(t *testing.T) {
	plain := Identity{Node: me.Node, Cluster: me.Cluster, Protocol: sotw}
	begin := func(t *testing.T) *Store {
		s := open(t, t.TempDir(), 0)
		s.Begin(plain, true)
		accept(s, 1, routes, "a", "1", "A1")
		accept(s, 2, routes, "b", "1", "B1")
		return s
	}
	leave := func(s *Store, stage uint64, name string) {
		s.Resource(stage, routes, name, "", []byte("not accepted"))
		s.Response(stage, routes, "2", false)
		s.Rejected(stage)
	}
	for name, one := range map[string]struct {
		do            func(s *Store)
		kept, version string
	}{
		"nothing passed over": {func(s *Store) { accept(s, 4, routes, "b", "3", "B3") }, "a=1:A1 b=3:B3", "3"},
		"a part that was passed over": {func(s *Store) {
			leave(s, 3, "a")
			accept(s, 4, routes, "b", "3", "B3")
		}, "a=1:A1 b=3:B3", ""},
		"what was passed over came again": {func(s *Store) {
			leave(s, 3, "a")
			accept(s, 4, routes, "a", "3", "A3")
		}, "a=3:A3 b=1:B1", "3"},
		"what was passed over is not asked for any more": {func(s *Store) {
			leave(s, 3, "a")
			accept(s, 4, routes, "b", "3", "B3")
			s.Dropped(routes, "a")
		}, "b=3:B3", "3"},
		"all came again": {func(s *Store) {
			leave(s, 3, "a")
			s.Resource(4, routes, "b", "3", []byte("B3"))
			s.Response(4, routes, "3", true)
			s.Accepted(4)
		}, "b=3:B3", "3"},
		"a secret that is withheld": {func(s *Store) {
			accept(s, 3, routes, "a", "3", "x-----BEGIN PRIVATE KEY-----\n")
		}, "b=1:B1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			one.do(s)
			s.Mark()
			expectVersion(t, s, plain, one.kept, one.version)
			s.mu.Lock()
			s.rewrite()
			s.mu.Unlock()
			expectVersion(t, s, plain, one.kept, one.version)
			accept(s, 9, routes, "c", "4", "C4")
			s.Mark()
			if one.version != "" {
				one.version = "4"
			}
			expectVersion(t, s, plain, one.kept+" c=4:C4", one.version)
		})
	}
}

// Nothing is known of a type of which Envoy has accepted nothing yet: it is not one that is empty, which an Envoy that starts
// would be served with.
func TestTypeOfWhichNothingWasAcceptedIsNotKnown(t *testing.T) {
	plain := Identity{Node: me.Node, Cluster: me.Cluster, Protocol: sotw}
	s := open(t, t.TempDir(), 0)
	s.Begin(plain, true)
	accept(s, 1, clusters, "a", "1", "A1")
	s.Resource(2, routes, "bad", "", []byte("not accepted"))
	s.Response(2, routes, "1", true)
	s.Rejected(2)
	s.Mark()
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
	s.Response(3, routes, "2", true)
	s.Accepted(3)
	s.Mark()
	if snapshot, err := s.Load(plain); err != nil {
		t.Fatal(err)
	} else {
		defer func() { _ = snapshot.Close() }()
		if version, ok := snapshot.Version(routes); !ok || version != "2" {
			t.Errorf("version %q, known %v, once a response without resources was accepted", version, ok)
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
	if got := describe(t, snapshot); got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
	if got, _ := snapshot.Version(routes); got != version {
		t.Errorf("the version is %q, want %q", got, version)
	}
}

// What the log has no room for in a field is left out of it, and does not make it one that cannot be read.
func TestNameThatIsTooLongIsLeftOut(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	s.Begin(me, true)
	long := strings.Repeat("x", maxField+1)
	accept(s, 1, clusters, long, "1", "L")
	accept(s, 2, clusters, "a", "1", "A")
	accept(s, 3, clusters, "a", long, "A")
	accept(s, 4, clusters, long[1:], "1", "B")
	s.Removed(5, clusters, long)
	s.Response(5, clusters, long, false)
	s.Accepted(5, long)
	s.Dropped(clusters, long)
	s.Mark()
	expectKept(t, s, long[1:]+"=1:B")
	if got := s.Status().Withheld; len(got) != 2 || len(got[0]) > 300 {
		t.Errorf("withheld: %.400q", got)
	}
}
