package mesh

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// statusTimeout is how long Status waits for the responses of agents.
const statusTimeout = time.Second

// Status returns the current status of the mesh. It queries the agents, for at most one second.
func (m *Mesh) Status(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := m.describe()
	var clients []xds.ClientStatus
	if p := m.currentControlPlane(); p != nil {
		control, full := p.status()
		s.Control, clients = control, full.Clients
	}
	runners := m.snapshotRunners()
	envoys := parentsOfProgram(filepath.Base(m.envoyPath()))
	s.Instances = make([]InstanceStatus, len(runners))
	var wg sync.WaitGroup
	for n, r := range runners {
		wg.Go(func() {
			s.Instances[n] = r.status(ctx)
			s.Instances[n].EnvoyPID = envoys[s.Instances[n].Agent.PID]
			s.Instances[n].Config = configStatus(r.instance, clients, s.Control.Running)
		})
	}
	wg.Wait()
	s.Ready = s.Control.Running && runners != nil
	for _, i := range s.Instances {
		s.Ready = s.Ready && i.Ready
	}
	return s
}

func (m *Mesh) describe() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{
		Mesh: m.Name(), PID: os.Getpid(), Started: m.started, File: m.cfg.Topology.File, TrustDomain: m.cfg.Topology.TrustDomain,
		StateDir: m.cfg.StateDir, Envoy: m.envoy.Path, EnvoyVersion: m.envoy.Version.String(),
	}
	if m.runtime != nil {
		s.RuntimeDir, s.StateDir = m.runtime.path, m.stateDir()
	}
	if m.placement != nil {
		s.Network, s.Captured = m.placement.Describe(), m.placement.Captured()
	}
	return s
}

func (m *Mesh) envoyPath() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.envoy.Path
}

func (r *instanceRunner) status(ctx context.Context) InstanceStatus {
	i, w := r.instance, r.instance.Workload
	s := InstanceStatus{
		Name: i.Name, Workload: w.Name, Namespace: w.Namespace, Type: w.Type, ServiceAccount: w.ServiceAccount,
		ProxyAddress: i.Proxy.String(), Agent: ProcessStatus{State: ProcessNone},
	}
	if r.agent != nil {
		s.Agent = r.agent.snapshot()
	}
	s.Ready, s.Reasons, _ = r.state()
	if r.app != nil {
		app := r.app.snapshot()
		s.App, s.AppAddress = &app, i.App.String()
	}
	for _, p := range w.Ports {
		if p.Publish.IsValid() {
			s.Published = append(s.Published, p.Publish.String())
		}
	}
	r.mu.Lock()
	s.RequestsPerSecond = r.traffic.perSecond
	r.mu.Unlock()
	if s.Agent.State == ProcessRunning {
		s.Certificate = r.certificate(ctx)
	}
	return s
}

// EnvoyPID returns the process ID of an instance's Envoy; 0 if none is running.
func (m *Mesh) EnvoyPID(instance string) int {
	for _, r := range m.snapshotRunners() {
		if r.instance.Name != instance || r.agent == nil {
			continue
		}
		if agent := r.agent.snapshot(); agent.PID != 0 {
			return parentsOfProgram(filepath.Base(m.envoyPath()))[agent.PID]
		}
	}
	return 0
}

// configStatus returns the configuration state of an instance's proxy according to the control plane.
func configStatus(i *topology.Instance, clients []xds.ClientStatus, running bool) ConfigStatus {
	if i.Workload.NoSidecar {
		return ConfigStatus{State: ConfigNone}
	}
	mark := "~" + i.Proxy.String() + "~"
	for n := len(clients) - 1; n >= 0; n-- {
		if c := clients[n]; strings.Contains(c.Node, mark) {
			return addRemedies(i, clientConfig(c))
		}
	}
	if !running {
		return ConfigStatus{State: ConfigDisconnected, Reason: "the control plane is not running; proxies use the last configuration"}
	}
	return ConfigStatus{State: ConfigDisconnected, Reason: "the proxy is not connected to the control plane"}
}

// addRemedies adds a remedy to each rejection by a sidecar whose reason is an address in use.
func addRemedies(i *topology.Instance, s ConfigStatus) ConfigStatus {
	for n := range s.Rejected {
		if i.Workload.Type != topology.Gateway {
			if remedy := bindRemedy(i, s.Rejected[n].Reason); remedy != "" {
				s.Rejected[n].Remedy = remedy + "; fix the cause, and restart the mesh"
			}
		}
	}
	return s
}

func clientConfig(c xds.ClientStatus) ConfigStatus {
	s := ConfigStatus{State: ConfigPending}
	if c.InSync {
		s.State = ConfigInSync
	}
	if c.Degraded != "" {
		s.State, s.Reason = ConfigDegraded, c.Degraded
	}
	for _, t := range c.Types {
		if t.Rejected != nil {
			s.State = ConfigRejected
			s.Rejected = append(s.Rejected, Rejection{
				Type: shortType(t.TypeURL), Time: t.Rejected.At, Resources: t.Rejected.Resources, Reason: t.Rejected.Reason,
				From: t.Rejected.From,
			})
		}
		if t.Error != "" {
			s.Reason = shortType(t.TypeURL) + " cannot be generated: " + t.Error
		}
	}
	return s
}

func shortType(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }

// certificate queries the agent for the certificate that it serves to Envoy. It returns nil if the query fails.
func (r *instanceRunner) certificate(ctx context.Context) *CertificateStatus {
	body, status, err := r.probe.get(ctx, controlHost, "/debug/certz")
	if err != nil || status != 200 {
		return nil
	}
	var certificates []struct {
		Name     string
		SPIFFEID string
		NotAfter time.Time
	}
	if json.Unmarshal(body, &certificates) != nil {
		return nil
	}
	for _, c := range certificates {
		if c.Name == "default" {
			return &CertificateStatus{SPIFFEID: c.SPIFFEID, Expires: c.NotAfter}
		}
	}
	return nil
}

// trafficInterval is the interval at which the request counters of proxies are read.
const trafficInterval = 3 * time.Second

// rate computes a rate from samples of a counter.
type rate struct {
	count     float64
	at        time.Time
	perSecond float64
}

// update adds a sample. If the counter decreased, Envoy was restarted, and the rate starts again at 0.
func (t *rate) update(count float64, now time.Time) {
	if elapsed := now.Sub(t.at).Seconds(); !t.at.IsZero() && elapsed > 0 && count >= t.count {
		t.perSecond = (count - t.count) / elapsed
	} else {
		t.perSecond = 0
	}
	t.count, t.at = count, now
}

// sampleTraffic reads the request counters in the background, so that Status does not wait for them. It also logs
// rejected configuration.
func (m *Mesh) sampleTraffic(ctx context.Context) {
	ticker := time.NewTicker(trafficInterval)
	defer ticker.Stop()
	logged := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, r := range m.snapshotRunners() {
			r.sample(ctx)
		}
		m.logRejections(logged)
	}
}

func (r *instanceRunner) sample(ctx context.Context) {
	if ready, _, _ := r.state(); !ready || r.agent == nil {
		return
	}
	body, status, err := r.probe.get(ctx, adminHost, "/stats?usedonly&filter="+r.trafficFilter())
	if err != nil || status != 200 {
		return
	}
	total := sumStats(body)
	r.mu.Lock()
	r.traffic.update(total, time.Now())
	r.mu.Unlock()
}

// trafficFilter returns a filter for the counters of received requests: for a sidecar, requests to its application; for
// a gateway, requests that it forwarded.
func (r *instanceRunner) trafficFilter() string {
	if r.instance.Workload.Type == topology.Gateway {
		return `^http%5C.outbound_.*%5C.downstream_rq_completed$`
	}
	return `^http%5C.inbound_.*%5C.downstream_rq_completed$`
}

// sumStats adds the values of Envoy's statistics ("name: value" lines).
func sumStats(body []byte) float64 {
	total := 0.0
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		i := strings.LastIndex(lines.Text(), ": ")
		if i < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(lines.Text()[i+2:], 64); err == nil {
			total += v
		}
	}
	return total
}
