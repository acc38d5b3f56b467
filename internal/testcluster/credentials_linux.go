package testcluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// credentials issues the certificates of a cluster.
type credentials struct {
	dir   string
	ca    *x509.Certificate
	key   crypto.Signer
	admin user
}

// user authenticates to the API server with a certificate or a token.
type user struct{ cert, key, token string }

// writeCredentials writes the certificates and keys of a cluster to dir, and a kubeconfig file for an administrator.
func writeCredentials(dir, url string) (*credentials, error) {
	c := &credentials{dir: dir}
	steps := []func() error{
		c.writeCA,
		func() error {
			return c.writeCertificate("server", &x509.Certificate{
				Subject:     pkix.Name{CommonName: "kube-apiserver"},
				DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
				IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1"), net.ParseIP("10.96.0.1"), net.ParseIP("fd96::1")},
			})
		},
		c.writeAccountKeys,
		func() (err error) {
			c.admin, err = c.issue("admin", "system:masters")
			return err
		},
		func() error { return c.writeKubeconfig("admin.kubeconfig", url, c.admin) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("writing the credentials of a cluster: %w", err)
		}
	}
	return c, nil
}

func (c *credentials) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(c.dir, name), text, 0o600)
}

func (c *credentials) writeCA() (err error) {
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	c.ca = template
	der, err := c.sign(template, c.key.Public())
	if err != nil {
		return err
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	return c.writePair("ca", der, c.key)
}

func (c *credentials) sign(template *x509.Certificate, key crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(7*24*time.Hour)
	return x509.CreateCertificate(rand.Reader, template, c.ca, key, c.key)
}

// writeCertificate writes NAME.crt and NAME.key for a server or client.
func (c *credentials) writeCertificate(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := c.sign(template, key.Public())
	if err != nil {
		return err
	}
	return c.writePair(name, der, key)
}

func (c *credentials) writePair(name string, cert []byte, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := c.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})); err != nil {
		return err
	}
	return c.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// writeAccountKeys writes the key pair that signs and verifies the tokens of service accounts.
func (c *credentials) writeAccountKeys() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := c.write("accounts.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})); err != nil {
		return err
	}
	return c.write("accounts.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

// issue issues a client certificate, for a user in groups.
func (c *credentials) issue(name string, groups ...string) (user, error) {
	file := fmt.Sprintf("user-%s", rand.Text())
	if err := c.writeCertificate(file, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}}); err != nil {
		return user{}, err
	}
	path := filepath.Join(c.dir, file)
	return user{cert: path + ".crt", key: path + ".key"}, nil
}

// writeKubeconfig writes a kubeconfig file, in JSON, that refers to the files of the certificates.
func (c *credentials) writeKubeconfig(name, url string, u user) error {
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": map[string]any{
			"server": url, "certificate-authority": filepath.Join(c.dir, "ca.crt")}}},
		"users":    []any{map[string]any{"name": "test", "user": u.kubeconfig()}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": "test"}}},
	})
	if err != nil {
		return err
	}
	return c.write(name, text)
}

func (u user) kubeconfig() map[string]any {
	if u.token != "" {
		return map[string]any{"token": u.token}
	}
	return map[string]any{"client-certificate": u.cert, "client-key": u.key}
}

func (c *credentials) newClient(url string, u user) (*client, error) {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if u.cert != "" {
		pair, err := tls.LoadX509KeyPair(u.cert, u.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	// Without HTTP/2, a killed API server closes each connection.
	return &client{url: url, token: u.token, http: &http.Client{Transport: &http.Transport{TLSClientConfig: config}}}, nil
}

// UserKubeconfig writes a kubeconfig file for a user in groups, and returns its path. The user has the rights that
// the cluster's roles grant.
func (c *Cluster) UserKubeconfig(t testing.TB, name string, groups ...string) string {
	t.Helper()
	u, err := c.credentials.issue(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return c.kubeconfig(t, u)
}

// TokenKubeconfig writes a kubeconfig file for the owner of a token, and returns its path.
func (c *Cluster) TokenKubeconfig(t testing.TB, token string) string {
	t.Helper()
	return c.kubeconfig(t, user{token: token})
}

func (c *Cluster) kubeconfig(t testing.TB, u user) string {
	t.Helper()
	name := rand.Text() + ".kubeconfig"
	if err := c.credentials.writeKubeconfig(name, c.URL, u); err != nil {
		t.Fatal(err)
	}
	return c.path(name)
}
