package controlplane

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane/consul"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// consulPrefix is the prefix of all flags of consulFlags.
const consulPrefix = "consul-"

// consulFlags registers the flags that set cfg.
func consulFlags(flags *pflag.FlagSet, cfg *consul.Config) {
	flags.StringVar(&cfg.Address, "consul-address", "", "Consul agent or server whose services the mesh uses: http://HOST:PORT, https://HOST:PORT or unix:///PATH (default: none)")
	flags.StringSliceVar(&cfg.Datacenters, "consul-datacenters", nil, "datacenters of Consul to read (default: the datacenter of the agent)")
	flags.StringVar(&cfg.Domain, "consul-domain", consul.DefaultDomain, "domain of Consul's services: the host of a service is NAME.service.DOMAIN")
	flags.StringVar(&cfg.Namespace, "consul-namespace", consul.DefaultNamespace, "namespace of Consul's services in the mesh")
	flags.StringSliceVar(&cfg.Tags, "consul-tags", nil, "read only service instances of Consul that have all these tags")
	flags.StringVar(&cfg.TokenFile, "consul-token-file", "", "file with the ACL token for Consul; it is not sent over plaintext to another machine")
	flags.StringVar(&cfg.TLS.RootFile, "consul-ca-file", "", "PEM file of the roots that verify Consul's certificate (default: the system's roots)")
	flags.StringVar(&cfg.TLS.CertFile, "consul-client-cert", "", "PEM file of the client certificate for Consul")
	flags.StringVar(&cfg.TLS.KeyFile, "consul-client-key", "", "PEM file of the client certificate's key")
	flags.StringVar(&cfg.TLS.ServerName, "consul-server-name", "", "name that Consul's certificate must contain (default: the host of --consul-address)")
}

// checkConsulFlags returns an error if a flag of consulFlags is invalid, or if one is set without --consul-address.
func checkConsulFlags(flags *pflag.FlagSet, cfg consul.Config) error {
	if cfg.Address != "" {
		if err := cfg.Check(); err != nil {
			return usage.Error{Err: err}
		}
		return nil
	}
	var unused string
	flags.Visit(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, consulPrefix) {
			unused = f.Name
		}
	})
	if unused != "" {
		return usage.Error{Err: fmt.Errorf("--%s needs --consul-address: set the address of a Consul agent", unused)}
	}
	return nil
}
