package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// DNS configures the DNS server that the agent runs for the application.
type DNS struct {
	// Listen is the listen address as host:port. The host localhost selects 127.0.0.1 and ::1.
	Listen string
	// ForwardWithoutTable forwards all queries until the control plane has sent the names of the mesh. It is necessary
	// if the agent is the machine's only resolver: the agent could otherwise not resolve the control plane's name.
	ForwardWithoutTable bool
	// ForwardParallel sends each forwarded query to all resolvers at once. ForwardTimeout is the timeout of a forwarded
	// query.
	ForwardParallel bool
	ForwardTimeout  time.Duration
	// TTL is the time to live of answers for names of the mesh.
	TTL time.Duration
	// AllowFrom lists the networks whose machines may query the server. The local machine may always query it.
	AllowFrom []netip.Prefix
	// ResolvConf is the path of the file with resolvers and search domains, in the format of resolv.conf.
	ResolvConf string
	// KeepFile is the path of the file that stores the names of the mesh for a start without a control plane; empty
	// disables it.
	KeepFile string
}

const (
	defaultDNSPort = "15053"
	// ownResolvConf is the path of the file with the machine's original resolvers, as in Istio. It exists on VMs where
	// /etc/resolv.conf contains the address of this agent.
	ownResolvConf = "/var/lib/istio/resolv.conf"
	nameTableFile = "names"
	// maxTTL is the maximum value of DNS_TTL.
	maxTTL = 24 * time.Hour
)

// resolveDNS enables the DNS server: in sidecars if DNS capture is enabled, and in all proxies if
// ISTIO_META_ENABLE_DNS_SERVER is set.
func (r *resolver) resolveDNS() {
	capture := r.metadataBool("dns.capture", "ISTIO_META_DNS_CAPTURE")
	requested := r.metadataBool("dns.enabled", "ISTIO_META_ENABLE_DNS_SERVER")
	if address := r.env.vars["DNS_PROXY_ADDR"]; address != "" {
		// The control plane then configures Envoy to use this resolver.
		r.config.Identity.Metadata["DNS_PROXY_ADDR"] = address
	}
	if capture && !requested && r.config.Identity.Type != bootstrap.Sidecar {
		r.env.warn("ISTIO_META_DNS_CAPTURE=true has an effect only in sidecars; set ISTIO_META_ENABLE_DNS_SERVER=true for a %s", r.config.Identity.Type)
		capture = false
	}
	if !capture && !requested {
		return
	}
	c := &DNS{}
	c.Listen = r.env.text("dns.address", "DNS_PROXY_ADDR", net.JoinHostPort(r.defaultDNSHost(), defaultDNSPort), sourceDefault)
	if _, port, err := net.SplitHostPort(c.Listen); err != nil {
		r.env.addValueError("DNS_PROXY_ADDR", c.Listen, "write host:port, such as localhost:15053, or :53 for all addresses")
	} else if _, err := parsePort(port); err != nil {
		r.env.addValueError("DNS_PROXY_ADDR", c.Listen, "write a port from 1 to 65535")
	}
	resolvConf := "/etc/resolv.conf"
	if _, port, _ := net.SplitHostPort(c.Listen); port == "53" && os.Geteuid() == 0 {
		c.ForwardWithoutTable = true
		r.useProxyUser()
		if _, err := os.Stat(ownResolvConf); err == nil {
			resolvConf = ownResolvConf
		}
	}
	c.ResolvConf = r.env.text("dns.resolvConf", "DNS_RESOLV_CONF", resolvConf, sourceDefault)
	c.ForwardParallel = r.env.boolean("dns.forwardParallel", "DNS_FORWARD_PARALLEL", false)
	c.ForwardTimeout = r.env.duration("dns.forwardTimeout", "DNS_FORWARD_TIMEOUT", 5*time.Second)
	c.TTL = parseVariable(r.env, "dns.ttl", "DNS_TTL", 30*time.Second, "write whole seconds from 1s to 24h, such as 30s", parseTTL)
	c.AllowFrom = r.parsePrefixes("dns.allowFrom", "DNS_ALLOW_FROM")
	if r.env.boolean("dns.keepNames", "DNS_KEEP_NAMES", true) {
		c.KeepFile = filepath.Join(filepath.Dir(r.config.ControlPlane.Socket), nameTableFile)
	}
	r.config.DNS = c
}

// useProxyUser configures Envoy to run as the proxy user. The agent runs as root to listen on port 53, but Envoy does not
// require root.
func (r *resolver) useProxyUser() {
	if !r.config.Envoy.Disabled {
		r.config.Envoy.User = &owner.Owner{UID: uds.ProxyUID, GID: uds.ProxyUID}
		r.env.addSetting("envoy.user", uds.ProxyUID, "DNS on port 53 as root")
	}
}

// metadataBool returns the boolean in the node metadata entry that variable (ISTIO_META_…) sets. It returns false if
// the entry is missing or invalid.
func (r *resolver) metadataBool(name, variable string) bool {
	value := r.config.Identity.Metadata[strings.TrimPrefix(variable, "ISTIO_META_")]
	if value == nil || value == "" {
		r.env.addSetting(name, false, sourceDefault)
		return false
	}
	text := strings.TrimSpace(fmt.Sprint(value))
	on, err := strconv.ParseBool(text)
	if err != nil {
		r.env.warnValue(variable, text, "write true or false", "the default false applies")
		r.env.addSetting(name, false, sourceDefault)
		return false
	}
	r.env.addSetting(name, on, "metadata "+variable)
	return on
}

// defaultDNSHost returns PROXY_BIND_ADDRESS, or localhost if it is not set.
func (r *resolver) defaultDNSHost() string {
	if r.config.Bind.IsValid() {
		return r.config.Bind.String()
	}
	return "localhost"
}

func parseTTL(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < time.Second || d > maxTTL || d%time.Second != 0) {
		err = strconv.ErrRange
	}
	return d, err
}

// parsePrefixes parses a comma-separated list of networks and addresses.
func (r *resolver) parsePrefixes(name, variable string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.parseList(name, variable) {
		prefix, err := netip.ParsePrefix(text)
		if ip, ipErr := netip.ParseAddr(text); ipErr == nil {
			prefix, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			r.env.addValueError(variable, text, "write networks separated by commas, such as 10.0.0.0/8,fd00::/8")
			continue
		}
		all = append(all, prefix.Masked())
	}
	return all
}
