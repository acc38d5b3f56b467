package topology

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// maxInstances and maxUpstreams result from the address plan: each instance needs one value of the third octet, and
// each upstream one value of the fourth octet.
const (
	maxInstances = 254
	maxUpstreams = 200
)

// DefaultTrustDomain is the default trust domain, as in Istio.
const DefaultTrustDomain = "cluster.local"

const defaultStartupTimeout = 30 * time.Second

// reservedPorts contains the ports on which a proxy listens in addition to the workload's ports.
var reservedPorts = map[uint16]string{
	adminPort: "Envoy's admin interface", StatusPort: "the agent's status", ReadinessPort: "Envoy's readiness",
	PrometheusPort: "Envoy's metrics", HTTPProxyPort: "the sidecar's HTTP proxy",
	OutboundPort: "the sidecar, for captured connections", InboundPort: "the sidecar, for captured connections",
}

func (v value) network(into *netip.Prefix) {
	var s string
	v.string(&s)
	if s == "" {
		return
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Bits() != 16 || !p.Addr().Is4() || p.Masked() != p || p.Addr().As4()[0] != 127 || p.Addr().As4()[1] == 0 {
		v.problem("write 127.N.0.0/16 with N from 1 to 255, or remove the field to use a free network", "not a network for a mesh")
		return
	}
	*into = p
}

// validate checks rules that concern several fields. Some fields may be missing because of problems.
func (t *Topology) validate() {
	names := map[string]*Workload{}
	total := 0
	for _, w := range t.Workloads {
		v := w.source
		for i := 1; i <= max(w.Replicas, 1); i++ {
			name := w.instanceName(i)
			if first := names[name]; first != nil {
				v.duplicateName(w, first, name)
				break
			}
			names[name] = w
			total++
		}
		v.validatePorts(w)
		v.validateUpstreams(w)
		v.validateVariables(w)
	}
	if total > maxInstances {
		t.Workloads[len(t.Workloads)-1].source.problem("use fewer replicas", "%d instances exceed the limit of %d, for which a mesh has addresses", total, maxInstances)
	}
	t.validatePublished()
	t.validateTrustDomain()
}

func (v value) duplicateName(w, first *Workload, name string) {
	field := v.field("name")
	if w.Name == first.Name {
		field.problem("rename one of the workloads", "another workload with this name is defined at %s", first.At)
		return
	}
	field.problem("rename one of the workloads", "an instance of workload %[2]s (%[3]s) also has the name %[1]s", name, first.Name, first.At)
}

func (v value) validatePorts(w *Workload) {
	numbers, names := map[uint16]bool{}, map[string]bool{}
	items := v.items("ports")
	whole, typed := !v.hasProblems("ports"), !v.hasProblems("type")
	for i, p := range w.Ports {
		item := items[i]
		if p.Port != 0 && numbers[p.Port] {
			item.field("port").problem("list each port once", "the port is listed twice")
		}
		if p.Name != "" && names[p.Name] {
			item.field("name").problem("rename one of the ports", "two ports have this name")
		}
		if use := reservedPorts[p.Port]; use != "" {
			item.field("port").problem("let the application listen on another port", "%s uses this port", use)
		}
		if p.Publish.IsValid() && w.Type != Gateway && typed {
			item.field("publish").problem("remove the field, and make the workload reachable through a gateway", "only ports of gateways can be published")
		}
		numbers[p.Port], names[p.Name] = true, true
	}
	if r := w.Readiness.Port; r != 0 && !numbers[r] && whole {
		v.field("readiness").problem("add the port to ports", "the workload has no port %d", r)
	}
	if w.Readiness.Path != "" && len(w.Ports) == 0 && whole {
		v.field("readiness").problem("list the port under ports", "the workload has no port to probe")
	}
}

func (v value) validateUpstreams(w *Workload) {
	names := map[string]bool{}
	items := v.items("upstreams")
	for i, u := range w.Upstreams {
		name := u.Variable()
		if name != upstreamPrefix && names[name] {
			items[i].problem("rename one of the upstreams", "two upstreams have the name %s", strings.TrimPrefix(name, upstreamPrefix))
		}
		names[name] = true
	}
	if len(w.Upstreams) > maxUpstreams {
		v.field("upstreams").problem("use fewer upstreams", "%d upstreams exceed the limit of %d, for which a workload has addresses", len(w.Upstreams), maxUpstreams)
	}
}

// validateVariables expands the command and environment, to find undefined variables.
func (v value) validateVariables(w *Workload) {
	if v.hasProblems("ports") || v.hasProblems("upstreams") {
		return // these define variables
	}
	known := map[string]string{}
	for _, name := range w.variableNames() {
		known[name] = "x"
	}
	check := func(at value, text string) {
		if _, err := ExpandVariables(text, known); err != nil {
			at.problem("use one of ${"+strings.Join(w.variableNames(), "}, ${")+"}, or write $${…} for a literal ${…}", "%v", err)
		}
	}
	items := v.items("command")
	for i, arg := range w.Command {
		check(items[i], arg)
	}
	if len(w.Command) > 0 && w.Command[0] == "" {
		items[0].problem("set the path of the program", "the command has no program")
	} else if len(w.Command) == 0 && w.Type != Gateway {
		v.field("command").problem(`write command: ["/path/to/program", "argument"]`, "the command is empty")
	}
	for _, p := range v.entries("env") {
		check(p.val, w.Env[p.name])
	}
}

func (t *Topology) validatePublished() {
	taken := map[netip.AddrPort]*Workload{}
	for _, w := range t.Workloads {
		items := w.source.items("ports")
		for i, p := range w.Ports {
			if !p.Publish.IsValid() {
				continue
			}
			at := items[i].field("publish")
			if first := taken[p.Publish]; first != nil {
				at.problem("publish the two workloads at different ports", "workload %[2]s already publishes %[1]s (%[3]s)", p.Publish, first.Name, first.At)
			}
			if w.Replicas > 1 {
				at.problem("use one replica, or publish a second gateway at another port", "%d replicas cannot listen on one address", w.Replicas)
			}
			taken[p.Publish] = w
		}
	}
}

func (t *Topology) validateTrustDomain() {
	inline := t.Mesh.GetTrustDomain()
	if t.TrustDomain != "" && inline != "" && t.TrustDomain != inline {
		t.spec.field("trustDomain").problem("remove one of the two fields", "spec.mesh.trustDomain has another value, %q", inline)
	}
}

// fillDefaults sets missing fields to their defaults.
func (t *Topology) fillDefaults() {
	if t.TrustDomain == "" {
		t.TrustDomain = t.Mesh.GetTrustDomain()
	}
	if t.TrustDomain == "" {
		t.TrustDomain = DefaultTrustDomain
	}
	t.Mesh = proto.Clone(t.Mesh).(*meshconfig.MeshConfig)
	t.Mesh.TrustDomain = t.TrustDomain
	for _, w := range t.Workloads {
		w.fillDefaults(t)
	}
}

func (w *Workload) fillDefaults(t *Topology) {
	orDefault(&w.Namespace, "default")
	orDefault(&w.ServiceAccount, "default")
	orDefault((*string)(&w.Type), string(Service))
	orDefault((*string)(&w.Restart), string(RestartAlways))
	if w.Replicas == 0 {
		w.Replicas = 1
	}
	if w.StartupTimeout == 0 {
		w.StartupTimeout = defaultStartupTimeout
	}
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	if w.Labels["app"] == "" {
		w.Labels["app"] = w.Name
	}
	w.WorkingDir = t.absolutePath(w.WorkingDir)
	for i := range w.Ports {
		orDefault(&w.Ports[i].Protocol, "TCP")
		orDefault(&w.Ports[i].Name, fmt.Sprintf("%s-%d", strings.ToLower(w.Ports[i].Protocol), w.Ports[i].Port))
	}
	for i := range w.Upstreams {
		u := &w.Upstreams[i]
		orDefault(&u.Name, strings.SplitN(u.Host, ".", 2)[0])
		u.Host = qualifiedHost(u.Host, w.Namespace)
	}
}

func orDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// qualifiedHost completes the short names of Kubernetes services, and returns other names unchanged.
func qualifiedHost(host, namespace string) string {
	switch {
	case !strings.Contains(host, "."):
		return host + "." + namespace + ".svc.cluster.local"
	case strings.HasSuffix(host, ".svc"):
		return host + ".cluster.local"
	}
	return host
}
