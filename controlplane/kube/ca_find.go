package kube

import (
	"context"
	"errors"
	"io/fs"

	corev1 "k8s.io/api/core/v1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

// Keys of a Secret of the type kubernetes.io/tls, which cacerts may be, too.
const (
	tlsCertKey = "tls.crt"
	tlsKeyKey  = "tls.key"
	tlsRootKey = "ca.crt"
)

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// findAuthority returns the store of the mesh's authority in a namespace, and the external CA if there is one. As in
// Istio, an external CA in cacerts takes precedence over istio-ca-secret. If neither exists, the authority creates
// istio-ca-secret.
func findAuthority(ctx context.Context, secrets secretClient) (ca.Store, ca.PlugIn, error) {
	own := &secretStore{secrets: secrets, name: caSecretName}
	plugIn, err := secrets.get(ctx, plugInSecretName)
	switch {
	case isMissing(err):
		return own, nil, nil
	case err != nil:
		return nil, nil, err
	}
	if _, generated := plugIn.Data[generatedKey]; !generated {
		return plugInStore{secrets}, secretPlugIn{secrets}, nil
	}
	// istiod created cacerts itself. It prefers istio-ca-secret, too.
	if _, err := secrets.get(ctx, caSecretName); !isMissing(err) {
		return own, nil, err
	}
	return &secretStore{secrets: secrets, name: plugInSecretName}, nil, nil
}

// secretPlugIn is an external CA in the Secret cacerts. It implements ca.PlugIn.
type secretPlugIn struct{ secrets secretClient }

// Location implements ca.PlugIn.
func (p secretPlugIn) Location() string {
	return "Secret " + p.secrets.namespace + "/" + plugInSecretName
}

// Remedy implements ca.PlugIn.
func (p secretPlugIn) Remedy() string {
	return "add the root of a new CA to root-cert.pem in that Secret, then replace the CA's certificate and key there"
}

// Files implements ca.PlugIn.
func (p secretPlugIn) Files(ctx context.Context) (map[string][]byte, error) {
	secret, err := p.secrets.get(ctx, plugInSecretName)
	if err != nil {
		return nil, err
	}
	return plugInFiles(secret), nil
}

// plugInFiles returns the files of an external CA in a Secret, which may have the type kubernetes.io/tls.
func plugInFiles(secret *corev1.Secret) map[string][]byte {
	if len(secret.Data[tlsCertKey]) == 0 {
		return secret.Data
	}
	return map[string][]byte{
		caCertKey: secret.Data[tlsCertKey], caKeyKey: secret.Data[tlsKeyKey], rootCertKey: secret.Data[tlsRootKey],
	}
}

// plugInStore is the store of an authority with an external CA. It stores only the key that signs tokens.
type plugInStore struct{ secrets secretClient }

// Location implements ca.Store.
func (s plugInStore) Location() string { return secretPlugIn(s).Location() }

// Remedy implements ca.Store.
func (s plugInStore) Remedy() string { return secretPlugIn(s).Remedy() }

// Read implements ca.Store. It returns no roots.
func (plugInStore) Read(context.Context) (ca.Material, error) { return ca.Material{}, nil }

var errNoStoredRoots = errors.New("the roots of an external CA are not stored")

// Create implements ca.Store. It is not called, because Read returns no error.
func (plugInStore) Create(context.Context, ca.Material, []byte) error { return errNoStoredRoots }

// Replace implements ca.Store. It is not called, because the root of an external CA is not rotated.
func (plugInStore) Replace(context.Context, ca.Material, ca.Material) error { return errNoStoredRoots }

// TokenKey implements ca.Store.
func (s plugInStore) TokenKey(ctx context.Context) (ca.File, error) { return s.secrets.tokenKey(ctx) }
