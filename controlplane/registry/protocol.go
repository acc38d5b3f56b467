package registry

import "strings"

// protocolNames maps protocol names, in lower case, to protocols. The names are from port names, appProtocol and the
// ports of ServiceEntries. Protocols whose messages proxies do not parse are mapped to TCP.
var protocolNames = map[string]Protocol{
	"http": HTTP, "http2": HTTP2, "grpc": GRPC, "grpc-web": GRPC, "https": HTTPS, "tls": TLS, "tcp": TCP, "udp": UDP,
	"mongo": TCP, "mysql": TCP, "redis": TCP,
	// Kubernetes' standard application protocols.
	"kubernetes.io/h2c": HTTP2, "kubernetes.io/ws": HTTP, "kubernetes.io/wss": HTTPS,
}

// wellKnownPorts maps port numbers to their usual protocols, none of which is plaintext HTTP. It is used for ports
// without a declared protocol. In most of these protocols the server sends first, so protocol detection would wait
// until its timeout.
var wellKnownPorts = map[uint32]Protocol{
	443: HTTPS, 6443: HTTPS, 8443: HTTPS,
	22: TCP, 25: TCP, 53: TCP, 389: TCP, 1433: TCP, 1521: TCP, 2181: TCP, 2379: TCP, 3306: TCP, 4222: TCP, 5432: TCP,
	5672: TCP, 6379: TCP, 9042: TCP, 9092: TCP, 11211: TCP, 26257: TCP, 27017: TCP,
}

// serviceProtocol returns the protocol of a Kubernetes Service's port. The first of these values determines it:
// appProtocol, the port's name up to the first dash, a well-known port number. If none does, the result is Undeclared.
func serviceProtocol(appProtocol, name string, number uint32) Protocol {
	if p, ok := protocolNames[strings.ToLower(appProtocol)]; ok {
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
	if p, ok := protocolNames[prefix]; ok {
		return p
	}
	if p, ok := wellKnownPorts[number]; ok {
		return p
	}
	return Undeclared
}

// entryProtocol returns the protocol of a ServiceEntry's port: the protocol in its protocol field, or else the protocol
// that a Service's port with this name and number has.
func entryProtocol(protocol, name string, number uint32) Protocol {
	if p, ok := protocolNames[strings.ToLower(protocol)]; ok {
		return p
	}
	return namedProtocol(name, number)
}

// PortProtocol returns the protocol of a port in a document. It depends on the port's protocol field, or else on its
// name, or else on its number.
func PortProtocol(protocol, name string, number uint32) Protocol {
	return entryProtocol(protocol, name, number)
}
