// Package kube is a small Kubernetes client with only the functions that the CNI plugin and its node agent need. The
// main function is to list and watch the pods of a node. client-go would make the plugin several times larger and
// slower to start.
package kube

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// maxFile limits the size of kubeconfigs, tokens and certificates, in bytes.
const maxFile = 1 << 20

// ServiceAccountDir is the directory where Kubernetes mounts a pod's token and the cluster's CA certificate.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config contains the address of the API server, its CA and the client's credentials.
type Config struct {
	Server     string // URL of the API server
	CA         []byte // CA certificates in PEM; nil for the system's CAs
	ServerName string // name to verify in the server's certificate; "" for the host in the URL
	// Insecure disables verification of the server's certificate.
	Insecure bool
	// Token is the bearer token. If TokenFile is set, the client instead reads the token from this file for each
	// request, because the kubelet renews it. Both are empty if the client authenticates with a certificate.
	Token, TokenFile        string
	Certificate, PrivateKey []byte // PEM
}

// InCluster returns the configuration for a process in a pod. host and port are the values of KUBERNETES_SERVICE_HOST
// and KUBERNETES_SERVICE_PORT. dir is the directory of the service account, usually ServiceAccountDir.
func InCluster(host, port, dir string) (Config, error) {
	if host == "" {
		return Config{}, errors.New("KUBERNETES_SERVICE_HOST is not set: this process does not run in a Kubernetes pod; set a kubeconfig instead")
	}
	ca, err := readFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return Config{}, fmt.Errorf("reading the cluster's CA certificate (is automountServiceAccountToken false?): %w", err)
	}
	return Config{
		Server:    "https://" + net.JoinHostPort(host, cmp.Or(port, "443")),
		CA:        ca,
		TokenFile: filepath.Join(dir, "token"),
	}, nil
}

// kubeconfig contains the fields of a kubeconfig file that this package supports.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server        string
			CAFile        string `yaml:"certificate-authority"`
			CAData        string `yaml:"certificate-authority-data"`
			TLSServerName string `yaml:"tls-server-name"`
			Insecure      bool   `yaml:"insecure-skip-tls-verify"`
		}
	}
	Users []struct {
		Name string
		User struct {
			Token           string
			TokenFile       string `yaml:"tokenFile"`
			CertificateFile string `yaml:"client-certificate"`
			CertificateData string `yaml:"client-certificate-data"`
			KeyFile         string `yaml:"client-key"`
			KeyData         string `yaml:"client-key-data"`
		}
	}
}

// Load reads a kubeconfig file and returns the configuration of its current context. Relative paths in the file are
// relative to its directory. Load returns an error if the user needs an exec plugin or an auth provider.
func Load(path string) (Config, error) {
	text, err := readFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	c, err := parse(text, filepath.Dir(path))
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return c, nil
}

func parse(text []byte, dir string) (Config, error) {
	var file kubeconfig
	if err := yaml.Unmarshal(text, &file); err != nil {
		return Config{}, withoutValues(err)
	}
	x := slices.IndexFunc(file.Contexts, func(c struct {
		Name    string
		Context struct{ Cluster, User string }
	}) bool {
		return c.Name == file.CurrentContext
	})
	if x < 0 {
		return Config{}, fmt.Errorf("current-context %q is not in contexts", file.CurrentContext)
	}
	use := file.Contexts[x].Context
	var c Config
	if err := file.cluster(&c, use.Cluster, dir); err != nil {
		return Config{}, err
	}
	if err := file.user(&c, use.User, dir); err != nil {
		return Config{}, err
	}
	return c, nil
}

// withoutValues replaces a YAML error with one that does not quote values in the file, because these may be tokens.
func withoutValues(err error) error {
	var types *yaml.TypeError
	if errors.As(err, &types) {
		return fmt.Errorf("%d fields have the wrong type; write the fields of a kubeconfig", len(types.Errors))
	}
	return errors.New("the file is not valid YAML")
}

// cluster sets the fields of c from the kubeconfig's cluster called name.
func (file *kubeconfig) cluster(c *Config, name, dir string) error {
	for _, entry := range file.Clusters {
		if entry.Name != name {
			continue
		}
		c.Server, c.ServerName, c.Insecure = entry.Cluster.Server, entry.Cluster.TLSServerName, entry.Cluster.Insecure
		if !strings.HasPrefix(c.Server, "https://") && !strings.HasPrefix(c.Server, "http://") {
			return fmt.Errorf("cluster %q: server %q is not an http or https URL", name, c.Server)
		}
		var err error
		c.CA, err = dataOrFile(entry.Cluster.CAData, entry.Cluster.CAFile, dir)
		if err != nil {
			return fmt.Errorf("cluster %q: certificate-authority: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("cluster %q is not defined", name)
}

// user sets the credentials of c from the kubeconfig's user called name.
func (file *kubeconfig) user(c *Config, name, dir string) error {
	for _, entry := range file.Users {
		if entry.Name != name {
			continue
		}
		u := entry.User
		c.Token = u.Token
		if u.TokenFile != "" {
			c.TokenFile = absolute(u.TokenFile, dir)
		}
		var errCert, errKey error
		c.Certificate, errCert = dataOrFile(u.CertificateData, u.CertificateFile, dir)
		c.PrivateKey, errKey = dataOrFile(u.KeyData, u.KeyFile, dir)
		if err := errors.Join(errCert, errKey); err != nil {
			return fmt.Errorf("user %q: client certificate: %w", name, err)
		}
		if c.Token == "" && c.TokenFile == "" && len(c.Certificate) == 0 {
			return fmt.Errorf("user %q has no token, tokenFile or client-certificate; other credentials are not supported", name)
		}
		return nil
	}
	return fmt.Errorf("user %q is not defined", name)
}

// dataOrFile returns the base64-decoded data or, if data is "", the content of the file.
func dataOrFile(data, file, dir string) ([]byte, error) {
	switch {
	case data != "":
		text, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, errors.New("the data is not valid base64")
		}
		return text, nil
	case file != "":
		return readFile(absolute(file, dir))
	}
	return nil, nil
}

func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func readFile(path string) ([]byte, error) { return regularfile.Read(path, maxFile) }
