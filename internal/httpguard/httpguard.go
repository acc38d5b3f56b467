// Package httpguard rejects requests to local HTTP endpoints that a web page of another site may have caused. The page
// may use DNS rebinding, which is visible in the Host header, or a cross-origin request.
package httpguard

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// maxShown limits how many bytes of a client's header a response quotes.
const maxShown = 100

// sameOrigin rejects cross-origin requests with a method that can change state.
var sameOrigin = http.NewCrossOriginProtection()

// Handler returns a handler that responds 403 to requests that Check rejects, and passes all others to next. names are
// the host names of the server.
func Handler(next http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Check(r, names...); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Check returns an error for a request that a web page of another site may have caused. The Host header must be an IP
// address, localhost or one of names (ignoring case and port). With DNS rebinding, it contains a domain of the attacker
// instead. An Origin header must contain the same host and port, and Sec-Fetch-Site must not be cross-site. Requests
// that can change state must also not originate from another port of the same site. Clients that are not browsers send
// neither Origin nor Sec-Fetch-Site. A request over a unix socket is always accepted, because browsers cannot send one.
func Check(r *http.Request, names ...string) error {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return nil
	}
	if !isOwnHost(r.Host, names) {
		return fmt.Errorf("the host %s is not a name of this server; use its IP address or localhost", quote(r.Host))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !isOriginOf(origin, r.Host) {
		return fmt.Errorf("requests from web pages of another origin (%s) are rejected", quote(origin))
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" || sameOrigin.Check(r) != nil {
		return fmt.Errorf("requests from web pages of another origin are rejected")
	}
	return nil
}

// isOwnHost reports whether a Host header is an IP address, localhost or one of names. An empty header is accepted,
// because HTTP/1.0 clients may omit it.
func isOwnHost(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
	if _, err := netip.ParseAddr(host); err == nil || host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(host, strings.TrimSuffix(name, ".")) })
}

// isOriginOf reports whether an Origin header contains the host and port of the request's Host header.
func isOriginOf(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// quote returns the beginning of a client's header in quotes, with control characters escaped.
func quote(header string) string {
	if len(header) > maxShown {
		header = header[:maxShown]
	}
	return fmt.Sprintf("%+q", header)
}
