package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// Server answers DNS queries. Its methods are safe for concurrent use.
type Server struct {
	config    Config
	metrics   *metrics
	guard     *clientACL
	sockets   []socket
	conf      *confFile
	forward   *forwarder
	cancel    context.CancelFunc // cancels the forwarder's requests
	slots     chan struct{}      // contains an element per query that waits for a resolver
	tableFile *tableFile         // nil if the table is not stored on disk

	index    atomic.Pointer[index] // nil before the first table
	mu       sync.Mutex            // guards the fields below
	table    *Table
	received time.Time // when the control plane sent the table
	fromDisk bool      // the table was read from disk, because the control plane has not sent one yet
	search   []string
	ndots    int
}

// maxWaiting limits the number of queries that wait for a resolver. The server responds to further queries with
// SERVFAIL.
const maxWaiting = 1024

// New opens the sockets, and reads resolv.conf and the stored name table. The server does not respond to queries until
// Run is called.
func New(config Config) (*Server, error) {
	config = config.withDefaults()
	if len(config.Listen) == 0 {
		return nil, errors.New("the DNS server has no listen address")
	}
	sockets, err := listenAll(config.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{
		config: config, metrics: newMetrics(), sockets: sockets, slots: make(chan struct{}, maxWaiting), ndots: 1,
		guard: &clientACL{allowed: config.AllowFrom, now: config.Now, own: interfaceAddresses},
	}
	ctx, end := context.WithCancel(context.Background())
	s.cancel = end
	s.forward = &forwarder{
		ctx: ctx, timeout: config.ForwardTimeout, parallel: config.ForwardParallel, staleFor: config.StaleFor,
		now: config.Now, log: config.Logger, metrics: s.metrics, isOurs: s.isOurs,
		cache: newCache(config.CacheEntries, config.CacheBytes, config.Now), inflight: make(map[question]*inflight),
	}
	s.conf = &confFile{path: config.ResolvConf, changed: s.reconfigure}
	s.conf.check(config.Now())
	if err := s.conf.problem(); err != nil {
		config.Logger.Warn("cannot resolve names outside the mesh", "error", err)
	}
	if err := s.metrics.register(config.Registerer, s); err != nil {
		s.Close()
		return nil, err
	}
	if s.tableFile = newTableFile(config, s.metrics.keepFailures.Inc); s.tableFile != nil {
		if table, received := s.tableFile.load(); table != nil {
			s.swap(table, received, true)
			config.Logger.Info("using the name table that an earlier run stored, until the control plane sends one", "hosts", len(table.Hosts), "received", received)
		}
	}
	return s, nil
}

// Close closes the sockets of a server that was not run.
func (s *Server) Close() {
	s.cancel()
	closeAll(s.sockets)
}

// Run serves queries until the context is cancelled or a socket fails permanently. Call it at most once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	for _, socket := range s.sockets {
		serving.Go(func() { cancel(s.serveUDP(ctx, socket.udp)) })
		serving.Go(func() { cancel(s.serveTCP(ctx, socket.tcp)) })
	}
	if s.tableFile != nil {
		serving.Go(func() { s.tableFile.run(ctx) })
	}
	<-ctx.Done()
	s.cancel()
	closeAll(s.sockets)
	serving.Wait()
	s.forward.flying.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// Addresses returns the listening addresses.
func (s *Server) Addresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, socket := range s.sockets {
		all = append(all, socket.address())
	}
	return all
}

// SetNames replaces the name table. The caller must not change the table afterwards.
func (s *Server) SetNames(t *Table) { s.swap(t, s.config.Now(), false) }

// Update replaces the name table with a NameTable message from the control plane, and stores the message on disk. If
// Update returns an error, the previous table remains in use.
func (s *Server) Update(wire []byte) error {
	t, err := DecodeTable(wire)
	if err != nil {
		return err
	}
	if t.Skipped > 0 {
		s.config.Logger.Warn("skipped invalid hosts, addresses or ports in the name table of the control plane", "count", t.Skipped)
	}
	now := s.config.Now()
	s.swap(t, now, false)
	if s.tableFile != nil {
		s.tableFile.enqueue(wire, now)
	}
	return nil
}

func (s *Server) swap(t *Table, received time.Time, fromDisk bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table, s.received, s.fromDisk = t, received, fromDisk
	s.rebuild()
}

// tableOrigin returns when the control plane sent the table, and whether the table was read from disk.
func (s *Server) tableOrigin() (received time.Time, fromDisk bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received, s.fromDisk
}

// reconfigure applies a new resolv.conf.
func (s *Server) reconfigure(conf resolvConf) {
	s.forward.use(conf)
	s.forward.cache.clear()
	s.config.Logger.Info("using the resolvers of resolv.conf", "file", s.config.ResolvConf, "resolvers", conf.servers, "search", conf.search)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.search, s.ndots = conf.search, conf.ndots
	s.rebuild()
}

// rebuild builds the index from the current table and search domains. The caller holds the lock.
func (s *Server) rebuild() {
	if s.table != nil {
		s.index.Store(newIndex(s.table, s.config.workloadDomain(), s.search))
	}
}

// Condition returns the server's health. It is OK once the server has a name table, or if ForwardWithoutTable is set.
// The reason also reports resolvers that do not respond, and a table from disk.
func (s *Server) Condition() health.Condition {
	if s.index.Load() == nil && !s.config.ForwardWithoutTable {
		return health.Condition{
			Reason: "the control plane has not sent a name table yet",
			Remedy: "check that the agent is connected to the control plane, and that the control plane sends name tables",
		}
	}
	var notes []string
	if received, kept := s.tableOrigin(); kept {
		notes = append(notes, fmt.Sprintf("using the name table on disk, received at %s (%s ago), because the control plane has not sent one since the start",
			received.UTC().Format(time.RFC3339), s.config.Now().Sub(received).Round(time.Second)))
	}
	if err := s.conf.problem(); err != nil {
		notes = append(notes, err.Error())
	} else if !s.forward.anyUp() {
		notes = append(notes, "none of the resolvers in "+s.config.ResolvConf+" responds")
	}
	return health.Condition{OK: true, Reason: strings.Join(notes, "; ")}
}

// answerLocally answers a query from the name table or the cache. It returns nil if the query must be forwarded.
func (s *Server) answerLocally(q *query) []byte {
	x := s.index.Load()
	if x == nil {
		if s.config.ForwardWithoutTable {
			return s.fromCache(q)
		}
		s.metrics.answers.WithLabelValues(sourceFailed).Inc()
		return q.fail(dns.RcodeServerFailure)
	}
	if m, ok := x.meshAnswer(q, s.config.TTL); ok {
		s.metrics.mesh.Inc()
		return q.pack(m)
	}
	return s.fromCache(q)
}

// fromCache answers a query from the cache, or returns nil. The response to an ANY query over UDP is truncated, so that
// the client repeats it over TCP, where it cannot forge its address. ANY queries are used for amplification attacks.
func (s *Server) fromCache(q *query) []byte {
	if q.key.qtype == dns.TypeANY && !q.tcp {
		s.metrics.answers.WithLabelValues(sourceRefused).Inc()
		return q.truncated()
	}
	if a := s.forward.cache.get(q.key); a != nil && a.fresh(s.config.Now()) {
		s.metrics.cached.Inc()
		return s.finish(q, a)
	}
	return nil
}

// forwarded forwards a query to the resolvers and returns the response for the client.
func (s *Server) forwarded(ctx context.Context, q *query) []byte {
	a, source, err := s.forward.resolve(ctx, q.key)
	s.metrics.answers.WithLabelValues(source).Inc()
	if err != nil {
		s.config.Logger.Debug("resolving a query failed", "name", q.key.name, "type", dns.TypeToString[q.key.qtype], "error", err)
		return s.unanswered(q)
	}
	return s.finish(q, a)
}

// finish returns the response for a resolver's answer. For a mesh name it returns an empty response instead of
// NXDOMAIN, because NXDOMAIN would mean that the name has no addresses either. It also returns an empty response
// instead of an error response if the name has only addresses.
func (s *Server) finish(q *query, a *answer) []byte {
	if isFailure(a.rcode) && s.hasOnlyAddresses(q.key) {
		return q.pack(reply(q))
	}
	if a.rcode == dns.RcodeNameError {
		if x := s.index.Load(); x != nil {
			if _, ours := x.find(q.key.name); ours {
				return q.pack(reply(q))
			}
		}
	}
	return a.write(q, s.config.Now())
}

// unanswered returns the response if no resolver responded: an empty one for a name that has only addresses, and
// otherwise SERVFAIL.
func (s *Server) unanswered(q *query) []byte {
	if s.hasOnlyAddresses(q.key) {
		return q.pack(reply(q))
	}
	return q.fail(dns.RcodeServerFailure)
}

// hasOnlyAddresses reports whether a name is known to have only address records, as services of the cluster do. Hosts
// outside the cluster may also have other records, such as TXT and MX.
func (s *Server) hasOnlyAddresses(key question) bool {
	x := s.index.Load()
	if x == nil || key.qtype == dns.TypeSRV {
		return false
	}
	found, ours := x.find(key.name)
	return ours && found.record.cluster
}

// isOurs reports whether an address is one of this server's listen addresses.
func (s *Server) isOurs(address netip.AddrPort) bool {
	for _, own := range s.Addresses() {
		if own.Port() == address.Port() && (own.Addr().Unmap() == address.Addr().Unmap() || own.Addr().IsUnspecified() && s.guard.isOwn(address.Addr())) {
			return true
		}
	}
	return false
}

// socket contains the UDP and TCP sockets of one listen address.
type socket struct {
	udp *net.UDPConn
	tcp *net.TCPListener
}

func (s socket) address() netip.AddrPort {
	at := s.udp.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

func listenAll(addresses []string) ([]socket, error) {
	var all []socket
	for _, address := range addresses {
		opened, err := listen(address)
		all = append(all, opened...)
		if err != nil {
			closeAll(all)
			return nil, err
		}
	}
	return all, nil
}

// listen opens the sockets of a listen address. The host localhost means 127.0.0.1 and, if IPv6 is available, ::1.
func listen(address string) ([]socket, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("the DNS listen address %q is not of the form host:port: %w", address, err)
	}
	if host != "localhost" {
		one, err := listenAt(address)
		if err != nil {
			return nil, err
		}
		return []socket{one}, nil
	}
	one, err := listenAt(net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, err
	}
	other, err := listenAt(net.JoinHostPort("::1", port))
	switch {
	case err == nil:
		return []socket{one, other}, nil
	case errors.Is(err, syscall.EADDRINUSE): // queries to ::1 would reach another process
		closeAll([]socket{one})
		return nil, err
	}
	return []socket{one}, nil
}

func listenAt(address string) (socket, error) {
	var err error
	for range 10 { // for port 0: the port that the kernel chooses for TCP may be in use for UDP
		var s socket
		if s, err = tryListen(address); err == nil {
			return s, nil
		}
		if _, port, _ := net.SplitHostPort(address); port != "0" {
			break
		}
	}
	remedy := "check which process uses that port, or set another port"
	if errors.Is(err, fs.ErrPermission) {
		remedy = "ports below 1024 need the capability NET_BIND_SERVICE; grant it to the agent, or set another port"
	}
	return socket{}, fmt.Errorf("listening for DNS queries on %s: %w; %s", address, err, remedy)
}

// tryListen opens the TCP socket and then a UDP socket with the same port. For port 0 the kernel chooses a free TCP
// port, because more ports are in use for TCP than for UDP.
func tryListen(address string) (socket, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return socket{}, err
	}
	tcp, err := net.ListenTCP("tcp", at)
	if err != nil {
		return socket{}, err
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(tcp.Addr().(*net.TCPAddr).AddrPort()))
	if err != nil {
		_ = tcp.Close()
		return socket{}, err
	}
	return socket{udp: udp, tcp: tcp}, nil
}

func closeAll(sockets []socket) {
	for _, s := range sockets {
		_ = s.udp.Close()
		_ = s.tcp.Close()
	}
}
