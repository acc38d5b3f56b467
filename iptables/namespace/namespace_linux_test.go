package namespace

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestTheLockIsOfOneNamespaceAndOneHolder(t *testing.T) {
	one, other := testns.New(t), testns.New(t)
	release, err := Lock(context.Background(), int(one.Handle))
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Lock(soon, int(one.Handle)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second holder: %v", err)
	}
	elsewhere, err := Lock(context.Background(), int(other.Handle))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere()
	release()
	again, err := Lock(context.Background(), int(one.Handle))
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestTheCallerStaysWhereItIs(t *testing.T) {
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
