package dns

import (
	"encoding/json"
	"net/http"
)

// describedHost is a host at /debug/ndsz, with the keys of Istio's name table.
type describedHost struct {
	IPs       []string `json:"ips,omitempty"`
	Registry  string   `json:"registry,omitempty"`
	ShortName string   `json:"shortname,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	AltHosts  []string `json:"alt_hosts,omitempty"`
}

// NamesHandler returns a handler that prints the name table as JSON. Without a table it responds 404 and {}. The caller
// authorizes requests.
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
