package dns

import (
	"encoding/json"
	"net/http"
)

// describedHost is a host in the response of /debug/ndsz. The JSON keys are those of Istio's name table.
type describedHost struct {
	IPs       []string `json:"ips,omitempty"`
	Registry  string   `json:"registry,omitempty"`
	ShortName string   `json:"shortname,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	AltHosts  []string `json:"alt_hosts,omitempty"`
}

// NamesHandler returns an HTTP handler that responds with the name table as JSON. While the server has no table, it
// responds with status 404 and {}. The caller must authorize requests.
func (s *Server) NamesHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		x := s.index.Load()
		if x == nil || len(x.table.Hosts) == 0 {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("{}"))
			return
		}
		table := make(map[string]describedHost, len(x.table.Hosts))
		for host, e := range x.table.Hosts {
			table[host] = describedHost{texts(e.IPs), e.Registry, e.ShortName, e.Namespace, e.AltHosts}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"table": table})
	})
}
