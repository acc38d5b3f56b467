// Package topology reads and validates the topology file of a local mesh, and assigns the addresses of its instances.
package topology

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// APIVersion and Kind identify a topology file.
const (
	APIVersion = "pilotfish.dev/v1alpha1"
	Kind       = "Mesh"
)

// Topology is a parsed topology file, with defaults for missing fields. docs/topology.md describes the fields.
type Topology struct {
	// File is the path of the topology file. Relative paths in the file are relative to its directory.
	File string
	Name string
	// Config lists the files and directories of Istio and Kubernetes documents, absolute or relative to the working
	// directory.
	Config []string
	// Network is the /16 of loopback addresses for the mesh. The zero Prefix selects the first free one.
	Network     netip.Prefix
	TrustDomain string
	// Mesh is Istio's mesh configuration; never nil. If it is in a separate file, MeshFile, Mesh has the content of
	// that file when the topology was loaded.
	Mesh     *meshconfig.MeshConfig
	MeshFile string
	// MeshProblems lists fields of Mesh without effect. It is used only if Mesh is in the topology file itself.
	MeshProblems []config.Problem
	Workloads    []*Workload

	// fileRefs contains the paths in the file, with positions for reports of missing files.
	fileRefs []fileReference
	spec     value
}

// WorkloadType determines whether a workload has an application.
type WorkloadType string

const (
	// Service is an application. It has a sidecar unless Workload.NoSidecar is set.
	Service WorkloadType = "service"
	// Gateway is a proxy without an application.
	Gateway WorkloadType = "gateway"
)

// RestartRule determines in which cases an application is restarted after it has ended.
type RestartRule string

// Restart rules of an application. A sidecar is always restarted.
const (
	RestartAlways    RestartRule = "always"
	RestartOnFailure RestartRule = "on-failure"
	RestartNever     RestartRule = "never"
)

// Workload is one entry of spec.workloads: an application or a gateway, with its number of replicas.
type Workload struct {
	Name      string
	Namespace string
	Type      WorkloadType
	// NoSidecar: the application runs outside the mesh, without an agent and an Envoy.
	NoSidecar      bool
	Labels         map[string]string
	Annotations    map[string]string
	ServiceAccount string
	Ports          []Port
	// Command is the argument list before variables are expanded; empty for a gateway.
	Command    []string
	Env        map[string]string
	WorkingDir string
	// AddCapabilities are added to the default capabilities of an application in a captured mesh.
	AddCapabilities []string
	Replicas        int
	Restart         RestartRule
	Upstreams       []Upstream
	Readiness       Readiness
	// StartupTimeout is the time after which an instance that is not ready is reported as late.
	StartupTimeout time.Duration
	// At is the workload's position in the file.
	At config.Position

	source value
}

// Port is a port on which the application, or the gateway's proxy, listens.
type Port struct {
	Name     string
	Port     uint16
	Protocol string
	// Publish is the address on this machine at which a gateway's port is published. The zero AddrPort means that it is
	// not published.
	Publish netip.AddrPort
}

// Upstream is a TCP service for which the application has a separate address.
type Upstream struct {
	Name string
	Host string
	Port uint16
}

// Readiness determines when the application is ready. If Path is empty, it is ready when the port accepts a connection.
type Readiness struct {
	Path string
	// Port is the port of the probe. 0 selects the workload's first port. A workload without ports is ready when it
	// runs.
	Port uint16
}

// Load reads a topology file. It returns an *InvalidError that lists every problem with its position, or an error that
// wraps an *os.PathError if it cannot read the file.
func Load(path string) (*Topology, error) {
	data, err := readTopologyFile(path)
	if err != nil {
		return nil, err
	}
	doc, t, err := parseTopology(path, data)
	if err != nil {
		return nil, err
	}
	t.checkFiles(doc)
	if err := doc.err(); err != nil {
		return nil, err
	}
	t.checkMesh(doc)
	if err := doc.err(); err != nil {
		return nil, err
	}
	t.fillDefaults()
	return t, nil
}

// BaseDir returns the directory to which the file's paths are relative.
func (t *Topology) BaseDir() string { return filepath.Dir(t.File) }

// instanceName returns the name of a workload's replica. A single replica has no number in its name.
func (w *Workload) instanceName(replica int) string {
	if w.Replicas <= 1 {
		return w.Name
	}
	return fmt.Sprintf("%s-%d", w.Name, replica)
}

// HasSidecar reports whether the workload is an application with a sidecar.
func (w *Workload) HasSidecar() bool { return w.Type != Gateway && !w.NoSidecar }

// FirstPort returns the value of ${PORT}, or 0 if the workload has no ports.
func (w *Workload) FirstPort() uint16 {
	if len(w.Ports) == 0 {
		return 0
	}
	return w.Ports[0].Port
}

// Rename changes the mesh's name, so that it can run at the same time as the mesh with the name in the file.
func (t *Topology) Rename(name string) error {
	if !dnsLabel.MatchString(name) || len(name) > maxNameLength {
		return fmt.Errorf("%q is not a name for a mesh: use lower-case letters, digits and dashes, %d characters at most", name, maxNameLength)
	}
	t.Name = name
	return nil
}

// InstanceNames returns the names of all instances, in the order of the file.
func (t *Topology) InstanceNames() []string {
	var names []string
	for _, w := range t.Workloads {
		for i := 1; i <= w.Replicas; i++ {
			names = append(names, w.instanceName(i))
		}
	}
	return names
}

// ProtocolOf returns the protocol of the workload's port, or "" if the workload does not have this port.
func (w *Workload) ProtocolOf(port uint16) string {
	for _, p := range w.Ports {
		if p.Port == port {
			return p.Protocol
		}
	}
	return ""
}
