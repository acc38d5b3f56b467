package dns

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is the configuration of a Server. Zero values mean the documented defaults.
type Config struct {
	// Listen are the listen addresses (host:port), each for UDP and TCP. The host localhost means 127.0.0.1 and, if the
	// machine has it, ::1. With port 0, the kernel chooses a free port.
	Listen []string
	// ResolvConf is the path of the file with the resolvers and search domains (default /etc/resolv.conf). The server
	// reads the file again when it changes.
	ResolvConf string
	// Namespace is the workload's namespace. The service name alone resolves only for services of this namespace.
	Namespace string
	// Domain is the workload's DNS domain, with or without the namespace: shop.svc.cluster.local or svc.cluster.local.
	// Services of other domains resolve only by their full names, because their short names could also be those of
	// services in this domain.
	Domain string
	// ForwardWithoutTable forwards all queries until the server has a name table. If it is false, queries fail until
	// then, because resolvers would respond that mesh names do not exist.
	ForwardWithoutTable bool
	// AllowFrom are networks whose clients may send queries, in addition to clients on this machine.
	AllowFrom []netip.Prefix

	// TableFile is the path of the file that stores the last name table, for a start while the control plane is
	// unavailable; "" for none. Owner is the proxy's node ID. A stored table of another owner is ignored.
	TableFile, Owner string

	TTL             time.Duration // TTL of answers for mesh names (default 30 s)
	ForwardTimeout  time.Duration // timeout of a forwarded query, including retries (default 5 s)
	ForwardParallel bool          // query all resolvers at once and use the first successful answer

	CacheEntries int           // maximum number of cached answers (default 10,000)
	CacheBytes   int           // maximum memory of cached answers (default 4 MiB)
	StaleFor     time.Duration // how long expired answers are served while no resolver responds (default 1 h)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // for metrics; may be nil
	Now        func() time.Time      // clock (default time.Now)
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
