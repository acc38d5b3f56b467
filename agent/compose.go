package agent

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/status"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// leastKeepalive is that of gRPC: servers end connections on which more pings come.
const leastKeepalive = 10 * time.Second

func (a *Agent) newRelay() (*xdsproxy.Relay, error) {
	c := a.Config.ControlPlane
	return xdsproxy.New(xdsproxy.Config{
		Socket:      c.Socket,
		SocketMode:  c.socketMode(),
		SocketOwner: a.Config.Envoy.User,
		AllowedUIDs: c.SocketUsers,
		IsEnvoy:     a.isEnvoy,
		Proxyless:   a.Config.Envoy.Disabled,
		Upstreams:   c.addresses(),
		Server: xdsproxy.Server{
			Plaintext: c.Plaintext,
			TLS:       xdsproxy.TLS{RootFile: c.RootFile, ServerName: c.ServerName, CertFile: c.CertFile, KeyFile: c.KeyFile, Policy: a.Config.TLSPolicy},
			TokenFile: c.TokenFile,
			Token:     a.token(),
			ClusterID: a.Config.Identity.ClusterID,
			Headers:   c.Headers,
		},
		KeepaliveInterval: max(c.KeepaliveInterval, leastKeepalive),
		KeepaliveTimeout:  c.KeepaliveTimeout,
		Awake:             a.settled.forget,
		MaxRequest:        c.MaxRequest,
		LossLimit:         a.Config.Health.LossLimit,
		Local:             a.localTypes(),
		LastGood:          a.lastGood(),
		Rewrite:           a.rewriters(),
		Logger:            a.Logger.With("part", "xds"),
		Metrics:           a.metrics,
	})
}

// newStatus takes the status port. Its checks are those of the parts that have a health.
func (a *Agent) newStatus(parts []part, certificates *sds.Server, relay *xdsproxy.Relay) (*status.Server, error) {
	c := status.Config{
		Address:      a.bootstrap.StatusAddress(),
		SocketOwner:  a.Config.Envoy.User,
		Gatherer:     a.metrics,
		Registerer:   a.metrics,
		AppProbes:    status.AppProbes(a.Config.AppProbes),
		Started:      a.Started,
		Scraped:      a.settled.afterWork,
		Paused:       a.settled.amidWork,
		Answered:     a.settled.afterAnswer,
		Drain:        a.drainOnStatusPort,
		Quit:         a.orders.quit.give,
		NoProfiles:   !a.Config.Profiling,
		Certificates: func() any { return certificates.Certificates() },
		XDS:          func() any { return relay.Status() },
		XDSHistory:   func() any { return relay.History() },
		Config:       func() any { return a.Config.Settings },
		Envoy:        func() any { return a.EnvoyStatus() },
		Metrics:      a.joinedMetrics(),
		Logger:       a.Logger.With("part", "status"),
	}
	if a.names != nil {
		c.Names = a.names.NamesHandler()
	}
	c.Checks, c.Liveness = a.readiness(parts), a.liveness(certificates, relay)
	return status.New(c)
}
