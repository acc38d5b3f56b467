package agent

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

// NamesConfig says how the application's DNS questions are answered.
type NamesConfig struct {
	// Listen is where, as host:port; localhost is both loopback addresses.
	Listen string
	// ForwardWithoutTable has all questions forwarded until the control plane has sent names: where this is the machine's
	// only resolver, the agent needs it to find the control plane.
	ForwardWithoutTable bool
	// ForwardParallel asks all resolvers at once, ForwardTimeout bounds a forwarded question.
	ForwardParallel bool
	ForwardTimeout  time.Duration
	// TTL is that of the names of the mesh.
	TTL time.Duration
	// AllowFrom are networks that may ask beside the machine itself.
	AllowFrom []netip.Prefix
	// ResolvConf names the resolvers and search domains.
	ResolvConf string
	// KeepFile is where the last names are kept for a start without a control plane; empty for nowhere.
	KeepFile string
}

const (
	defaultNamesPort = "15053"
	// ownResolvConf is where the machine's resolvers are, by Istio's rule, when its /etc/resolv.conf names this agent.
	ownResolvConf = "/var/lib/istio/resolv.conf"
	keptNamesFile = "names"
	// mostTTL is a bound beyond which a new table would help nobody.
	mostTTL = 24 * time.Hour
)

// names are answered in sidecars whose DNS traffic is captured, and wherever that is asked for.
func (r *resolver) names() {
	capture := r.metadataSwitch("dns.capture", "ISTIO_META_DNS_CAPTURE")
	asked := r.metadataSwitch("dns.enabled", "ISTIO_META_ENABLE_DNS_SERVER")
	if address := r.env.vars["DNS_PROXY_ADDR"]; address != "" {
		r.config.Identity.Metadata["DNS_PROXY_ADDR"] = address // where the control plane has Envoy resolve names
	}
	if capture && !asked && r.config.Identity.Type != bootstrap.Sidecar {
		r.env.warn("ISTIO_META_DNS_CAPTURE=true has an effect in sidecars only; set ISTIO_META_ENABLE_DNS_SERVER=true for a %s", r.config.Identity.Type)
		capture = false
	}
	if !capture && !asked {
		return
	}
	c := &NamesConfig{}
	c.Listen = r.env.text("dns.address", "DNS_PROXY_ADDR", net.JoinHostPort(r.namesHost(), defaultNamesPort), sourceDefault)
	if _, port, err := net.SplitHostPort(c.Listen); err != nil {
		r.env.refuse("DNS_PROXY_ADDR", c.Listen, "write host:port, as localhost:15053, or :53 for all addresses")
	} else if _, err := parsePort(port); err != nil {
		r.env.refuse("DNS_PROXY_ADDR", c.Listen, "write a port from 1 to 65535")
	}
	resolvConf := "/etc/resolv.conf"
	if _, port, _ := net.SplitHostPort(c.Listen); port == "53" && os.Geteuid() == 0 {
		c.ForwardWithoutTable = true
		r.unprivileged()
		if _, err := os.Stat(ownResolvConf); err == nil {
			resolvConf = ownResolvConf
		}
	}
	c.ResolvConf = r.env.text("dns.resolvConf", "DNS_RESOLV_CONF", resolvConf, sourceDefault)
	c.ForwardParallel = r.env.boolean("dns.forwardParallel", "DNS_FORWARD_PARALLEL", false)
	c.ForwardTimeout = r.env.duration("dns.forwardTimeout", "DNS_FORWARD_TIMEOUT", 5*time.Second)
	c.TTL = parsed(r.env, "dns.ttl", "DNS_TTL", 30*time.Second, "write whole seconds from 1s to 24h, as 30s", parseTTL)
	c.AllowFrom = r.prefixes("dns.allowFrom", "DNS_ALLOW_FROM")
	if r.env.boolean("dns.keepNames", "DNS_KEEP_NAMES", true) {
		c.KeepFile = filepath.Join(filepath.Dir(r.config.ControlPlane.Socket), keptNamesFile)
	}
	r.config.Names = c
}

// unprivileged has Envoy run as the user of proxies: an agent that is root to answer on port 53 is no reason for Envoy to be.
func (r *resolver) unprivileged() {
	if !r.config.Envoy.Disabled {
		r.config.Envoy.User = &owner.Owner{UID: uds.ProxyUID, GID: uds.ProxyUID}
		r.env.note("envoy.user", uds.ProxyUID, "DNS on port 53 as root")
	}
}

// metadataSwitch is a setting that the control plane is told of too, as metadata of the node, and so may be given as such.
func (r *resolver) metadataSwitch(name, variable string) bool {
	value := r.config.Identity.Metadata[strings.TrimPrefix(variable, "ISTIO_META_")]
	if value == nil || value == "" {
		r.env.note(name, false, sourceDefault)
		return false
	}
	text := strings.TrimSpace(fmt.Sprint(value))
	on, err := strconv.ParseBool(text)
	if err != nil {
		r.env.refuse(variable, text, "write true or false")
	}
	r.env.note(name, on, "metadata "+variable)
	return on
}

// namesHost is loopback of both families, unless all the agent's ports are at one address.
func (r *resolver) namesHost() string {
	if r.config.Bind.IsValid() {
		return r.config.Bind.String()
	}
	return "localhost"
}

func parseTTL(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < time.Second || d > mostTTL || d%time.Second != 0) {
		err = strconv.ErrRange
	}
	return d, err
}

// prefixes are networks, between commas; an address is a network of its own.
func (r *resolver) prefixes(name, variable string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.list(name, variable) {
		prefix, err := netip.ParsePrefix(text)
		if ip, ipErr := netip.ParseAddr(text); ipErr == nil {
			prefix, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			r.env.refuse(variable, text, "write networks between commas, as 10.0.0.0/8,fd00::/8")
			continue
		}
		all = append(all, prefix.Masked())
	}
	return all
}
