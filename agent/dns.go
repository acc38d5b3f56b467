package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pilotfish-mesh/pilotfish/dns"
)

// newDNSServer creates the DNS server and listens on its addresses. It returns nil if the server is disabled.
func (a *Agent) newDNSServer() (*dns.Server, error) {
	c := a.Config.DNS
	if c == nil {
		a.control.Handle("POST /dns/lookup", jsonHandler(a.refuseLookup))
		return nil, nil
	}
	server, err := dns.New(dns.Config{
		Listen:              []string{c.Listen},
		ResolvConf:          c.ResolvConf,
		Namespace:           a.Config.Identity.Namespace,
		Domain:              a.Config.Identity.Domain,
		ForwardWithoutTable: c.ForwardWithoutTable,
		AllowFrom:           c.AllowFrom,
		TableFile:           c.KeepFile,
		Owner:               a.Config.Identity.StateOwner(),
		TTL:                 c.TTL,
		ForwardTimeout:      c.ForwardTimeout,
		ForwardParallel:     c.ForwardParallel,
		Logger:              a.Logger.With("part", "dns"),
		Registerer:          a.metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("DNS_PROXY_ADDR: %w", err)
	}
	a.control.Handle("POST /dns/lookup", jsonHandler(lookupHandler(server)))
	return server, nil
}

// applyNameTable returns a function that passes the name table in a response of the control plane to the DNS server. A
// response contains one complete table, or none.
func applyNameTable(server *dns.Server) func(resources [][]byte, version string) error {
	return func(resources [][]byte, _ string) error {
		switch len(resources) {
		case 0:
			return nil
		case 1:
			return server.Update(resources[0])
		}
		return fmt.Errorf("received %d name tables instead of one", len(resources))
	}
}

// LookupRequest requests the resolution of a name. If the type is empty, the agent resolves both IPv4 and IPv6
// addresses.
type LookupRequest struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
}

// LookupReport explains the answers to a LookupRequest, one for each type.
type LookupReport struct {
	Lookups []dns.Explanation `json:"lookups"`
}

// LookupTimeout is the timeout of the lookup of one type.
const LookupTimeout = 20 * time.Second

func lookupHandler(server *dns.Server) func(context.Context, LookupRequest) (LookupReport, error) {
	return func(ctx context.Context, o LookupRequest) (LookupReport, error) {
		types := []string{o.Type}
		if o.Type == "" {
			types = []string{"A", "AAAA"}
		}
		var r LookupReport
		for _, t := range types {
			ctx, cancel := context.WithTimeout(ctx, LookupTimeout)
			e, err := server.Lookup(ctx, o.Name, t)
			cancel()
			if err != nil {
				return r, err
			}
			r.Lookups = append(r.Lookups, e)
		}
		return r, nil
	}
}

func (a *Agent) refuseLookup(context.Context, LookupRequest) (LookupReport, error) {
	return LookupReport{}, httpError{errors.New("the agent's DNS server is disabled: set ISTIO_META_DNS_CAPTURE=true, or ISTIO_META_ENABLE_DNS_SERVER=true"), http.StatusConflict}
}
