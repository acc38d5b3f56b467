package agent

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/sds"
)

// CertificateConfig says where certificates come from.
type CertificateConfig struct {
	// Outside is what somebody else serves in our place: secrets, to which Envoy goes by itself, or a SPIFFE Workload API.
	Outside sds.Outside
	// WorkloadAPI is the address of a SPIFFE Workload API, as gRPC names it; empty for none.
	WorkloadAPI string
	// Files is a directory with cert-chain.pem, key.pem and root-cert.pem, which take the place of the authority's.
	Files string

	Address           string
	Plaintext         bool
	RootFile          string // SYSTEM for the system's roots
	ServerName        string
	TokenFile         string // empty for none
	CertFile, KeyFile string // client certificate; empty for none
	Headers           map[string]string
	Key               sds.KeyType
	PKCS8             bool
	TTL               time.Duration
	GraceRatio        float64
	GraceJitter       float64
	DropReplacedRoots bool

	// Anchors are roots that peers' certificates may lead to besides the authority's, in PEM.
	Anchors []string
	// CRLFile holds lists of revoked certificates; it need not be there.
	CRLFile string
	// KeyProvider is an accelerator for private keys; nil for none.
	KeyProvider *sds.KeyProvider
	// Output is where the certificate is written for others.
	Output   sds.Output
	Debounce time.Duration
	// Socket is that of Istio's contract, which is ours unless somebody else has it.
	Socket string
}

// filesOnlySocket is where secrets from files are served when somebody else serves the rest.
const filesOnlySocket = "./var/run/secrets/credential-uds/files-socket"

// gatewaySocket is where somebody else may serve the secrets that gateways name by credentialName (sds://…). The control
// plane sends Envoy there, once it is told that somebody listens.
const (
	gatewaySocket   = "./var/run/secrets/credential-uds/socket"
	gatewayMetadata = "credential"
)

// ownSocket is where the agent serves.
func (c CertificateConfig) ownSocket() string {
	if c.Outside == sds.OutsideNothing {
		return c.Socket
	}
	return filesOnlySocket
}

// envoySocket is where Envoy gets its identity.
func (c CertificateConfig) envoySocket() string {
	if c.Outside == sds.OutsideSDS {
		return c.Socket
	}
	return c.ownSocket()
}

// filesSocket is where Envoy gets secrets from files, when that is another place; empty otherwise.
func (c CertificateConfig) filesSocket() string {
	if c.Outside == sds.OutsideSDS {
		return filesOnlySocket
	}
	return ""
}

func (r *resolver) certificates() {
	c := &r.config.Certificates
	r.provider()
	c.Socket = socketPath(identityDir, r.socketFile())
	r.env.note("certificates.socket", c.Socket, r.env.origin("WORKLOAD_IDENTITY_SOCKET_FILE"))
	r.output()
	r.outside()
	r.gatewaySecrets()
	r.workloadAPI()
	c.Files = r.files()
	r.authority()
	r.anchors()
	c.CRLFile = istiodCRL
	c.KeyProvider = r.keyProvider()
	c.Debounce = r.env.duration("certificates.debounce", "FILE_DEBOUNCE_DURATION", 100*time.Millisecond)
}

// authority says how certificates are asked for.
func (r *resolver) authority() {
	c := &r.config.Certificates
	c.Address = r.env.text("certificates.address", "CA_ADDR", r.config.ControlPlane.Address, "discoveryAddress")
	if err := checkAddresses(c.Address); err != nil && c.Address != r.config.ControlPlane.Address {
		r.env.refuse("CA_ADDR", c.Address, err.Error())
	}
	c.Plaintext = r.plaintext(c.Address)
	root, source := r.authorityRoot()
	c.RootFile = r.env.text("certificates.rootFile", "CA_ROOT_CA", root, source)
	c.ServerName = nameOf(c.Address)
	if c.Address == r.config.ControlPlane.Address {
		c.ServerName = r.config.ControlPlane.ServerName
	}
	c.TokenFile = r.config.ControlPlane.TokenFile
	if dir := r.env.vars["PROV_CERT"]; dir != "" {
		files := sds.Files(dir)
		c.CertFile, c.KeyFile = files.CertFile, files.KeyFile
		r.env.note("certificates.clientCertificate", c.CertFile, "environment PROV_CERT")
	}
	c.Headers = r.env.headers("CA_HEADER_")
	c.Key = r.key()
	c.PKCS8 = r.env.boolean("certificates.pkcs8", "PKCS8_KEY", false)
	c.TTL = r.env.duration("certificates.ttl", "SECRET_TTL", 24*time.Hour)
	c.GraceRatio = r.env.ratio("certificates.graceRatio", "SECRET_GRACE_PERIOD_RATIO", 0.5)
	c.GraceJitter = r.env.ratio("certificates.graceJitter", "SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01)
	c.DropReplacedRoots = !r.env.boolean("certificates.keepReplacedRoots", "KEEP_REPLACED_ROOTS", true)
}

// authorityRoot is where the authority's roots are when CA_ROOT_CA does not say, as Istio's agent finds them.
func (r *resolver) authorityRoot() (file, source string) {
	provider := r.env.vars["PILOT_CERT_PROVIDER"]
	if dir := r.env.vars["PROV_CERT"]; dir != "" && provider != "custom" && provider != "kubernetes" {
		return sds.Files(dir).RootFile, "environment PROV_CERT"
	}
	return r.defaultRoot(), r.env.origin("PILOT_CERT_PROVIDER")
}

// provider refuses authorities that are not there. GKE's leaves files, which are found where they lie.
func (r *resolver) provider() {
	switch p := r.env.text("certificates.provider", "CA_PROVIDER", citadel, sourceDefault); p {
	case citadel:
	case "GkeWorkloadCertificate":
		if _, err := r.disks.Stat(filepath.Join(identityFiles, "cert-chain.pem")); err != nil && !standsStill(err) {
			r.env.refuse("CA_PROVIDER", p, fmt.Sprintf("its certificate is not there (%v); mount it", err))
		}
	default:
		r.env.refuse("CA_PROVIDER", p, "use Citadel (Istio's CreateCertificate API) or GkeWorkloadCertificate, or leave it out")
	}
}

// key is the kind of key that a certificate is asked for.
func (r *resolver) key() sds.KeyType {
	switch a := r.env.vars["ECC_SIGNATURE_ALGORITHM"]; a {
	case "":
		r.env.note("certificates.algorithm", "RSA", sourceDefault)
		return sds.RSA(parsed(r.env, "certificates.rsaBits", "WORKLOAD_RSA_KEY_SIZE", 2048, "write a number of bits from 2048 to 8192",
			func(s string) (int, error) {
				bits, err := strconv.Atoi(s)
				if err == nil && (bits < 2048 || bits > 8192) {
					err = strconv.ErrRange
				}
				return bits, err
			}))
	case "ECDSA":
		r.env.note("certificates.algorithm", a, "environment ECC_SIGNATURE_ALGORITHM")
		if r.env.choice("certificates.curve", "ECC_CURVE", "P256", "P256", "P384") == "P384" {
			return sds.ECDSAP384
		}
	default:
		r.env.refuse("ECC_SIGNATURE_ALGORITHM", a, "use ECDSA, or leave it out for RSA")
	}
	return sds.ECDSAP256
}

// output is where the certificate is written. In Kubernetes other containers of the pod, of other users, read it.
func (r *resolver) output() {
	dir := r.env.vars["OUTPUT_CERTS"]
	if dir == "" {
		return
	}
	o := &r.config.Certificates.Output
	o.Dir, o.Mode = dir, 0o600
	if r.env.vars["KUBERNETES_SERVICE_HOST"] != "" {
		o.Mode = 0o644
	}
	r.env.note("certificates.output", dir, "environment OUTPUT_CERTS")
	r.env.note("certificates.outputMode", fmt.Sprintf("%04o", o.Mode), "KUBERNETES_SERVICE_HOST")
	if info, err := r.disks.Stat(dir); err == nil && !info.IsDir() {
		r.env.refuse("OUTPUT_CERTS", dir, "write the name of a directory; this is a file")
	}
}

// outside looks whether somebody else serves the socket of certificates. One that was named and is not the default has to
// be there.
func (r *resolver) outside() {
	c := &r.config.Certificates
	if r.in.Outside == nil {
		return
	}
	named := filepath.Base(c.Socket) != defaultSocketFile
	c.Outside = r.in.Outside(c.Socket, controlPath(r.config.Proxy.GetConfigPath()), named)
	switch {
	case c.Outside != sds.OutsideNothing:
		r.env.note("certificates.outside", c.Outside, "somebody listens on "+c.Socket)
	case named:
		r.env.refuse("WORKLOAD_IDENTITY_SOCKET_FILE", filepath.Base(c.Socket), "nobody listens on "+c.Socket+
			": start what serves it before the agent, or leave the setting out for the agent's own")
	}
}

// gatewaySecrets tells the control plane of somebody who serves them.
func (r *resolver) gatewaySecrets() {
	if r.in.Outside == nil {
		return
	}
	conn, err := net.DialTimeout("unix", gatewaySocket, occupyAsk)
	if err != nil {
		return
	}
	_ = conn.Close()
	r.config.Identity.Metadata[gatewayMetadata] = "true"
	r.env.note("certificates.gatewaySocket", gatewaySocket, "somebody listens there")
}

// workloadAPI is found where SPIFFE's own libraries find it, or in place of the socket of secrets.
func (r *resolver) workloadAPI() {
	c := &r.config.Certificates
	switch address := r.env.vars["SPIFFE_ENDPOINT_SOCKET"]; {
	case c.Outside == sds.OutsideSDS:
	case c.Outside == sds.OutsideWorkloadAPI:
		c.WorkloadAPI = "unix:" + c.Socket
	case strings.HasPrefix(address, "unix:///"):
		c.WorkloadAPI = "unix:" + strings.TrimPrefix(address, "unix://")
	case strings.HasPrefix(address, "tcp://"):
		c.WorkloadAPI = "passthrough:///" + strings.TrimPrefix(address, "tcp://")
	case address != "":
		r.env.refuse("SPIFFE_ENDPOINT_SOCKET", address, "write unix:///run/spire/agent.sock, or tcp://127.0.0.1:8081")
	}
	if c.WorkloadAPI != "" {
		r.env.note("certificates.workloadAPI", c.WorkloadAPI, "environment SPIFFE_ENDPOINT_SOCKET or "+c.Socket)
	}
}

// files is where an identity lies that somebody else renews, if there is one. The places are those of Istio's agent. What
// the agent itself writes is not taken for it.
func (r *resolver) files() string {
	given, _ := strconv.ParseBool(r.env.vars["FILE_MOUNTED_CERTS"])
	for _, dir := range []string{identityFiles, mountedFiles} {
		mounted := dir == mountedFiles && given
		if !r.isFile(sds.Files(dir).CertFile) && !mounted || r.sameDirectory(dir, r.config.Certificates.Output.Dir) {
			continue
		}
		source := "cert-chain.pem was found there"
		if mounted {
			source = "environment FILE_MOUNTED_CERTS"
		}
		r.env.note("certificates.files", dir, source)
		return dir
	}
	return ""
}

func (r *resolver) sameDirectory(a, b string) bool {
	if b == "" {
		return false
	}
	first, err := r.disks.Stat(a)
	if err != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	second, err := r.disks.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// anchors are the roots of other domains that ProxyConfig names.
func (r *resolver) anchors() {
	c := &r.config.Certificates
	c.Anchors = r.config.Proxy.GetCaCertificatesPem()
	if err := sds.CheckRoots(c.Anchors); err != nil {
		r.env.errs = append(r.env.errs, fmt.Errorf("caCertificatesPem (%s): %w", r.layers.source("ca_certificates_pem"), err))
	}
}

// keyProvider is that of ProxyConfig.
func (r *resolver) keyProvider() *sds.KeyProvider {
	switch p := r.config.Proxy.GetPrivateKeyProvider().GetProvider().(type) {
	case *meshv1.PrivateKeyProvider_Cryptomb:
		return &sds.KeyProvider{Name: "cryptomb", PollDelay: p.Cryptomb.GetPollDelay().AsDuration(), Fallback: p.Cryptomb.GetFallback().GetValue()}
	case *meshv1.PrivateKeyProvider_Qat:
		return &sds.KeyProvider{Name: "qat", PollDelay: p.Qat.GetPollDelay().AsDuration(), Fallback: p.Qat.GetFallback().GetValue()}
	}
	return nil
}

// defaultSocketFile is the name of the socket that the agent serves when nobody else does.
const defaultSocketFile = "socket"

func (r *resolver) socketFile() string {
	name := cmp.Or(r.env.vars["WORKLOAD_IDENTITY_SOCKET_FILE"], defaultSocketFile)
	if name != filepath.Base(name) || name == ".." || name == "." {
		r.env.refuse("WORKLOAD_IDENTITY_SOCKET_FILE", name, "write the name of a file in "+identityDir+", without slashes")
		return defaultSocketFile
	}
	return name
}
