package console

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

func TestEachLineHasSourceName(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, false, "page-v1", "ingressgateway")
	p.Print(mesh.Event{Kind: mesh.Ready, Instance: "page-v1", Took: 1240 * time.Millisecond}, true)
	p.Print(mesh.Event{Kind: mesh.Log, Instance: "ingressgateway", Origin: mesh.OriginSidecar, Line: "hello"}, true)
	p.Print(mesh.Event{Kind: mesh.Log, Instance: "page-v1", Line: "unseen"}, false)
	want := "page-v1        │ ✓ ready in 1.24 s\ningressgateway │ hello\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestApplicationExitIsShownWithLastLines(t *testing.T) {
	var out bytes.Buffer
	New(&out, false).Print(mesh.Event{
		Kind: mesh.Failed, Instance: "page-v1", Origin: mesh.OriginWorkload, Message: "the application exited with status 3 after 1s, and is not started again",
		Exit: &mesh.Exit{Code: 3, Ran: time.Second, Tail: []string{"no such book"}},
	}, false)
	for _, part := range []string{"the application exited with status 3", "is not started again", "no such book"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in %q", part, out.String())
		}
	}
}

func TestControlSequencesAreRemoved(t *testing.T) {
	var out bytes.Buffer
	New(&out, false, "a").Print(mesh.Event{Kind: mesh.Log, Instance: "a", Line: "x\x1b[2Jy\rz"}, true)
	if strings.ContainsAny(out.String(), "\x1b\r") {
		t.Errorf("printed %q", out.String())
	}
}

func TestColoursOnlyWhereWanted(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, true, "a", "b")
	p.Print(mesh.Event{Kind: mesh.Log, Instance: "a", Line: "x"}, true)
	p.Print(mesh.Event{Kind: mesh.Log, Instance: "b", Line: "x"}, true)
	lines := strings.Split(out.String(), "\n")
	if !strings.HasPrefix(lines[0], string(palette[0])) || !strings.HasPrefix(lines[1], string(palette[1])) {
		t.Errorf("printed %q", out.String())
	}
}

func TestDurationFormat(t *testing.T) {
	for d, want := range map[time.Duration]string{87 * time.Millisecond: "87 ms", 1240 * time.Millisecond: "1.24 s", 125 * time.Second: "2m5s"} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want)
		}
	}
}
