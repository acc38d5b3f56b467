package agent

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/status"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// minKeepalive is gRPC's minimum ping interval. Servers close connections whose clients send pings more often.
const minKeepalive = 10 * time.Second

func (a *Agent) newRelay() (*xdsproxy.Relay, error) {
	c := a.Config.ControlPlane
	return xdsproxy.New(xdsproxy.Config{
		Socket:      c.Socket,
		SocketMode:  c.SocketMode(),
		SocketOwner: a.Config.Envoy.User,
		AllowedUIDs: c.SocketUsers,
		Guard:       a.newGuard("xds", c.ListedUsers),
		IsEnvoy:     a.isEnvoy,
		Proxyless:   a.Config.Envoy.Disabled,
		Upstreams:   c.Addresses(),
		Server: xdsproxy.Server{
			Plaintext: c.Plaintext,
			TLS:       xdsproxy.TLS{RootFile: c.RootFile, ServerName: c.ServerName, CertFile: c.CertFile, KeyFile: c.KeyFile, Policy: a.Config.TLSPolicy},
			TokenFile: c.TokenFile,
			Token:     a.token(),
			ClusterID: a.Config.Identity.ClusterID,
			Headers:   c.Headers,
		},
		KeepaliveInterval: max(c.KeepaliveInterval, minKeepalive),
		KeepaliveTimeout:  c.KeepaliveTimeout,
		MaxRequest:        c.MaxRequest,
		LossLimit:         a.Config.Health.LossLimit,
		Local:             a.localTypes(),
		LastGood:          a.lastGood(),
		Rewrite:           a.rewriters(),
		Logger:            a.Logger.With("part", "xds"),
		Metrics:           a.metrics,
	})
}

// newStatusServer creates the status server and listens on its port. Its readiness checks are the health functions of
// components.
func (a *Agent) newStatusServer(components []component, certificates *sds.Server, relay *xdsproxy.Relay) (*status.Server, error) {
	c := status.Config{
		Address:      a.bootstrap.StatusAddress(),
		SocketOwner:  a.Config.Envoy.User,
		Gatherer:     a.metrics,
		Registerer:   a.metrics,
		AppProbes:    status.AppProbes(a.Config.AppProbes),
		Started:      a.Started,
		OnFirstReady: a.OnFirstReady,
		CheckCaller:  a.checkCaller,
		Drain:        a.handleDrain,
		Quit:         a.requests.quit.set,
		NoProfiles:   !a.Config.Profiling,
		Certificates: func() any { return certificates.Certificates() },
		XDS:          func() any { return relay.Status() },
		XDSHistory:   func() any { return relay.History() },
		Config:       func() any { return a.Config.Settings },
		Envoy:        func() any { return a.envoyStatus() },
		Metrics:      a.mergedMetrics(),
		Logger:       a.Logger.With("part", "status"),
	}
	if a.dns != nil {
		c.Names = a.dns.NamesHandler()
	}
	c.Checks, c.Liveness = a.readinessChecks(components), a.livenessChecks(certificates, relay)
	server, err := status.New(c)
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"/drain", "/quitquitquit", "/debug/"} {
		a.control.Handle(pattern, server.PrivateHandler())
	}
	return server, nil
}

// lastGood returns the relay's configuration for the storage of the last accepted configuration.
func (a *Agent) lastGood() xdsproxy.LastGood {
	c := a.Config.LastGood
	return xdsproxy.LastGood{Dirs: c.Dirs, MaxBytes: c.MaxBytes}
}
