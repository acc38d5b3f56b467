package config

import (
	"reflect"
)

// ServiceSpec contains the fields of a Kubernetes Service's spec that the control plane uses.
type ServiceSpec struct {
	// Type is the type of the Service: ClusterIP if the document does not specify one.
	Type      string
	ClusterIP string // "None" for a headless service, empty if not set
	// ClusterIPs lists the addresses of a Service, at most one of each IP family.
	ClusterIPs   []string
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
	// PublishNotReadyAddresses: pods that are not ready are endpoints, too. EndpointSlices reflect this already.
	PublishNotReadyAddresses bool
	// NodeLocal: clients use only endpoints on their own node (internalTrafficPolicy: Local).
	NodeLocal bool
	// TrafficDistribution is the field trafficDistribution: PreferClose, PreferSameZone, PreferSameNode, or another value
	// of a newer Kubernetes version. It is empty if not set.
	TrafficDistribution string
}

// ServicePort is one port of a Kubernetes Service.
type ServicePort struct {
	Name        string
	Protocol    string // transport: TCP, UDP or SCTP; TCP if the document has none
	AppProtocol string
	Port        uint32
	// TargetPort is the port of the workload: a number, or the name of one of the workload's ports. If both are unset,
	// the port of the workload is Port.
	TargetPort     uint32
	TargetPortName string
}

// Equal reports whether two specs are equal.
func (s *ServiceSpec) Equal(o *ServiceSpec) bool { return reflect.DeepEqual(s, o) }
