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

// Topology is a parsed topology file with defaults. docs/topology.md describes the fields.
type Topology struct {
	// File is the file it was read from. Relative paths in it are relative to the file's directory.
	File string
	Name string
	// Config lists the files and directories of Istio and Kubernetes documents, absolute or relative to the working
	// directory.
	Config []string
	// Network is the /16 of loopback addresses that the mesh uses; the zero Prefix selects the first free one.
	Network     netip.Prefix
	TrustDomain string
	// Mesh is Istio's mesh configuration; never nil. If it is in a file, MeshFile, it has that file's contents at load
	// time.
	Mesh     *meshconfig.MeshConfig
	MeshFile string
	// MeshProblems lists fields of Mesh without effect, if Mesh is in the topology file itself.
	MeshProblems []config.Problem
	Workloads    []*Workload

	// fileRefs are the paths in the file, to report missing ones.
	fileRefs []fileReference
	spec     value
}

// WorkloadType determines whether a workload has an application.
type WorkloadType string

const (
	// Service is an application with a sidecar.
	Service WorkloadType = "service"
	// Gateway is a proxy without an application.
	Gateway WorkloadType = "gateway"
)

// RestartRule determines when an ended application is restarted.
type RestartRule string

// Restart rules of an application. A sidecar is always restarted.
const (
	RestartAlways    RestartRule = "always"
	RestartOnFailure RestartRule = "on-failure"
	RestartNever     RestartRule = "never"
)

// Workload is one entry of spec.workloads: an application or a gateway, with its number of replicas.
type Workload struct {
	Name           string
	Namespace      string
	Type           WorkloadType
	Labels         map[string]string
	Annotations    map[string]string
	ServiceAccount string
	Ports          []Port
	// Command is the argument list before the expansion of variables; empty for a gateway.
	Command    []string
	Env        map[string]string
	WorkingDir string
	// AddCapabilities are added to the default capabilities of an application in a captured mesh.
	AddCapabilities []string
	Replicas        int
	Restart         RestartRule
	Upstreams       []Upstream
	Readiness       Readiness
	// StartupTimeout is how long an instance may start before it is reported as late.
	StartupTimeout time.Duration
	// At is the workload's position in the file.
	At config.Position

	source value
}

// Port is a port that the application (or the gateway's proxy) listens on.
type Port struct {
	Name     string
	Port     uint16
	Protocol string
	// Publish is the address on this machine at which a gateway's port is published; the zero AddrPort publishes
	// nothing.
	Publish netip.AddrPort
}

// Upstream is a TCP service that the application reaches at its own address.
type Upstream struct {
	Name string
	Host string
	Port uint16
}

// Readiness determines when the application is ready. With an empty Path: when the port accepts a connection.
type Readiness struct {
	Path string
	// Port is 0 for the workload's first port. A workload without ports is ready when it runs.
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

// FirstPort returns the value of ${PORT}, or 0 without ports.
func (w *Workload) FirstPort() uint16 {
	if len(w.Ports) == 0 {
		return 0
	}
	return w.Ports[0].Port
}

// Rename changes the mesh's name, so that it can run in parallel with one of the file's name.
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

// ProtocolOf returns the protocol of a port of the workload.
func (w *Workload) ProtocolOf(port uint16) string {
	for _, p := range w.Ports {
		if p.Port == port {
			return p.Protocol
		}
	}
	return ""
}
