package namespace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestLockHasOneHolderPerNamespace(t *testing.T) {
	one, other := testns.New(t), testns.New(t)
	turn, err := Acquire(context.Background(), int(one.Handle))
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Acquire(soon, int(one.Handle)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second holder: %v", err)
	}
	elsewhere, err := Acquire(context.Background(), int(other.Handle))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere.Release()
	turn.Release()
	again, err := Acquire(context.Background(), int(one.Handle))
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestDoLeavesTheCallersNamespaceUnchanged(t *testing.T) {
	ns := testns.New(t)
	read := func() string {
		link, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
		}
		return link
	}
	before, within := read(), ""
	if err := Do(int(ns.Handle), func() error { within = read(); return nil }); err != nil {
		t.Fatal(err)
	}
	if within == before || read() != before {
		t.Errorf("before %s, within %s, after %s", before, within, read())
	}
}

func TestDoUsesAnotherThreadIfTheCallerCannotReturn(t *testing.T) {
	ns := testns.New(t)
	link := func() (at string, err error) {
		at, err = os.Readlink("/proc/thread-self/ns/net")
		return at, err
	}
	before, err := link()
	if err != nil {
		t.Fatal(err)
	}
	var within string
	if err := doOnThread(int(ns.Handle), func() (err error) { within, err = link(); return err }); err != nil {
		t.Fatal(err)
	}
	if after, err := link(); err != nil || within == before || after != before {
		t.Errorf("before %s, within %s, after %s, %v", before, within, after, err)
	}
}

func TestProgramThatCannotReturnToItsNamespaceExits(t *testing.T) {
	ns := testns.New(t)
	if os.Getenv("CANNOT_COME_BACK") != "" {
		defer func() { _ = recover() }()
		var home unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &home); err == nil {
			_ = Do(int(ns.Handle), func() error { closeAll(home); return nil })
		}
		return
	}
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), "CANNOT_COME_BACK=1")
	if said, err := again.CombinedOutput(); err == nil || !strings.Contains(string(said), "panic: leaving a network namespace") {
		t.Errorf("%v: %s", err, said)
	}
}

// closeAll closes all references to a namespace.
func closeAll(namespace unix.Stat_t) {
	for fd := 3; fd < 1000; fd++ {
		var stat unix.Stat_t
		if unix.Fstat(fd, &stat) == nil && stat.Dev == namespace.Dev && stat.Ino == namespace.Ino {
			_ = unix.Close(fd)
		}
	}
}

func TestOnThreadNeverUsesTheMainThread(t *testing.T) {
	ns := testns.New(t)
	for range 200 {
		if err := doOnThread(int(ns.Handle), func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var there, first unix.Stat_t
	if err := errors.Join(unix.Fstat(int(ns.Handle), &there), unix.Stat("/proc/self/ns/net", &first)); err != nil {
		t.Fatal(err)
	}
	if there.Ino == first.Ino && there.Dev == first.Dev {
		t.Error("the main thread remains in the namespace")
	}
}
