package snapshot

import "strings"

// KnownCondition says whether an AuthorizationPolicy's condition of this key is enforced.
func KnownCondition(key string) bool {
	switch key {
	case "source.ip", "source.namespace", "source.principal", "remote.ip", "destination.ip", "destination.port", "connection.sni":
		return true
	}
	return strings.HasPrefix(key, "request.headers[") && strings.HasSuffix(key, "]")
}
