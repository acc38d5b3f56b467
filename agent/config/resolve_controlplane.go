package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// ControlPlane configures the connection to the control plane.
type ControlPlane struct {
	// Address is a host:port, or a comma-separated list of them.
	Address           string
	Plaintext         bool
	RootFile          string // SYSTEM selects the system's root certificates
	ServerName        string // empty selects the host of each address
	SANs              []string
	TokenFile         string // empty for none
	CertFile, KeyFile string // client certificate; empty for none
	Headers           map[string]string
	SotW              bool
	Socket            string
	// SocketUsers are the users that may connect to the xDS socket; nil selects the agent's user, root and the proxy
	// user.
	SocketUsers uds.Users
	// ListedUsers are the users in XDS_SOCKET_USERS. Clients that run as these users connect without the secret that
	// Envoy sends.
	ListedUsers uds.Users
	// NoSecret disables the secret that Envoy sends to the agent's sockets.
	NoSecret          bool
	KeepaliveInterval time.Duration
	KeepaliveTimeout  time.Duration
	// MaxRequest is the maximum size of a message from Envoy, in bytes; 0 selects the default of the relay.
	MaxRequest int
	// ProxyConfig subscribes the agent to the ProxyConfig resource of the control plane, which contains the mesh's trust
	// bundles.
	ProxyConfig bool
}

// Addresses returns the addresses of the control plane.
func (c ControlPlane) Addresses() []string {
	var all []string
	for one := range strings.SplitSeq(c.Address, ",") {
		all = append(all, strings.TrimSpace(one))
	}
	return all
}

// Keys of the node metadata that contain the paths of the client certificate's files. They apply if FILE_MOUNTED_CERTS
// is set.
const (
	metadataClientCert = "TLS_CLIENT_CERT_CHAIN"
	metadataClientKey  = "TLS_CLIENT_KEY"
	metadataClientRoot = "TLS_CLIENT_ROOT_CERT"
)

func (r *resolver) resolveControlPlane() {
	c := &r.config.ControlPlane
	c.Address = r.config.Proxy.GetDiscoveryAddress()
	if err := checkAddresses(c.Address); err != nil {
		r.env.errs = append(r.env.errs, fmt.Errorf("discoveryAddress (%s): %q: %w",
			r.merger.source("discovery_address"), c.Address, err))
		return
	}
	r.resolveTLSPolicy()
	c.Plaintext = r.isPlaintext(c.Address)
	r.env.addSetting("controlPlane.plaintext", c.Plaintext, "controlPlaneAuthPolicy and the port of discoveryAddress")
	c.TokenFile = r.resolveTokenFile()
	mounted := r.env.boolean("fileMountedCerts", "FILE_MOUNTED_CERTS", false)
	r.resolveClientCertificate(mounted)
	root, source := r.controlPlaneRootFile(mounted)
	c.RootFile = r.env.text("controlPlane.rootFile", "XDS_ROOT_CA", root, source)
	c.ServerName = r.env.text("controlPlane.serverName", "ISTIOD_SAN", commonHost(c.Address), "discoveryAddress")
	if san := r.env.vars["ISTIOD_SAN"]; san != "" {
		c.SANs = []string{san}
	}
	c.Headers = r.env.headers("XDS_HEADER_")
	c.SotW = !r.env.boolean("controlPlane.delta", "ISTIO_DELTA_XDS", true)
	c.ProxyConfig = r.env.boolean("controlPlane.proxyConfig", "PROXY_CONFIG_XDS_AGENT", false)
	c.Socket = socketPath(cmp.Or(r.config.Proxy.GetConfigPath(), DefaultConfigPath), "XDS")
	r.env.addSetting("controlPlane.socket", c.Socket, "configPath")
	c.KeepaliveInterval = r.env.duration("controlPlane.keepaliveInterval", "GRPC_KEEPALIVE_INTERVAL", 30*time.Second)
	c.KeepaliveTimeout = r.env.duration("controlPlane.keepaliveTimeout", "GRPC_KEEPALIVE_TIMEOUT", 10*time.Second)
	c.MaxRequest = r.resolveMaxRequest()
}

// noPolicy is the value in the list of settings if no TLS policy is set.
const noPolicy = "none"

// resolveTLSPolicy resolves COMPLIANCE_POLICY. It ignores an unknown policy with a warning, as Istio's agent and control
// plane do.
func (r *resolver) resolveTLSPolicy() {
	policy := tlspolicy.Policy(r.env.vars["COMPLIANCE_POLICY"])
	if err := policy.Check(); err != nil {
		r.env.warn("COMPLIANCE_POLICY has no effect, so TLS is not restricted: %v", err)
		policy = ""
	}
	if policy == "" {
		r.env.addSetting("tls.policy", noPolicy, sourceDefault)
		return
	}
	r.config.TLSPolicy = policy
	r.env.addSetting("tls.policy", string(policy), "environment COMPLIANCE_POLICY")
}

// resolveClientCertificate resolves the client certificate for the control plane as Istio's agent does: from the directory
// PROV_CERT, or from the paths in the node metadata.
func (r *resolver) resolveClientCertificate(mounted bool) {
	c := &r.config.ControlPlane
	dir := r.env.vars["PROV_CERT"]
	source := "environment PROV_CERT"
	switch {
	case dir != "":
		c.CertFile, c.KeyFile = filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem")
	case mounted:
		source = "FILE_MOUNTED_CERTS and metadata." + metadataClientCert
		c.CertFile, _ = r.config.Identity.Metadata[metadataClientCert].(string)
		c.KeyFile, _ = r.config.Identity.Metadata[metadataClientKey].(string)
		if (c.CertFile == "") != (c.KeyFile == "") {
			r.env.warnValue("FILE_MOUNTED_CERTS", "true", fmt.Sprintf(
				"set both ISTIO_META_%s and ISTIO_META_%s to the files of the client certificate, or neither", metadataClientCert, metadataClientKey),
				"the agent sends no client certificate")
			c.CertFile, c.KeyFile = "", ""
		}
	}
	if c.CertFile != "" {
		r.env.addSetting("controlPlane.clientCertificate", c.CertFile, source)
	}
}

// controlPlaneRootFile returns the default of XDS_ROOT_CA. It tries the candidates in the same order as Istio's agent.
func (r *resolver) controlPlaneRootFile(mounted bool) (file, source string) {
	mountedRoot, _ := r.config.Identity.Metadata[metadataClientRoot].(string)
	switch {
	case r.isFile(customRoot):
		return customRoot, "the file exists"
	case r.env.vars["PROV_CERT"] != "":
		return filepath.Join(r.env.vars["PROV_CERT"], "root-cert.pem"), "environment PROV_CERT"
	case mounted && mountedRoot != "":
		return mountedRoot, "FILE_MOUNTED_CERTS and metadata." + metadataClientRoot
	}
	return r.defaultRootFile(), r.env.variableSource("PILOT_CERT_PROVIDER")
}

// isFile reports whether name is a regular file. If the file system hangs, it returns true: the mount indicates that
// the file is configured, and the code that reads the file later reports the hang.
func (r *resolver) isFile(name string) bool {
	info, err := r.fs.Stat(name)
	return isHung(err) || err == nil && info.Mode().IsRegular()
}

func isHung(err error) bool { return errors.As(err, new(fstimeout.HungError)) }

// resolveMaxRequest returns the value of ISTIO_GPRC_MAXRECVMSGSIZE, or 0 if it is not set. It does not use Istio's
// default of 4 MiB, because the resource names in a request of a large mesh can exceed it.
func (r *resolver) resolveMaxRequest() int {
	if r.env.vars["ISTIO_GPRC_MAXRECVMSGSIZE"] == "" {
		return 0
	}
	return parseVariable(r.env, "controlPlane.maxRequest", "ISTIO_GPRC_MAXRECVMSGSIZE", 0, "write a number of bytes, such as 4194304",
		func(s string) (int, error) {
			n, err := strconv.ParseInt(s, 10, 32)
			if err == nil && n <= 0 {
				err = strconv.ErrRange
			}
			return int(n), err
		})
}

// checkAddresses returns an error if list is not a comma-separated list of host:port.
func checkAddresses(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		if err := checkHostPort(strings.TrimSpace(one)); err != nil {
			return fmt.Errorf("%w; separate several addresses by commas", err)
		}
	}
	return nil
}

// commonHost returns the host of address, or "" if address is a list of several.
func commonHost(address string) string {
	if strings.Contains(address, ",") {
		return ""
	}
	return hostOfAddress(address)
}
