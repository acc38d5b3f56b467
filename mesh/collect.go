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
)

// statusTimeout bounds how long status waits for agents.
const statusTimeout = time.Second

// Status describes the mesh as it is now. It asks the agents, and takes no longer than a second.
func (m *Mesh) Status(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := m.describe()
	var clients []xds.ClientStatus
	if p := m.currentPlane(); p != nil {
		control, full := p.status()
		s.Control, clients = control, full.Clients
	}
	runners := m.snapshotRunners()
	envoys := parentsOf(filepath.Base(m.envoyPath()))
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

func (r *runner) status(ctx context.Context) InstanceStatus {
	i, w := r.instance, r.instance.workload
	s := InstanceStatus{
		Name: i.Name, Workload: w.Name, Namespace: w.Namespace, Type: w.Type, ServiceAccount: w.ServiceAccount,
		ProxyAddress: i.Proxy.String(), Agent: r.agent.snapshot(),
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

// EnvoyPID is the process of an instance's Envoy; 0 when there is none now.
func (m *Mesh) EnvoyPID(instance string) int {
	for _, r := range m.snapshotRunners() {
		if agent := r.agent.snapshot(); r.instance.Name == instance && agent.PID != 0 {
			return parentsOf(filepath.Base(m.envoyPath()))[agent.PID]
		}
	}
	return 0
}

// configStatus finds what the control plane knows of an instance's proxy.
func configStatus(i *Instance, clients []xds.ClientStatus, planeRuns bool) ConfigStatus {
	mark := "~" + i.Proxy.String() + "~"
	for n := len(clients) - 1; n >= 0; n-- {
		if c := clients[n]; strings.Contains(c.Node, mark) {
			return i.advise(clientConfig(c))
		}
	}
	if !planeRuns {
		return ConfigStatus{State: ConfigDisconnected, Reason: "the control plane does not run; the last configuration stays in force"}
	}
	return ConfigStatus{State: ConfigDisconnected, Reason: "the proxy is not connected to the control plane"}
}

// advise adds to what a sidecar rejected what to do about it.
func (i *Instance) advise(s ConfigStatus) ConfigStatus {
	for n := range s.Rejected {
		if i.workload.Type != Gateway {
			if remedy := i.bindRemedy(s.Rejected[n].Reason); remedy != "" {
				s.Rejected[n].Remedy = remedy + "; mend that, and bring the mesh up anew"
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
	for _, t := range c.Types {
		if t.Rejected != nil {
			s.State = ConfigRejected
			s.Rejected = append(s.Rejected, Rejection{
				Type: shortType(t.TypeURL), Time: t.Rejected.At, Resources: t.Rejected.Resources, Reason: t.Rejected.Reason,
				From: t.Rejected.From,
			})
		}
		if t.Error != "" {
			s.Reason = shortType(t.TypeURL) + " cannot be made: " + t.Error
		}
	}
	return s
}

func shortType(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }

// certificate asks the agent for the certificate that it serves to Envoy.
func (r *runner) certificate(ctx context.Context) *CertificateStatus {
	body, status, err := r.probe.get(ctx, r.instance.StatusAddress().String(), "/debug/certz")
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

// trafficInterval is how often the requests that proxies served are counted.
const trafficInterval = 3 * time.Second

// rate turns a counter that is read now and then into a rate.
type rate struct {
	count     float64
	at        time.Time
	perSecond float64
}

// read takes the counter's value. A counter that went back (Envoy was restarted) begins anew.
func (t *rate) read(count float64, now time.Time) {
	if elapsed := now.Sub(t.at).Seconds(); !t.at.IsZero() && elapsed > 0 && count >= t.count {
		t.perSecond = (count - t.count) / elapsed
	} else {
		t.perSecond = 0
	}
	t.count, t.at = count, now
}

// sampleTraffic counts, in the background, so that status can tell at once. While at it, it looks at what proxies rejected.
func (m *Mesh) sampleTraffic(ctx context.Context) {
	ticker := time.NewTicker(trafficInterval)
	defer ticker.Stop()
	told := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, r := range m.snapshotRunners() {
			r.sample(ctx)
		}
		m.tellRejections(told)
	}
}

func (r *runner) sample(ctx context.Context) {
	if ready, _, _ := r.state(); !ready {
		return
	}
	body, status, err := r.probe.get(ctx, r.instance.AdminAddress().String(), "/stats?usedonly&filter="+r.trafficFilter())
	if err != nil || status != 200 {
		return
	}
	total := sumStats(body)
	r.mu.Lock()
	r.traffic.read(total, time.Now())
	r.mu.Unlock()
}

// trafficFilter selects the counters of what came in: for a sidecar the requests to its application, for a gateway
// those it passed on.
func (r *runner) trafficFilter() string {
	if r.instance.workload.Type == Gateway {
		return `^http%5C.outbound_.*%5C.downstream_rq_completed$`
	}
	return `^http%5C.inbound_.*%5C.downstream_rq_completed$`
}

// sumStats adds up the lines "name: value" of Envoy's statistics.
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
