package config

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

// Certificates configures where the workload certificate comes from, and how it is requested.
type Certificates struct {
	// ExternalServer is the service that another process serves on Socket: SDS (Envoy then uses the socket directly) or
	// a SPIFFE Workload API.
	ExternalServer sds.ExternalServer
	// WorkloadAPI is the gRPC target of a SPIFFE Workload API; empty for none.
	WorkloadAPI string
	// Files is a directory with cert-chain.pem, key.pem and root-cert.pem. The agent uses these files instead of the
	// CA. Empty means no such directory.
	Files string

	Address           string
	Plaintext         bool
	RootFile          string // SYSTEM selects the system's root certificates
	ServerName        string
	TokenFile         string // empty for none
	CertFile, KeyFile string // client certificate; empty for none
	Headers           map[string]string
	Signer            string // name of the signer, for a CA with several signers; empty for the CA's default
	Key               sds.KeyType
	PKCS8             bool
	TTL               time.Duration
	GraceRatio        float64
	GraceJitter       float64
	DropReplacedRoots bool

	// Anchors contains additional root certificates for the verification of peers, in PEM.
	Anchors []string
	// CRLFile is the path of the file with certificate revocation lists; empty for none. The file may be missing.
	CRLFile string
	// KeyProvider is the hardware accelerator with which Envoy uses private keys; nil for none.
	KeyProvider *sds.KeyProvider
	// Output configures the files to which the agent writes the certificate for other programs.
	Output   sds.Output
	Debounce time.Duration
	// Socket is the path of Istio's certificate socket. The agent listens on it unless an external server does.
	Socket string
}

// filesOnlySocket is the socket on which the agent serves only secrets from files. The agent uses it if an external
// server serves the workload certificate on the usual socket.
const filesOnlySocket = "./var/run/secrets/credential-uds/files-socket"

// gatewaySocket is the socket on which an external server may serve the secrets that gateways reference by
// credentialName (sds://…). If the node metadata gatewayMetadata is set, the control plane configures Envoy to use it.
const (
	gatewaySocket   = "./var/run/secrets/credential-uds/socket"
	gatewayMetadata = "credential"
)

// OwnSocket returns the path of the SDS socket on which the agent listens.
func (c Certificates) OwnSocket() string {
	if c.ExternalServer == sds.ExternalNone {
		return c.Socket
	}
	return filesOnlySocket
}

// envoySocket returns the path of the SDS socket from which Envoy fetches the workload certificate.
func (c Certificates) envoySocket() string {
	if c.ExternalServer == sds.ExternalSDS {
		return c.Socket
	}
	return c.OwnSocket()
}

// filesSocket returns the path of the SDS socket for secrets from files. It returns "" if Envoy uses envoySocket for
// them too.
func (c Certificates) filesSocket() string {
	if c.ExternalServer == sds.ExternalSDS {
		return filesOnlySocket
	}
	return ""
}

func (r *resolver) resolveCertificates() {
	c := &r.config.Certificates
	r.checkProvider()
	c.Socket = socketPath(identityDir, r.resolveSocketFile())
	r.env.addSetting("certificates.socket", c.Socket, r.env.variableSource("WORKLOAD_IDENTITY_SOCKET_FILE"))
	r.resolveOutput()
	r.resolveExternalServer()
	r.detectGatewaySecrets()
	r.resolveWorkloadAPI()
	c.Files = r.findIdentityFiles()
	r.resolveAuthority()
	r.resolveAnchors()
	if r.env.boolean("certificates.crl", "PILOT_ENABLE_CA_CRL", true) {
		c.CRLFile = istiodCRL
	}
	c.KeyProvider = r.resolveKeyProvider()
	c.Debounce = r.env.duration("certificates.debounce", "FILE_DEBOUNCE_DURATION", 100*time.Millisecond)
}

// resolveAuthority resolves the address and credentials for certificate requests to the CA.
func (r *resolver) resolveAuthority() {
	c := &r.config.Certificates
	c.Address = r.env.text("certificates.address", "CA_ADDR", r.config.ControlPlane.Address, "discoveryAddress")
	if err := checkAddresses(c.Address); err != nil && c.Address != r.config.ControlPlane.Address {
		r.env.addValueError("CA_ADDR", c.Address, err.Error())
	}
	c.Plaintext = r.isPlaintext(c.Address)
	root, source := r.authorityRootFile()
	c.RootFile = r.env.text("certificates.rootFile", "CA_ROOT_CA", root, source)
	c.ServerName = commonHost(c.Address)
	if c.Address == r.config.ControlPlane.Address {
		c.ServerName = r.config.ControlPlane.ServerName
	}
	c.TokenFile = r.config.ControlPlane.TokenFile
	if dir := r.env.vars["PROV_CERT"]; dir != "" {
		files := sds.IdentityFiles(dir)
		c.CertFile, c.KeyFile = files.CertFile, files.KeyFile
		r.env.addSetting("certificates.clientCertificate", c.CertFile, "environment PROV_CERT")
	}
	c.Headers = r.env.headers("CA_HEADER_")
	c.Signer, _ = r.config.Identity.Metadata["CERT_SIGNER"].(string)
	c.Key = r.resolveKeyType()
	c.PKCS8 = r.env.boolean("certificates.pkcs8", "PKCS8_KEY", false)
	c.TTL = r.env.duration("certificates.ttl", "SECRET_TTL", 24*time.Hour)
	c.GraceRatio = r.env.ratio("certificates.graceRatio", "SECRET_GRACE_PERIOD_RATIO", 0.5)
	c.GraceJitter = r.env.ratio("certificates.graceJitter", "SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01)
	c.DropReplacedRoots = !r.env.boolean("certificates.keepReplacedRoots", "KEEP_REPLACED_ROOTS", true)
}

// authorityRootFile returns the default of CA_ROOT_CA. Istio's agent has the same default.
func (r *resolver) authorityRootFile() (file, source string) {
	provider := r.env.vars["PILOT_CERT_PROVIDER"]
	if dir := r.env.vars["PROV_CERT"]; dir != "" && provider != "custom" && provider != "kubernetes" {
		return sds.IdentityFiles(dir).RootFile, "environment PROV_CERT"
	}
	return r.defaultRootFile(), r.env.variableSource("PILOT_CERT_PROVIDER")
}

// checkProvider adds an error for an unsupported CA_PROVIDER. For GkeWorkloadCertificate, it only checks that GKE has
// mounted its certificate files, which findIdentityFiles finds.
func (r *resolver) checkProvider() {
	switch p := r.env.text("certificates.provider", "CA_PROVIDER", citadel, sourceDefault); p {
	case citadel:
	case "GkeWorkloadCertificate":
		if _, err := r.fs.Stat(filepath.Join(identityFiles, "cert-chain.pem")); err != nil && !isHung(err) {
			r.env.addValueError("CA_PROVIDER", p, fmt.Sprintf("the certificate files of GKE are missing (%v); mount these files", err))
		}
	default:
		r.env.addValueError("CA_PROVIDER", p, "use Citadel (Istio's CreateCertificate API) or GkeWorkloadCertificate, or remove the setting")
	}
}

// resolveKeyType returns the type of the private key.
func (r *resolver) resolveKeyType() sds.KeyType {
	switch a := r.env.vars["ECC_SIGNATURE_ALGORITHM"]; a {
	case "":
		r.env.addSetting("certificates.algorithm", "RSA", sourceDefault)
		return sds.RSA(parseVariable(r.env, "certificates.rsaBits", "WORKLOAD_RSA_KEY_SIZE", 2048, "write a number of bits from 2048 to 8192",
			func(s string) (int, error) {
				bits, err := strconv.Atoi(s)
				if err == nil && (bits < 2048 || bits > 8192) {
					err = errRefused
				}
				return bits, err
			}))
	case "ECDSA":
		r.env.addSetting("certificates.algorithm", a, "environment ECC_SIGNATURE_ALGORITHM")
		if r.env.choice("certificates.curve", "ECC_CURVE", "P256", "P256", "P384") == "P384" {
			return sds.ECDSAP384
		}
	default:
		r.env.addValueError("ECC_SIGNATURE_ALGORITHM", a, "use ECDSA, or remove the setting for RSA")
	}
	return sds.ECDSAP256
}

// resolveOutput resolves the directory and the file mode for the certificate files that the agent writes for other
// programs. In Kubernetes, all users can read the files, because other containers of the pod run as different users.
func (r *resolver) resolveOutput() {
	dir := r.env.vars["OUTPUT_CERTS"]
	if dir == "" {
		return
	}
	if info, err := r.fs.Stat(dir); err == nil && !info.IsDir() {
		r.env.warnValue("OUTPUT_CERTS", dir, "write the name of a directory; this is a file", "the certificate is not written")
		return
	}
	o := &r.config.Certificates.Output
	o.Dir, o.Mode = dir, 0o600
	if r.isInPod() {
		o.Mode = 0o644
	}
	r.env.addSetting("certificates.output", dir, "environment OUTPUT_CERTS")
	r.env.addSetting("certificates.outputMode", fmt.Sprintf("%04o", o.Mode), "KUBERNETES_SERVICE_HOST")
}

// resolveExternalServer detects an external server on the certificate socket. If WORKLOAD_IDENTITY_SOCKET_FILE names a
// socket other than the default, it is an error if no server listens on it.
func (r *resolver) resolveExternalServer() {
	c := &r.config.Certificates
	if r.in.DetectExternalServer == nil {
		return
	}
	named := filepath.Base(c.Socket) != defaultSocketFile
	c.ExternalServer = r.in.DetectExternalServer(c.Socket, ControlPath(r.config.Proxy.GetConfigPath()), named)
	switch {
	case c.ExternalServer != sds.ExternalNone:
		r.env.addSetting("certificates.externalServer", c.ExternalServer, "detected on "+c.Socket)
	case named:
		r.env.addValueError("WORKLOAD_IDENTITY_SOCKET_FILE", filepath.Base(c.Socket), "no process listens on "+c.Socket+
			": start the certificate server before the agent, or remove the setting, so that the agent serves certificates")
	}
}

// detectGatewaySecrets sets gatewayMetadata in the node metadata if a server listens on gatewaySocket.
func (r *resolver) detectGatewaySecrets() {
	if r.in.DetectExternalServer == nil {
		return
	}
	conn, err := net.DialTimeout("unix", gatewaySocket, PeerDialTimeout)
	if err != nil {
		return
	}
	_ = conn.Close()
	r.config.Identity.Metadata[gatewayMetadata] = "true"
	r.env.addSetting("certificates.gatewaySocket", gatewaySocket, "a server listens on it")
}

// resolveWorkloadAPI resolves the address of a SPIFFE Workload API: the certificate socket if a Workload API was detected
// there, or else SPIFFE_ENDPOINT_SOCKET.
func (r *resolver) resolveWorkloadAPI() {
	c := &r.config.Certificates
	switch address := r.env.vars["SPIFFE_ENDPOINT_SOCKET"]; {
	case c.ExternalServer == sds.ExternalSDS:
	case c.ExternalServer == sds.ExternalWorkloadAPI:
		c.WorkloadAPI = "unix:" + c.Socket
	case strings.HasPrefix(address, "unix:///"):
		c.WorkloadAPI = "unix:" + strings.TrimPrefix(address, "unix://")
	case strings.HasPrefix(address, "tcp://"):
		c.WorkloadAPI = "passthrough:///" + strings.TrimPrefix(address, "tcp://")
	case address != "": // Istio's agent does not read the variable
		r.env.warnValue("SPIFFE_ENDPOINT_SOCKET", address, "write a URL such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081", "the value has no effect")
	}
	if c.WorkloadAPI != "" {
		r.env.addSetting("certificates.workloadAPI", c.WorkloadAPI, "environment SPIFFE_ENDPOINT_SOCKET or "+c.Socket)
	}
}

// findIdentityFiles returns the directory of a certificate that another program renews, or "" if there is none. It
// checks the directories that Istio's agent checks, except the directory to which this agent writes its own
// certificate.
func (r *resolver) findIdentityFiles() string {
	fileMounted, _ := strconv.ParseBool(r.env.vars["FILE_MOUNTED_CERTS"])
	for _, dir := range []string{identityFiles, mountedFiles} {
		mounted := dir == mountedFiles && fileMounted
		if !r.isFile(sds.IdentityFiles(dir).CertFile) && !mounted || r.isSameDirectory(dir, r.config.Certificates.Output.Dir) {
			continue
		}
		source := "found cert-chain.pem in it"
		if mounted {
			source = "environment FILE_MOUNTED_CERTS"
		}
		r.env.addSetting("certificates.files", dir, source)
		return dir
	}
	return ""
}

func (r *resolver) isSameDirectory(a, b string) bool {
	if b == "" {
		return false
	}
	first, err := r.fs.Stat(a)
	if err != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	second, err := r.fs.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// resolveAnchors resolves the additional root certificates in ProxyConfig (caCertificatesPem). Istio's agent ignores the
// field, so an invalid entry does not prevent the start.
func (r *resolver) resolveAnchors() {
	for i, anchor := range r.config.Proxy.GetCaCertificatesPem() {
		if err := sds.CheckRoots([]string{anchor}); err != nil {
			r.env.warn("caCertificatesPem[%d] (%s): %v; the entry has no effect", i, r.merger.source("ca_certificates_pem"), err)
			continue
		}
		r.config.Certificates.Anchors = append(r.config.Certificates.Anchors, anchor)
	}
}

// resolveKeyProvider returns the privateKeyProvider of ProxyConfig; nil for none.
func (r *resolver) resolveKeyProvider() *sds.KeyProvider {
	switch p := r.config.Proxy.GetPrivateKeyProvider().GetProvider().(type) {
	case *meshv1.PrivateKeyProvider_Cryptomb:
		return &sds.KeyProvider{Name: "cryptomb", PollDelay: p.Cryptomb.GetPollDelay().AsDuration(), Fallback: p.Cryptomb.GetFallback().GetValue()}
	case *meshv1.PrivateKeyProvider_Qat:
		return &sds.KeyProvider{Name: "qat", PollDelay: p.Qat.GetPollDelay().AsDuration(), Fallback: p.Qat.GetFallback().GetValue()}
	}
	return nil
}

// defaultSocketFile is the file name of the certificate socket on which the agent listens by default.
const defaultSocketFile = "socket"

func (r *resolver) resolveSocketFile() string {
	name := cmp.Or(r.env.vars["WORKLOAD_IDENTITY_SOCKET_FILE"], defaultSocketFile)
	if name != filepath.Base(name) || name == ".." || name == "." {
		r.env.addValueError("WORKLOAD_IDENTITY_SOCKET_FILE", name, "write the name of a file in "+identityDir+", without slashes")
		return defaultSocketFile
	}
	return name
}
