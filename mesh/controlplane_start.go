package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

func (m *Mesh) startControlPlane(ctx context.Context) error {
	blocked, err := fetchguard.ParseNetworks(lookupEnv(m.cfg.Environ, controlplane.BlockedKeyNetworksVariable))
	if err != nil {
		return fmt.Errorf("environment variable %s: %w", controlplane.BlockedKeyNetworksVariable, err)
	}
	p := newControlPlane(controlplane.Config{
		ConfigDirs: m.cfg.Topology.Config,
		Stores:     []config.Store{m.registry},
		StateDir:   m.stateDir(),

		StartsProxies:   true,
		OnInvalidPolicy: m.cfg.OnInvalidPolicy,

		Address: m.placement.ControlPlane().String(),
		Listen:  m.placement.Listen,

		HostAddress: m.placement.Host().String(),

		VirtualAddresses: m.virtualAddresses(),
		LocalNetworks:    m.localNetworks(),
		Workloads:        m.workloads(),
		Mesh:             m.cfg.Topology.Mesh,
		MeshConfigFile:   m.cfg.Topology.MeshFile,
		MeshProblems:     m.cfg.Topology.MeshProblems,
		AcceptHTTP10:     lookupEnv(m.cfg.Environ, controlplane.HTTP10Variable) == "true",
		// JWKS URLs on loopback are allowed: in a local mesh, token issuers often run on this machine, and the user who
		// runs the mesh writes the documents.
		Keys:        controlplane.KeyFetching{Blocked: blocked, AllowLoopback: true, Hosts: map[string]netip.Addr{HostName: netip.AddrFrom4([4]byte{127, 0, 0, 1})}},
		TrustDomain: m.cfg.Topology.TrustDomain,
		Endpoints:   m.endpointPolicy(),
		TLSPolicy:   tlspolicy.Policy(lookupEnv(m.cfg.Environ, controlplane.TLSPolicyVariable)),
	}, m.events)
	if err := p.start(ctx); err != nil {
		return err
	}
	m.addCleanup(func() { _ = p.stop() })
	m.mu.Lock()
	m.controlPlane = p
	m.mu.Unlock()
	return nil
}

// serviceAddresses is the range of virtual service addresses: a part of 240.0.0.0/4, which hosts do not use.
var serviceAddresses = netip.PrefixFrom(netip.AddrFrom4([4]byte{240, 0, 0, 0}), 5)

// virtualAddresses returns the range of the services' virtual addresses. A sidecar finds the service of a captured
// connection by the virtual address to which the application connected. Without capture, the result is the zero
// Prefix.
func (m *Mesh) virtualAddresses() netip.Prefix {
	if m.placement.Captured() {
		return serviceAddresses
	}
	return netip.Prefix{}
}

// workloads returns the workloads of the topology that have a proxy, and therefore an identity.
func (m *Mesh) workloads() []snapshot.Workload {
	var out []snapshot.Workload
	for _, w := range m.cfg.Topology.Workloads {
		if w.NoSidecar {
			continue
		}
		out = append(out, snapshot.Workload{Namespace: w.Namespace, ServiceAccount: w.ServiceAccount, Labels: w.Labels})
	}
	return out
}

// localNetworks returns the loopback network of a mesh without capture.
func (m *Mesh) localNetworks() []netip.Prefix {
	if p, ok := m.placement.(*loopbackPlacement); ok {
		return []netip.Prefix{p.network}
	}
	return nil
}

// openControlSocket serves the control socket, through which other commands of this user query and control the mesh.
func (m *Mesh) openControlSocket(context.Context) error {
	path := filepath.Join(m.runtime.path, socketFile)
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return fmt.Errorf("opening the control socket: %w", withRemedy(err))
	}
	server := &http.Server{Handler: m.controlHandler(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	m.addCleanup(func() {
		_ = server.Close()
		<-done
	})
	return nil
}

// controlHandler returns the handler of the control socket's API: JSON over HTTP.
func (m *Mesh) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, m.Status(r.Context())) })
	mux.HandleFunc("GET /events", m.serveEvents)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, struct{}{})
		_ = http.NewResponseController(w).Flush() // send the response, because the mesh closes the socket when it stops
		m.Stop("requested by `pilotfish down`")
	})
	mux.HandleFunc("POST /control-plane/stop", commandHandler(m.StopControlPlane))
	mux.HandleFunc("POST /control-plane/start", commandHandler(m.StartControlPlane))
	mux.HandleFunc("POST /workloads/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		commandHandler(func(ctx context.Context) error { return m.Restart(ctx, r.PathValue("name")) })(w, r)
	})
	mux.HandleFunc("/debug/", m.serveDebug)
	mux.HandleFunc("/workloads/{name}/envoy/{page...}", m.serveWorkload(envoyPages, adminHost))
	mux.HandleFunc("GET /workloads/{name}/agent/{page...}", m.serveWorkload(agentPages, controlHost))
	mux.HandleFunc("GET /workloads/{name}/inside", func(w http.ResponseWriter, r *http.Request) {
		in, err := m.execTarget(r.PathValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		writeJSON(w, in)
	})
	return mux
}

// commandHandler returns a handler that runs do and responds with its error.
func commandHandler(do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		writeJSON(w, struct{}{})
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// serveEvents streams the events that occur after the request. Each line contains one JSON object.
func (m *Mesh) serveEvents(w http.ResponseWriter, r *http.Request) {
	sub := m.Events()
	defer sub.Close()
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/jsonl")
	if control.Flush() != nil {
		return
	}
	out := json.NewEncoder(w)
	for {
		events, ok := sub.Next(r.Context().Done())
		if !ok {
			return
		}
		for _, e := range events {
			if out.Encode(e) != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
	}
}

// quitAgent stops the agent without a drain, because all clients in the mesh stop too.
func (r *instanceRunner) quitAgent() {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+controlHost+"/quitquitquit", nil)
	if err != nil {
		return
	}
	if res, err := r.probe.client.Do(req); err == nil {
		_ = res.Body.Close()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		r.probe.client.CloseIdleConnections()
	}
}
