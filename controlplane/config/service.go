package config

import (
	"reflect"
)

// ServiceSpec is what the control plane reads of a Kubernetes Service's spec.
type ServiceSpec struct {
	// Type is ClusterIP when the document has none.
	Type      string
	ClusterIP string // "None" for a headless service, empty if not given
	// ClusterIPs are all addresses of a service that has several, of both families.
	ClusterIPs   []string
	ExternalName string
	Selector     map[string]string
	Ports        []ServicePort
}

// ServicePort is one port of a Kubernetes Service.
type ServicePort struct {
	Name        string
	Protocol    string // transport: TCP, UDP or SCTP; TCP when the document has none
	AppProtocol string
	Port        uint32
	// TargetPort is the port of the workload: a number, or the name of one of the workload's ports. Both zero: Port.
	TargetPort     uint32
	TargetPortName string
}

// Equal says whether two specs mean the same.
func (s *ServiceSpec) Equal(o *ServiceSpec) bool { return reflect.DeepEqual(s, o) }
