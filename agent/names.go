package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pilotfish-mesh/pilotfish/dns"
)

// newNames takes the addresses at which DNS questions are answered; nil when none are.
func (a *Agent) newNames() (*dns.Server, error) {
	c := a.Config.Names
	if c == nil {
		a.control.Handle("POST /dns/lookup", answer(a.noNames))
		return nil, nil
	}
	server, err := dns.New(dns.Config{
		Listen:              []string{c.Listen},
		ResolvConf:          c.ResolvConf,
		Namespace:           a.Config.Identity.Namespace,
		Domain:              a.Config.Identity.Domain,
		ForwardWithoutTable: c.ForwardWithoutTable,
		AllowFrom:           c.AllowFrom,
		KeepFile:            c.KeepFile,
		Owner:               a.Config.Identity.keeper(),
		TTL:                 c.TTL,
		ForwardTimeout:      c.ForwardTimeout,
		ForwardParallel:     c.ForwardParallel,
		Logger:              a.Logger.With("part", "dns"),
		Registerer:          a.metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("DNS_PROXY_ADDR: %w", err)
	}
	a.control.Handle("POST /dns/lookup", answer(lookUp(server)))
	return server, nil
}

// keeper is whose state on disk is this proxy's own: that of the same workload, although its address may be another.
func (i Identity) keeper() string {
	return fmt.Sprintf("%s~%s.%s~%s~%s", i.Type, i.Name, i.Namespace, i.Domain, i.ClusterID)
}

// takeNames hands the control plane's name table on. It sends one that has all names, or nothing where it knows of none.
func takeNames(server *dns.Server) func(resources [][]byte, version string) error {
	return func(resources [][]byte, _ string) error {
		switch len(resources) {
		case 0:
			return nil
		case 1:
			return server.Take(resources[0])
		}
		return fmt.Errorf("%d name tables came at once, and one is to have all names", len(resources))
	}
}

// lookupOrder asks how names are answered; without a type for both kinds of address.
type lookupOrder struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
}

type lookupReport struct {
	Lookups []dns.Explanation `json:"lookups"`
}

// lookupTime bounds a look-up of one type.
const lookupTime = 20 * time.Second

func lookUp(server *dns.Server) func(context.Context, lookupOrder) (lookupReport, error) {
	return func(ctx context.Context, o lookupOrder) (lookupReport, error) {
		types := []string{o.Type}
		if o.Type == "" {
			types = []string{"A", "AAAA"}
		}
		var r lookupReport
		for _, t := range types {
			ctx, cancel := context.WithTimeout(ctx, lookupTime)
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

func (a *Agent) noNames(context.Context, lookupOrder) (lookupReport, error) {
	return lookupReport{}, refusal{errors.New("it answers no DNS questions: set ISTIO_META_DNS_CAPTURE=true, or ISTIO_META_ENABLE_DNS_SERVER=true"), http.StatusConflict}
}
