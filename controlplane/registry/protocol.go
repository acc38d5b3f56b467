package registry

import "strings"

// declared are the names of protocols in port names, appProtocol and ServiceEntries' ports, in lower case. Protocols that
// the mesh sees no messages of are TCP.
var declared = map[string]Protocol{
	"http": HTTP, "http2": HTTP2, "grpc": GRPC, "grpc-web": GRPC, "https": HTTPS, "tls": TLS, "tcp": TCP, "udp": UDP,
	"mongo": TCP, "mysql": TCP, "redis": TCP,
	// Kubernetes' standard application protocols.
	"kubernetes.io/h2c": HTTP2, "kubernetes.io/ws": HTTP, "kubernetes.io/wss": HTTPS,
}

// wellKnown are the protocols of ports that say nothing of themselves, where the number does: what is not HTTP, and
// mostly has the server speak first, which to find out by its silence takes a while.
var wellKnown = map[uint32]Protocol{
	443: HTTPS, 6443: HTTPS, 8443: HTTPS,
	22: TCP, 25: TCP, 53: TCP, 389: TCP, 1433: TCP, 1521: TCP, 2181: TCP, 2379: TCP, 3306: TCP, 4222: TCP, 5432: TCP,
	5672: TCP, 6379: TCP, 9042: TCP, 9092: TCP, 11211: TCP, 26257: TCP, 27017: TCP,
}

// serviceProtocol is what a port of a Kubernetes Service speaks: appProtocol, else the port's name up to the first dash,
// else its number, else nobody knows.
func serviceProtocol(appProtocol, name string, number uint32) Protocol {
	if p, ok := declared[strings.ToLower(appProtocol)]; ok {
		return p
	}
	return namedProtocol(name, number)
}

func namedProtocol(name string, number uint32) Protocol {
	name = strings.ToLower(name)
	if name == "grpc-web" || strings.HasPrefix(name, "grpc-web-") {
		return GRPC
	}
	prefix, _, _ := strings.Cut(name, "-")
	if p, ok := declared[prefix]; ok {
		return p
	}
	if p, ok := wellKnown[number]; ok {
		return p
	}
	return Undeclared
}

// entryProtocol is what a port of a ServiceEntry speaks: its protocol, else as for a Service.
func entryProtocol(protocol, name string, number uint32) Protocol {
	if p, ok := declared[strings.ToLower(protocol)]; ok {
		return p
	}
	return namedProtocol(name, number)
}

// ProtocolOf is what a port that documents describe speaks: its protocol, else by its name or number.
func ProtocolOf(protocol, name string, number uint32) Protocol {
	return entryProtocol(protocol, name, number)
}
