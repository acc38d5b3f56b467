package agent

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// AdminPath is the path prefix of Envoy's admin interface on the control socket.
const AdminPath = "/envoy"

// adminHandler returns a reverse proxy to the admin interface of the serving Envoy.
func (e *envoySupervisor) adminHandler() http.Handler {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial.LocalhostDialer(&net.Dialer{})}
	return http.StripPrefix(AdminPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := e.currentInstance()
		if i == nil {
			http.Error(w, "no Envoy is running", http.StatusServiceUnavailable)
			return
		}
		target, err := url.Parse(adminURL(i.admin.Address()))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		proxy := &httputil.ReverseProxy{
			Transport: transport,
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				http.Error(w, "Envoy's admin interface does not respond: "+err.Error(), http.StatusBadGateway)
			},
		}
		proxy.ServeHTTP(w, r)
	}))
}
