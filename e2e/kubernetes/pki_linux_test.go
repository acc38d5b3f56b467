package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// pki writes the certificates of a cluster into a folder.
type pki struct {
	dir string
	ca  *testpki.Authority
}

func newPKI(t *testing.T, dir string) *pki {
	t.Helper()
	p := &pki{dir: dir, ca: testpki.New(t, "kubernetes")}
	p.write(t, "ca.crt", p.ca.PEM())
	p.write(t, "ca.key", testpki.KeyPEM(t, p.ca.Key))
	p.issue(t, "server", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP(nodeAddress), net.ParseIP(serviceAddress), net.ParseIP("127.0.0.1")},
	})
	for name, subject := range map[string]pkix.Name{
		"admin":        {CommonName: "admin", Organization: []string{"system:masters"}},
		"controller":   {CommonName: "system:kube-controller-manager"},
		"scheduler":    {CommonName: "system:kube-scheduler"},
		"proxy":        {CommonName: "system:kube-proxy"},
		first.kubelet:  {CommonName: "system:node:" + first.name, Organization: []string{"system:nodes"}},
		second.kubelet: {CommonName: "system:node:" + second.name, Organization: []string{"system:nodes"}},
	} {
		p.kubeconfig(t, name, subject)
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(accounts.Public())
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "accounts.key", testpki.KeyPEM(t, accounts))
	p.write(t, "accounts.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	return p
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) write(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(p.path(name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *pki) issue(t *testing.T, name string, template *x509.Certificate) (cert, key []byte) {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	cert, key = testpki.PEM(p.ca.Sign(t, template, signer.Public())), testpki.KeyPEM(t, signer)
	p.write(t, name+".crt", cert)
	p.write(t, name+".key", key)
	return cert, key
}

// kubeconfig is how one part of the cluster reaches the API server.
func (p *pki) kubeconfig(t *testing.T, name string, subject pkix.Name) {
	t.Helper()
	cert, key := p.issue(t, name, &x509.Certificate{Subject: subject})
	b64 := base64.StdEncoding.EncodeToString
	p.write(t, name+".kubeconfig", fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://%s:443","certificate-authority-data":"%s"}}],
"users":[{"name":"c","user":{"client-certificate-data":"%s","client-key-data":"%s"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`, nodeAddress, b64(p.ca.PEM()), b64(cert), b64(key)))
}
