package xds

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
)

// newTestPage returns a page with n names.
func newTestPage(n int, prefix string) *versionPage {
	var l versionMap
	for i := range n {
		l.set(fmt.Sprint(prefix, i), "")
	}
	return newPage(&l)
}

func TestSharedPageIsChargedOncePerClientAndOnceInTotal(t *testing.T) {
	s := newAccounts(1 << 30)
	a, b := s.acquire("a"), s.acquire("b")
	shared := newTestPage(1000, "n")
	f := footprint{own: 10, pages: []*versionPage{shared, shared}}
	a.charge(footprint{}, f)
	a.charge(footprint{}, f)
	b.charge(footprint{}, f)
	size := int64(shared.bytes)
	if a.bytes != size+20 || b.bytes != size+10 || s.totalBytes() != size+30 {
		t.Errorf("the clients are charged %d and %d bytes, in total %d; the page has %d bytes", a.bytes, b.bytes, s.totalBytes(), size)
	}
	if !a.isChargedFor(shared) || a.isChargedFor(newTestPage(1, "x")) {
		t.Error("isChargedFor does not report the page of a client")
	}
	a.charge(f, footprint{})
	a.charge(f, footprint{})
	b.release(f)
	if s.totalBytes() != 0 || len(s.pages) != 0 || a.bytes != 0 || s.byKey["b"] != nil {
		t.Errorf("%d bytes and %d pages are still charged at the end", s.totalBytes(), len(s.pages))
	}
}

func TestAvailableBytesIsLimitedPerClientAndInTotal(t *testing.T) {
	s := newAccounts(maxQuota + 100)
	a, b := s.acquire("a"), s.acquire("b")
	a.charge(footprint{}, footprint{own: maxQuota - 10})
	if a.availableBytes() != 10 || b.availableBytes() != 110 {
		t.Errorf("%d and %d bytes are available", a.availableBytes(), b.availableBytes())
	}
}

func TestQuotasArePerIdentityOrSourceNetwork(t *testing.T) {
	r := newTestServer(t, Config{})
	for _, c := range []struct {
		peer Peer
		key  string
	}{
		{Peer{Identity: "spiffe://d/ns/a/sa/b", Address: "192.0.2.1:7"}, "spiffe://d/ns/a/sa/b"},
		{Peer{Address: "192.0.2.1:7"}, "192.0.2.1/32"},
		{Peer{Address: "[::ffff:192.0.2.1]:7"}, "192.0.2.1/32"},
		{Peer{Address: "[2001:db8::5]:7"}, "2001:db8::/64"},
		{Peer{Address: "bufconn"}, "invalid Prefix"},
	} {
		if got := r.acquireQuota(c.peer).key; got != c.key {
			t.Errorf("%v has account %q, want %q", c.peer, got, c.key)
		}
	}
	if SourceNetwork(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}).String() != "192.0.2.1/32" {
		t.Error("the network of an address is wrong")
	}
}

func TestLargeRequestsWaitForTheirShareOfTheBudget(t *testing.T) {
	s := newAccounts(minRequests)
	a, b := s.acquire("a"), s.acquire("b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, err := a.acquireRequest(ctx, maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	short, end := context.WithTimeout(ctx, time.Millisecond)
	defer end()
	if _, err := a.acquireRequest(short, 1); err == nil {
		t.Error("a client acquires more than its share of the request budget")
	}
	other, err := b.acquireRequest(ctx, maxRequest)
	if err != nil {
		t.Fatalf("another client cannot acquire its share: %v", err)
	}
	first()
	first() // releasing a second time must have no effect
	other()
	third, err := a.acquireRequest(ctx, maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	third()
}

func TestNamesBeyondTheQuotaAreNotSubscribed(t *testing.T) {
	r := newTestServer(t, Config{Memory: 8 << 20}) // clients without an identity share a quarter of this, 2 MiB
	r.push(meshState{eds: {"a": "1"}})
	for n := range 3 {
		c := r.newDeltaClient()
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("%d-%d-%s", n, i, strings.Repeat("x", 900))
		}
		c.subscribe(eds, names...)
		c.next()
	}
	total := 0
	for _, c := range r.Clients() {
		for _, served := range c.Types {
			total += len(served.Names) + served.NamesOmitted
		}
	}
	if total < 1000 || total > 2200 {
		t.Errorf("the streams of one client are subscribed to %d names of 1 KiB, in 2 MiB", total)
	}
	// The response that removes the names is also charged, until the client ACKs it.
	if held := r.unauthenticated.totalBytes(); held > 2*2<<20 {
		t.Errorf("%d bytes are charged", held)
	}
	c := r.newDeltaClient()
	c.subscribe(eds, "a")
	c.expect("eds +a=1") // a small stream is served, even if the client's large streams use up its memory limit
}

func TestRequestMemoryIsNotRetainedForFewNames(t *testing.T) {
	text := strings.Repeat("n", 1<<20)
	within := func(name string) bool {
		at, start := uintptr(unsafe.Pointer(unsafe.StringData(name))), uintptr(unsafe.Pointer(unsafe.StringData(text)))
		return at >= start && at < start+uintptr(len(text))
	}
	names := make([]string, 100)
	for i := range names {
		names[i] = text[:10+i]
	}
	same := slices.Repeat([]string{text[:5]}, 100)
	for what, list := range map[string][]string{"many names": names, "few names": names[:5], "one name many times": same} {
		s := newSubscription(eds, &pageCache{})
		r := &request{subscribe: list, initial: map[string]string{}}
		for _, name := range list {
			r.initial[name] = text[:7]
		}
		s.subscribeDelta(r, true)
		for name, version := range s.known.all {
			if within(name) || within(version) {
				t.Errorf("%s: a stored claim refers to the memory of the request", what)
				break
			}
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(maps.Collect(s.names.all))), within) {
			t.Errorf("%s: a stored name refers to the memory of the request", what)
		}
	}
}

func TestInvalidNamesAreAnsweredAndNotStored(t *testing.T) {
	c := &connection{hooks: Hooks{IsValidName: func(typeURL, name string) bool { return typeURL != eds || strings.HasPrefix(name, "ok") }}}
	s := newSubscription(eds, &pageCache{})
	r := &request{subscribe: []string{"ok1", "bad", strings.Repeat("x", maxName+1), "ok2"}}
	excess, invalid := s.limitNames(r, maxNames, c.validName(eds))
	if !slices.Equal(r.subscribe, []string{"ok1", "ok2"}) || !slices.Equal(invalid, []string{"bad"}) || len(excess) != 1 {
		t.Errorf("subscribed: %q, invalid: %q, too long: %d", r.subscribe, invalid, len(excess))
	}
}

// headerReader is a messageReader whose next message has this header.
type headerReader [5]byte

func (h headerReader) ReadMessageHeader(header []byte) error {
	copy(header, h[:])
	return nil
}

func (headerReader) Read(int) (mem.BufferSlice, error) { return nil, io.EOF }

func TestTooLargeOrCompressedRequestEndsTheStream(t *testing.T) {
	c := &connection{ctx: t.Context(), quota: newAccounts(1 << 30).acquire("a"), recvErr: make(chan error, 1)}
	_, err := c.readMessage(headerReader{0, 0xff, 0, 0, 0})
	wantCode(t, err, codes.ResourceExhausted)
	_, err = c.readMessage(headerReader{1, 0, 0, 0, 1})
	wantCode(t, err, codes.Unimplemented)
}
