package dns

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Server is made of. Zero values mean the defaults that are named.
type Config struct {
	// Listen are addresses as host:port, each for UDP and TCP. The host localhost means both loopback addresses, of which
	// one may be missing. Port 0 takes a free one.
	Listen []string
	// ResolvConf is the file that names the resolvers and search domains (default /etc/resolv.conf). It is read again
	// when it changes.
	ResolvConf string
	// Namespace is the workload's own: only its services are known by their first label alone.
	Namespace string
	// Domain is the workload's, such as shop.svc.cluster.local, of which the namespace may be missing. Services of other
	// domains are known by their full names only: their short forms could be those of services of this one.
	Domain string
	// ForwardWithoutTable has every question forwarded as long as there is no name table. Otherwise they fail, so that no
	// application learns from elsewhere that a name of the mesh does not exist.
	ForwardWithoutTable bool
	// AllowFrom are networks that may ask beside this machine's own addresses.
	AllowFrom []netip.Prefix

	// KeepFile is where the last names of the mesh are kept, for a start without a control plane; empty for nowhere. They
	// are used by the same Owner only, which is a proxy's node id.
	KeepFile, Owner string

	TTL             time.Duration // of names of the mesh (default 30 s)
	ForwardTimeout  time.Duration // of a forwarded question altogether (default 5 s)
	ForwardParallel bool          // ask all resolvers at once and take the first good answer

	CacheEntries int           // most forwarded answers that are kept (default 10,000)
	CacheBytes   int           // most memory for them (default 4 MiB)
	StaleFor     time.Duration // how long an answer is kept beyond its time, for when no resolver answers (default 1 h)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil registers nothing
	Now        func() time.Time      // the clock of cache and health (default time.Now)
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
