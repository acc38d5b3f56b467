package dns

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is the configuration of a Server. Zero values mean the documented defaults.
type Config struct {
	// Listen are addresses as host:port, each for UDP and TCP. The host localhost means both loopback addresses; one of
	// them may be missing on the machine. Port 0 chooses a free port.
	Listen []string
	// ResolvConf is the file with the resolvers and search domains (default /etc/resolv.conf). The server reads it
	// again when it changes.
	ResolvConf string
	// Namespace is the workload's namespace. Only services of this namespace are known by their first label alone.
	Namespace string
	// Domain is the workload's domain, such as shop.svc.cluster.local; the namespace may be missing. Services of other
	// domains are known by their full names only, because their short names could be those of services in this domain.
	Domain string
	// ForwardWithoutTable forwards every query as long as there is no name table. Otherwise such queries fail, so that
	// no application learns from another resolver that a mesh name does not exist.
	ForwardWithoutTable bool
	// AllowFrom are networks that may send queries, in addition to this machine's own addresses.
	AllowFrom []netip.Prefix

	// TableFile is the file in which the last name table is stored, for a start without a control plane; empty means
	// none. A stored table is used only with the same Owner, which is the proxy's node ID.
	TableFile, Owner string

	TTL             time.Duration // of mesh names (default 30 s)
	ForwardTimeout  time.Duration // total time of a forwarded query (default 5 s)
	ForwardParallel bool          // query all resolvers at once and use the first successful answer

	CacheEntries int           // maximum number of cached answers (default 10,000)
	CacheBytes   int           // maximum memory of cached answers (default 4 MiB)
	StaleFor     time.Duration // how long an expired answer stays cached, for times when no resolver answers (default 1 h)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil registers nothing
	Now        func() time.Time      // the clock of the cache and of health (default time.Now)
}

func (c Config) withDefaults() Config {
	setDefault(&c.ResolvConf, "/etc/resolv.conf")
	setDefault(&c.TTL, 30*time.Second)
	setDefault(&c.ForwardTimeout, 5*time.Second)
	setDefault(&c.CacheEntries, 10_000)
	setDefault(&c.CacheBytes, 4<<20)
	setDefault(&c.StaleFor, time.Hour)
	setDefault(&c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func setDefault[T comparable](value *T, def T) {
	var zero T
	if *value == zero {
		*value = def
	}
}
