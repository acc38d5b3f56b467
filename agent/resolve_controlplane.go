package agent

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// ControlPlaneConfig says where configuration comes from.
type ControlPlaneConfig struct {
	// Address is one host:port, or several with commas between them.
	Address           string
	Plaintext         bool
	RootFile          string // SYSTEM for the system's roots
	ServerName        string // empty for the host of each address
	SANs              []string
	TokenFile         string // empty for none
	CertFile, KeyFile string // client certificate; empty for none
	Headers           map[string]string
	SotW              bool
	Socket            string
	// SocketUsers may speak xDS over it; nil is for the agent's own user, root, and that of proxies.
	SocketUsers       uds.Users
	KeepaliveInterval time.Duration
	KeepaliveTimeout  time.Duration
	// MaxRequest bounds a message of Envoy, in bytes; 0 is the relay's own bound.
	MaxRequest int
	// ProxyConfig subscribes the agent to its own configuration: the mesh's trust bundles.
	ProxyConfig bool
}

// addresses are those of the control plane, one by one.
func (c ControlPlaneConfig) addresses() []string {
	var all []string
	for one := range strings.SplitSeq(c.Address, ",") {
		all = append(all, strings.TrimSpace(one))
	}
	return all
}

// The names of node metadata that say where a client certificate is, where certificates are mounted as files.
const (
	metadataClientCert = "TLS_CLIENT_CERT_CHAIN"
	metadataClientKey  = "TLS_CLIENT_KEY"
	metadataClientRoot = "TLS_CLIENT_ROOT_CERT"
)

func (r *resolver) controlPlane() {
	c := &r.config.ControlPlane
	c.Address = r.config.Proxy.GetDiscoveryAddress()
	if err := checkAddresses(c.Address); err != nil {
		r.env.errs = append(r.env.errs, fmt.Errorf("discoveryAddress (%s): %q: %w",
			r.layers.source("discovery_address"), c.Address, err))
		return
	}
	r.tlsPolicy()
	c.Plaintext = r.plaintext(c.Address)
	r.env.note("controlPlane.plaintext", c.Plaintext, "controlPlaneAuthPolicy and the port of discoveryAddress")
	c.TokenFile = r.tokenFile()
	mounted := r.env.boolean("fileMountedCerts", "FILE_MOUNTED_CERTS", false)
	r.clientCertificate(mounted)
	root, source := r.controlPlaneRoot(mounted)
	c.RootFile = r.env.text("controlPlane.rootFile", "XDS_ROOT_CA", root, source)
	c.ServerName = r.env.text("controlPlane.serverName", "ISTIOD_SAN", nameOf(c.Address), "discoveryAddress")
	if san := r.env.vars["ISTIOD_SAN"]; san != "" {
		c.SANs = []string{san}
	}
	c.Headers = r.env.headers("XDS_HEADER_")
	c.SotW = !r.env.boolean("controlPlane.delta", "ISTIO_DELTA_XDS", true)
	c.ProxyConfig = r.env.boolean("controlPlane.proxyConfig", "PROXY_CONFIG_XDS_AGENT", false)
	c.Socket = socketPath(cmp.Or(r.config.Proxy.GetConfigPath(), defaultConfigPath), "XDS")
	r.env.note("controlPlane.socket", c.Socket, "configPath")
	c.KeepaliveInterval = r.env.duration("controlPlane.keepaliveInterval", "GRPC_KEEPALIVE_INTERVAL", 30*time.Second)
	c.KeepaliveTimeout = r.env.duration("controlPlane.keepaliveTimeout", "GRPC_KEEPALIVE_TIMEOUT", 10*time.Second)
	c.MaxRequest = r.maxRequest()
}

// noPolicy is how settings show that TLS is not narrowed.
const noPolicy = "none"

func (r *resolver) tlsPolicy() {
	value := r.env.vars["COMPLIANCE_POLICY"]
	if value == "" {
		r.env.note("tls.policy", noPolicy, sourceDefault)
		return
	}
	r.config.TLSPolicy = tlspolicy.Policy(r.env.choice("tls.policy", "COMPLIANCE_POLICY", "", tlspolicy.Names()...))
}

// clientCertificate is found as Istio's agent finds it: in the directory of PROV_CERT, or where node metadata says.
func (r *resolver) clientCertificate(mounted bool) {
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
			r.env.refuse("FILE_MOUNTED_CERTS", "true", fmt.Sprintf(
				"set both ISTIO_META_%s and ISTIO_META_%s to the files of the client certificate, or neither", metadataClientCert, metadataClientKey))
		}
	}
	if c.CertFile != "" {
		r.env.note("controlPlane.clientCertificate", c.CertFile, source)
	}
}

// controlPlaneRoot is where the control plane's roots are when XDS_ROOT_CA does not say, in the order of Istio's agent.
func (r *resolver) controlPlaneRoot(mounted bool) (file, source string) {
	place, _ := r.config.Identity.Metadata[metadataClientRoot].(string)
	switch {
	case r.isFile(customRoot):
		return customRoot, "it was found there"
	case r.env.vars["PROV_CERT"] != "":
		return filepath.Join(r.env.vars["PROV_CERT"], "root-cert.pem"), "environment PROV_CERT"
	case mounted && place != "":
		return place, "FILE_MOUNTED_CERTS and metadata." + metadataClientRoot
	}
	return r.defaultRoot(), r.env.origin("PILOT_CERT_PROVIDER")
}

// isFile says whether there is such a file. Where a file system does not answer, somebody has mounted it there for the sake of
// the file: whoever reads it waits for it, and says so.
func (r *resolver) isFile(name string) bool {
	info, err := r.disks.Stat(name)
	return standsStill(err) || err == nil && info.Mode().IsRegular()
}

func standsStill(err error) bool { return errors.As(err, new(disks.StandsError)) }

// maxRequest is 0 unless somebody sets it. Istio's default, 4 MiB, is too little for the names of a large mesh.
func (r *resolver) maxRequest() int {
	if r.env.vars["ISTIO_GPRC_MAXRECVMSGSIZE"] == "" {
		return 0
	}
	return parsed(r.env, "controlPlane.maxRequest", "ISTIO_GPRC_MAXRECVMSGSIZE", 0, "write a number of bytes, as 4194304",
		func(s string) (int, error) {
			n, err := strconv.ParseInt(s, 10, 32)
			if err == nil && n <= 0 {
				err = strconv.ErrRange
			}
			return int(n), err
		})
}

// checkAddresses checks one host:port or several.
func checkAddresses(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		if err := checkHostPort(strings.TrimSpace(one)); err != nil {
			return fmt.Errorf("%w; several have commas between them", err)
		}
	}
	return nil
}

// nameOf is the host of an address; several addresses have no name in common.
func nameOf(address string) string {
	if strings.Contains(address, ",") {
		return ""
	}
	return hostOf(address)
}
