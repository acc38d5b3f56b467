package xds

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Limits on the memory that the server uses for all streams of one client. All streams with the same identity count as
// one client. Streams without an identity count as one client if they have the same source network.
const (
	// defaultMemory is the default of Config.Memory.
	defaultMemory = 512 << 20
	// maxQuota is the maximum size in bytes of the subscriptions of one client.
	maxQuota = 64 << 20
	// freePerStream is the amount of memory of each stream that is not charged, because the number of streams already
	// limits it. Thousands of proxies may share an identity, and most of them need less than freePerStream.
	freePerStream = 128 << 10
	// freeOwnBytes: the overrides of a version map are charged only if they use more than this number of bytes.
	freeOwnBytes = 256 << 10
	// minRequests and maxRequests limit the request budget, in bytes. Between these limits, the request budget is a
	// quarter of the budget for subscriptions: to handle a request, the server uses several times the request's size.
	minRequests = 2 * maxRequest
	maxRequests = 128 << 20
)

// quotas contains one quota per client, and limits their sum. If several streams share a page, quotas charges it only
// once.
type quotas struct {
	maxBytes int64
	requests *semaphore.Weighted // budget in bytes for the requests that are being read or handled
	perKey   int64               // limit of the request budget for each client

	mu    sync.Mutex
	byKey map[string]*quota
	pages map[*versionPage]int // number of quotas to which each page is charged
	bytes int64
}

func newAccounts(memory int64) *quotas {
	requests := min(max(memory/4, minRequests), maxRequests)
	return &quotas{
		maxBytes: memory, requests: semaphore.NewWeighted(requests), perKey: max(requests/4, maxRequest),
		byKey: map[string]*quota{}, pages: map[*versionPage]int{},
	}
}

// quota counts and limits the memory that the server uses for the streams of one client.
type quota struct {
	all      *quotas
	key      string
	requests *semaphore.Weighted

	// quotas.mu guards the fields below.
	streams int
	pages   map[*versionPage]int // number of the client's version maps that share each page
	bytes   int64
}

// acquire returns the quota of the client that key identifies, and counts one more stream of the client.
func (s *quotas) acquire(key string) *quota {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byKey[key]
	if a == nil {
		a = &quota{all: s, key: key, requests: semaphore.NewWeighted(s.perKey), pages: map[*versionPage]int{}}
		s.byKey[key] = a
	}
	a.streams++
	return a
}

// release counts one stream of the client less, and no longer charges f, the footprint of the ended stream. After the
// client's last stream, release deletes the quota.
func (a *quota) release(f footprint) {
	a.charge(f, footprint{})
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	if a.streams--; a.streams == 0 {
		delete(a.all.byKey, a.key)
	}
}

// availableBytes returns the number of bytes that may still be charged to the client.
func (a *quota) availableBytes() int64 {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	return max(0, min(maxQuota-a.bytes, a.all.maxBytes-a.all.bytes))
}

// isChargedFor reports whether the page is already charged to the client, for any of its streams.
func (a *quota) isChargedFor(p *versionPage) bool {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	return p != nil && a.pages[p] > 0
}

// charge replaces before, the footprint that is charged for a stream, by after.
func (a *quota) charge(before, after footprint) {
	s := a.all
	s.mu.Lock()
	defer s.mu.Unlock()
	a.bytes += after.own - before.own
	s.bytes += after.own - before.own
	for _, p := range after.pages {
		if a.pages[p]++; a.pages[p] == 1 {
			a.bytes += int64(p.bytes)
			if s.pages[p]++; s.pages[p] == 1 {
				s.bytes += int64(p.bytes)
			}
		}
	}
	for _, p := range before.pages {
		if a.pages[p]--; a.pages[p] == 0 {
			delete(a.pages, p)
			a.bytes -= int64(p.bytes)
			if s.pages[p]--; s.pages[p] == 0 {
				delete(s.pages, p)
				s.bytes -= int64(p.bytes)
			}
		}
	}
}

// totalBytes returns the bytes that are charged to all clients.
func (s *quotas) totalBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// acquireRequest reserves size bytes in the client's request budget, and then in the common request budget of all
// clients. It waits until both have room. release returns the bytes.
func (a *quota) acquireRequest(ctx context.Context, size int64) (release func(), err error) {
	if err := a.requests.Acquire(ctx, size); err != nil {
		return nil, err
	}
	if err := a.all.requests.Acquire(ctx, size); err != nil {
		a.requests.Release(size)
		return nil, err
	}
	return sync.OnceFunc(func() {
		a.all.requests.Release(size)
		a.requests.Release(size)
	}), nil
}

// footprint is the memory that is charged for one stream: pages, which several streams may share, and bytes that are
// not shared.
type footprint struct {
	own   int64
	pages []*versionPage
}

func (f *footprint) addVersionMap(l *versionMap) {
	if l.shared != nil {
		f.pages = append(f.pages, l.shared)
	}
	f.own += int64(max(0, l.overrideBytes-min(l.bytes/pageShare, freeOwnBytes)))
}

// footprint returns the memory that the server uses for the stream, and its total in bytes.
func (c *connection) footprint() (f footprint, sum int64) {
	f.own = c.nodeBytes
	for _, sub := range c.subs {
		f.addVersionMap(&sub.names)
		f.addVersionMap(&sub.known)
		f.own += int64(len(sub.removing)*nameCost + sub.rejectionBytes)
		for _, b := range sub.outstanding {
			f.own += int64(b.removedBytes)
		}
	}
	for name := range c.onDemandNames {
		f.own += int64(len(name) + nameCost)
	}
	sum = f.own
	for _, p := range f.pages {
		sum += int64(p.bytes)
	}
	return f, sum
}

// charge updates the memory that is charged to the client for this stream.
func (c *connection) charge() {
	f, sum := c.footprint()
	if c.heldBytes = sum; sum <= freePerStream {
		f = footprint{}
	}
	f.own = max(0, f.own-freePerStream)
	if f.own == 0 && c.chargedFootprint.own == 0 && len(f.pages) == 0 && len(c.chargedFootprint.pages) == 0 {
		return
	}
	c.quota.charge(c.chargedFootprint, f)
	c.chargedFootprint = f
}

// availableBytes returns how many more bytes the stream may use for a list of names. If the list is equal to the page
// shared, and the page is already charged to the client, only maxNames limits the list.
func (c *connection) availableBytes(shared *versionPage) int64 {
	if c.quota.isChargedFor(shared) {
		return maxNames
	}
	return max(c.quota.availableBytes(), freePerStream-c.heldBytes)
}

// sizeOf returns the number of bytes that are charged for names.
func sizeOf(names []string) int {
	size := len(names) * nameCost
	for _, name := range names {
		size += len(name)
	}
	return size
}

// acquireQuota returns the quota of the client p, and counts one more stream of the client.
func (s *Server) acquireQuota(p Peer) *quota {
	if p.Identity != "" {
		return s.authenticated.acquire(p.Identity)
	}
	return s.unauthenticated.acquire(sourceNetwork(p.Address).String())
}

// SourceNetwork returns the network by which the server distinguishes clients without an identity. It is an IPv4
// address, or an IPv6 network with a prefix of 64 bits, because one client may use any number of addresses in such a
// network.
func SourceNetwork(addr net.Addr) netip.Prefix { return sourceNetwork(addr.String()) }

func sourceNetwork(address string) netip.Prefix {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits) // cannot fail, because the length is valid
	return network
}
