package snapshot

import "strings"

// IsKnownCondition reports whether the control plane enforces an AuthorizationPolicy condition with this key.
func IsKnownCondition(key string) bool {
	switch key {
	case "source.ip", "source.namespace", "source.principal", "source.serviceAccount", "source.trustDomain", "remote.ip", "destination.ip",
		"destination.port", "connection.sni", "request.auth.principal", "request.auth.audiences", "request.auth.presenter":
		return true
	}
	for _, prefix := range []string{"request.headers[", "request.auth.claims[", "experimental.envoy.filters."} {
		if strings.HasPrefix(key, prefix) && strings.HasSuffix(key, "]") {
			return true
		}
	}
	return false
}
