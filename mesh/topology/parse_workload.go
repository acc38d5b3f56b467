package topology

import (
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dnsName      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	trustDomain  = regexp.MustCompile(`^[a-z0-9._-]{1,255}$`)
	labelKey     = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
	labelValue   = regexp.MustCompile(`^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
)

func (v value) workload() *Workload {
	w := &Workload{At: v.position()}
	sidecar := true
	present := v.object(map[string]func(value){
		"name":           func(v value) { v.label(&w.Name, 63) },
		"namespace":      func(v value) { v.label(&w.Namespace, 63) },
		"type":           func(v value) { v.oneOf((*string)(&w.Type), string(Service), string(Gateway)) },
		"sidecar":        func(v value) { v.boolean(&sidecar) },
		"labels":         func(v value) { v.labels(&w.Labels) },
		"annotations":    func(v value) { v.stringMap(&w.Annotations) },
		"serviceAccount": func(v value) { v.dnsName(&w.ServiceAccount) },
		"ports": func(v value) {
			for _, item := range v.list() {
				w.Ports = append(w.Ports, item.workloadPort())
			}
		},
		"command":         func(v value) { v.strings(&w.Command) },
		"env":             func(v value) { v.environment(&w.Env) },
		"workingDir":      func(v value) { v.string(&w.WorkingDir) },
		"addCapabilities": func(v value) { v.capabilities(&w.AddCapabilities) },
		"replicas":        func(v value) { v.integer(&w.Replicas, 1, maxInstances) },
		"restart": func(v value) {
			v.oneOf((*string)(&w.Restart), string(RestartAlways), string(RestartOnFailure), string(RestartNever))
		},
		"readiness":      func(v value) { v.readiness(&w.Readiness) },
		"startupTimeout": func(v value) { v.duration(&w.StartupTimeout) },
		"upstreams": func(v value) {
			for _, item := range v.list() {
				w.Upstreams = append(w.Upstreams, item.upstream())
			}
		},
	})
	v.require(present, "name", "name: and a unique name")
	v.checkType(w, present)
	if !present["sidecar"] {
		sidecar = !w.refusesInjection()
	}
	w.NoSidecar = !sidecar && w.Type != Gateway
	w.source = v
	return w
}

// injectKey is Istio's label, and older annotation, of a pod that determines whether the pod receives a sidecar.
const injectKey = "sidecar.istio.io/inject"

// refusesInjection reports whether a pod with the workload's labels and annotations would not receive a sidecar. As in
// Istio, the label overrides the annotation.
func (w *Workload) refusesInjection() bool {
	inject, ok := w.Labels[injectKey]
	if !ok {
		inject = w.Annotations[injectKey]
	}
	return inject == "false"
}

// checkType reports fields that have no effect for the workload's type.
func (v value) checkType(w *Workload, present map[string]bool) {
	if w.Type != Gateway {
		v.require(present, "command", `command: ["/path/to/program", "argument"]`)
		return
	}
	for _, field := range []string{"sidecar", "command", "env", "workingDir", "addCapabilities", "restart", "readiness", "upstreams"} {
		if present[field] {
			v.field(field).problem("remove the field, or set the type to "+string(Service), "a gateway has no application, so this field has no effect")
		}
	}
}

func (v value) label(into *string, maxLength int) {
	var s string
	v.string(&s)
	if s != "" && (!dnsLabel.MatchString(s) || len(s) > maxLength) {
		v.problem("use lower-case letters, digits and dashes, "+strconv.Itoa(maxLength)+" characters at most", "not a name")
		return
	}
	*into = s
}

// maxNameLength is the maximum length of a mesh's name. The name is part of a socket path, which the kernel limits to
// 107 bytes.
const maxNameLength = 40

func (v value) meshName(into *string) { v.label(into, maxNameLength) }

func (v value) dnsName(into *string) {
	var s string
	v.string(&s)
	if s != "" && (!dnsName.MatchString(s) || len(s) > 253) {
		v.problem("use lower-case letters, digits, dashes and dots", "not a name")
		return
	}
	*into = s
}

func (v value) trustDomain(into *string) {
	var s string
	v.string(&s)
	if s != "" && !trustDomain.MatchString(s) {
		v.problem("use lower-case letters, digits, dots, dashes and underscores, as in cluster.local", "not a trust domain")
		return
	}
	*into = s
}

func (v value) labels(into *map[string]string) {
	v.stringMap(into)
	for _, p := range v.pairs() {
		if !labelKey.MatchString(p.name) || len(p.name) > 253 {
			p.key.problem("use [prefix/]name of letters, digits, dashes, underscores and dots", "not the name of a Kubernetes label")
		}
		if text := (*into)[p.name]; !labelValue.MatchString(text) || len(text) > 63 {
			p.val.problem("use letters, digits, dashes, underscores and dots, 63 characters at most", "not the value of a Kubernetes label")
		}
	}
}

func (v value) environment(into *map[string]string) {
	v.stringMap(into)
	for _, p := range v.pairs() {
		if !variableName.MatchString(p.name) {
			p.key.problem("use letters, digits and underscores", "not the name of an environment variable")
		}
	}
}

func (v value) workloadPort() Port {
	var p Port
	present := v.object(map[string]func(value){
		"name":     func(v value) { v.label(&p.Name, 63) },
		"port":     func(v value) { v.port(&p.Port) },
		"protocol": func(v value) { v.protocol(&p.Protocol) },
		"publish":  func(v value) { v.publish(&p.Publish) },
	})
	v.require(present, "port", "port: and its number")
	return p
}

// protocols are those that Istio accepts in a port's name or appProtocol.
var protocols = []string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TCP", "MONGO", "MYSQL", "REDIS", "UDP"}

func (v value) protocol(into *string) {
	var s string
	v.string(&s)
	for _, p := range protocols {
		if strings.EqualFold(s, p) {
			*into = p
			return
		}
	}
	if s != "" {
		v.problem("use one of "+strings.Join(protocols, ", "), "not a supported protocol")
	}
}

// publish reads a port of 127.0.0.1, or an address with a port, at which a gateway's port is published.
func (v value) publish(into *netip.AddrPort) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!int" {
		var port uint16
		v.port(&port)
		*into = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		return
	}
	addr, err := netip.ParseAddrPort(v.node.Value)
	if err != nil || addr.Port() == 0 {
		v.problem("write a port, as in 8080, or an address and a port, as in 0.0.0.0:8080", "not an address at which a port can be published")
		return
	}
	*into = addr
}

func (v value) readiness(into *Readiness) {
	port := func(v value) { v.port(&into.Port) }
	present := v.object(map[string]func(value){
		"httpGet": func(v value) {
			v.object(map[string]func(value){"path": func(v value) { v.httpPath(&into.Path) }, "port": port})
			if into.Path == "" {
				into.Path = "/"
			}
		},
		"tcpSocket": func(v value) { v.object(map[string]func(value){"port": port}) },
	})
	if len(present) > 1 {
		v.problem("remove httpGet or tcpSocket", "an application can have only one readiness probe")
	}
}

func (v value) httpPath(into *string) {
	var s string
	v.string(&s)
	if s != "" && (!strings.HasPrefix(s, "/") || strings.ContainsAny(s, " \t\r\n")) {
		v.problem("write a path as in /healthz", "not the path of a URL")
		return
	}
	*into = s
}

func (v value) upstream() Upstream {
	var u Upstream
	present := v.object(map[string]func(value){
		"name": func(v value) { v.label(&u.Name, 63) },
		"host": func(v value) { v.dnsName(&u.Host) },
		"port": func(v value) { v.port(&u.Port) },
	})
	v.require(present, "host", "host: and the name of the service")
	v.require(present, "port", "port: and the service's port")
	return u
}

// absolutePath resolves path relative to the topology file's directory.
func (t *Topology) absolutePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(t.BaseDir(), path)
}
