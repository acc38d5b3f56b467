// Package consul reads services from Consul's catalog. Source publishes each service as a ServiceEntry. It follows
// changes with blocking queries of Consul's HTTP API: one for the list of services, and one for each service.
package consul

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// Defaults of Config.
const (
	DefaultDomain    = "consul"
	DefaultNamespace = "consul"
)

// Config configures a Source.
type Config struct {
	// Address is the address of a Consul agent or server: http://HOST:PORT, https://HOST:PORT, HOST:PORT (plaintext) or
	// unix:///PATH.
	Address string
	// TokenFile is a file with the ACL token. The source reads it for each request. It does not send the token over
	// plaintext to another machine.
	TokenFile string
	// TLS specifies how to verify the server and which client certificate to present, for an address with https://.
	TLS dial.TLS
	// Datacenters lists the datacenters whose services are read; empty for the datacenter of the agent.
	Datacenters []string
	// Domain is the last part of host names: NAME.service.DOMAIN. Default: DefaultDomain.
	Domain string
	// Namespace is the namespace of the ServiceEntries. Default: DefaultNamespace.
	Namespace string
	// Tags limits the source to the instances that have all these tags.
	Tags []string
	// Parser validates the ServiceEntries.
	Parser  config.Parser
	Metrics *Metrics
	// Logger logs connects and disconnects; nil discards them.
	Logger *slog.Logger

	// Tests set these fields: the times between two queries for a service that exceeds maxWatches, and after the first
	// failed query for a service; and the limit of a response.
	pollInterval, minServiceRetry time.Duration
	maxResponse                   int
}

func (c Config) withDefaults() Config {
	if c.Domain == "" {
		c.Domain = DefaultDomain
	}
	if c.Namespace == "" {
		c.Namespace = DefaultNamespace
	}
	if c.pollInterval == 0 {
		c.pollInterval = defaultPollInterval
	}
	if c.minServiceRetry == 0 {
		c.minServiceRetry = time.Second
	}
	if c.maxResponse == 0 {
		c.maxResponse = defaultMaxResponse
	}
	c.Domain = strings.ToLower(strings.Trim(c.Domain, "."))
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	// datacenterName is Consul's rule for the names of datacenters.
	datacenterName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// Check returns an error if a value is invalid. The error names the flag of `pilotfish control-plane`.
func (c Config) Check() error {
	c = c.withDefaults()
	server, err := parseAddress(c.Address)
	switch {
	case err != nil:
		return fmt.Errorf("--consul-address %q: %w", c.Address, err)
	case c.TokenFile != "" && !server.isConfidential():
		return fmt.Errorf("--consul-token-file: the connection to %s is not encrypted, so other machines could read the token: use an https:// address, or the Consul agent of this machine", c.Address)
	case c.TLS.RootFile+c.TLS.CertFile+c.TLS.KeyFile+c.TLS.ServerName != "" && server.base.Scheme != "https":
		return fmt.Errorf("--consul-ca-file, --consul-client-cert, --consul-client-key and --consul-server-name need an https:// address, not %q", c.Address)
	case (c.TLS.CertFile == "") != (c.TLS.KeyFile == ""):
		return errors.New("--consul-client-cert and --consul-client-key need each other: set both")
	case !dnsSubdomain.MatchString(c.Domain):
		return fmt.Errorf("--consul-domain %q is not a domain: use letters, digits, '-' and '.', as in Consul's setting domain", c.Domain)
	case !dnsLabel.MatchString(c.Namespace):
		return fmt.Errorf("--consul-namespace %q is not the name of a namespace: use lower-case letters, digits and '-', at most 63", c.Namespace)
	}
	for i, name := range c.Datacenters {
		if !datacenterName.MatchString(name) {
			return fmt.Errorf("--consul-datacenters: %q is not the name of a datacenter: use letters, digits, '-' and '_'", name)
		}
		if slices.Contains(c.Datacenters[:i], name) {
			return fmt.Errorf("--consul-datacenters: %q is listed twice: remove one", name)
		}
	}
	return nil
}

// server is the parsed address of a Consul agent.
type server struct {
	base   url.URL // scheme and host of requests
	socket string  // path of the unix socket; empty for TCP
}

func parseAddress(address string) (server, error) {
	const usage = "use http://HOST:PORT, https://HOST:PORT or unix:///PATH"
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return server{}, errors.New("not an address: " + usage)
	case u.Scheme == "unix":
		if u.Host != "" || !path.IsAbs(u.Path) {
			return server{}, errors.New("no absolute path: use unix:///PATH, with three slashes")
		}
		return server{base: url.URL{Scheme: "http", Host: "localhost"}, socket: u.Path}, nil
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return server{}, errors.New("not an address of Consul: " + usage)
	case u.User != nil, u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return server{}, errors.New("it has more than scheme, host and port: " + usage)
	}
	if u.Port() == "" {
		port := "8500"
		if u.Scheme == "https" {
			port = "8501"
		}
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return server{base: url.URL{Scheme: u.Scheme, Host: u.Host}}, nil
}

// isConfidential reports whether no other machine can read what is sent to the server.
func (s server) isConfidential() bool {
	if s.base.Scheme == "https" || s.socket != "" {
		return true
	}
	ip, err := netip.ParseAddr(s.base.Hostname())
	return err == nil && ip.IsLoopback() || s.base.Hostname() == "localhost"
}

// String returns the address for log messages and findings.
func (s server) String() string {
	if s.socket != "" {
		return "unix://" + s.socket
	}
	return s.base.String()
}
