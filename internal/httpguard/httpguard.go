// Package httpguard refuses requests to local HTTP endpoints that another site's web page may have caused: by DNS
// rebinding, which the Host header reveals, or by a cross-origin request.
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

// maxShown is the number of bytes of a client's header that a response quotes.
const maxShown = 100

// sameOrigin refuses cross-origin requests with a method that can change state.
var sameOrigin = http.NewCrossOriginProtection()

// Handler returns a handler that answers 403 to requests that Check refuses and passes all others to next.
func Handler(next http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Check(r, names...); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Check returns an error for a request that another site's web page may have caused. The Host header must be an IP
// address, localhost or one of names, without regard to case and port: an attacker's domain cannot have such a name. An
// Origin header must name the same host and port, and Sec-Fetch-Site must not be cross-site. Requests that can change
// state must not originate from another port of the same site either. Clients that are not browsers send neither
// header. A request over a unix socket is always accepted, because browsers cannot send one.
func Check(r *http.Request, names ...string) error {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return nil
	}
	if !isOwnHost(r.Host, names) {
		return fmt.Errorf("the host %s is not a name of this server; use its IP address or localhost", quote(r.Host))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !isOriginOf(origin, r.Host) {
		return fmt.Errorf("requests from web pages of another origin (%s) are refused", quote(origin))
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" || sameOrigin.Check(r) != nil {
		return fmt.Errorf("requests from web pages of another origin are refused")
	}
	return nil
}

// isOwnHost reports whether a Host header is an IP address, localhost or one of names. An HTTP/1.0 client may send none.
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

// isOriginOf reports whether an Origin header names the host of a request.
func isOriginOf(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// quote returns the beginning of a client's header, without terminal control characters.
func quote(header string) string {
	if len(header) > maxShown {
		header = header[:maxShown]
	}
	return fmt.Sprintf("%+q", header)
}
