package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

// Names of Secrets in the control plane's namespace. The first two are Istio's.
const (
	caSecretName     = "istio-ca-secret"
	plugInSecretName = "cacerts"
	tokenKeySecret   = "pilotfish-token-key"
	caSecretType     = "istio.io/ca-root"
)

// Keys of the Secret with the authority's material. Istio has the keys of the first group, and uses only the CA's
// certificate and key. The keys of the second group contain the state of a root rotation.
const (
	caCertKey   = "ca-cert.pem"
	caKeyKey    = "ca-key.pem"
	rootCertKey = "root-cert.pem"

	nextCertKey     = "next-ca-cert.pem"
	nextKeyKey      = "next-ca-key.pem"
	previousCertKey = "previous-ca-cert.pem"
	previousKeyKey  = "previous-ca-key.pem"
	rotationKey     = "rotation.json"

	tokenKeyKey = "token-key.pem"

	// generatedKey marks a Secret cacerts that Istio created itself, which is not an external CA.
	generatedKey = "istio-generated"
)

// secretClient reads and writes the Secrets of one namespace.
type secretClient struct {
	rest      rest.Interface
	namespace string
}

func (c secretClient) get(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := c.rest.Get().Namespace(c.namespace).Resource("secrets").Name(name).Do(ctx).Into(secret)
	return secret, c.explain("reading", name, err)
}

// create creates a Secret. It returns no error if the Secret already exists.
func (c secretClient) create(ctx context.Context, secret *corev1.Secret) error {
	secret.Namespace = c.namespace
	err := c.rest.Post().Namespace(c.namespace).Resource("secrets").Body(secret).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return c.explain("creating", secret.Name, err)
}

// update replaces a Secret. It returns ca.ErrConflict if the Secret has another resource version.
func (c secretClient) update(ctx context.Context, secret *corev1.Secret) error {
	err := c.rest.Put().Namespace(c.namespace).Resource("secrets").Name(secret.Name).Body(secret).Do(ctx).Error()
	if apierrors.IsConflict(err) {
		return ca.ErrConflict
	}
	return c.explain("writing", secret.Name, err)
}

// explain adds the Secret and the remedy to an error. The result wraps fs.ErrNotExist if the Secret does not exist.
func (c secretClient) explain(doing, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s Secret %s/%s: %w: %w", doing, c.namespace, name, fs.ErrNotExist, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s Secret %s/%s: %w: allow the control plane's service account to get, create and update Secrets of this namespace", doing, c.namespace, name, err)
	}
	return fmt.Errorf("%s Secret %s/%s: %w", doing, c.namespace, name, err)
}

// secretStore is a ca.Store in the Secret name. The Secret has Istio's format, so that istiod can use it, and a Secret
// of istiod can be used. The key that signs tokens is in another Secret, because istiod has none.
type secretStore struct {
	secrets secretClient
	name    string
}

// Location implements ca.Store.
func (s *secretStore) Location() string { return "Secret " + s.secrets.namespace + "/" + s.name }

// Remedy implements ca.Store.
func (s *secretStore) Remedy() string {
	return "delete that Secret and restart the control plane, which then creates a new root; then every workload needs the new root certificate"
}

// rotationState is the content of rotationKey.
type rotationState struct {
	Since  time.Time `json:"since"`
	Retire time.Time `json:"retire,omitzero"`
}

// Read implements ca.Store.
func (s *secretStore) Read(ctx context.Context) (ca.Material, error) {
	secret, err := s.secrets.get(ctx, s.name)
	if err != nil {
		return ca.Material{}, err
	}
	return readMaterial(secret)
}

func readMaterial(secret *corev1.Secret) (m ca.Material, err error) {
	pair := func(cert, key string) ca.KeyPair {
		return ca.KeyPair{Certificate: ca.File{Name: cert, Data: secret.Data[cert]}, Key: ca.File{Name: key, Data: secret.Data[key]}}
	}
	m = ca.Material{Active: pair(caCertKey, caKeyKey), Version: secret.ResourceVersion}
	if text := secret.Data[rotationKey]; len(text) > 0 {
		var state rotationState
		if err := json.Unmarshal(text, &state); err != nil {
			return m, fmt.Errorf("%s: %w: remove this key from the Secret, and the keys whose names begin with next- and previous-", rotationKey, err)
		}
		m.Since, m.Retire = state.Since, state.Retire
	}
	if len(secret.Data[nextCertKey]) > 0 {
		next := pair(nextCertKey, nextKeyKey)
		m.Announced = &next
	}
	if len(secret.Data[previousCertKey]) > 0 {
		previous := pair(previousCertKey, previousKeyKey)
		m.Previous = &previous
	}
	return m, nil
}

// writeMaterial writes m to the data of a Secret. It does not change other keys.
func writeMaterial(data map[string][]byte, m ca.Material) error {
	set := func(cert, key string, p *ca.KeyPair) {
		delete(data, cert)
		delete(data, key)
		if p != nil {
			data[cert], data[key] = p.Certificate.Data, p.Key.Data
		}
	}
	set(caCertKey, caKeyKey, &m.Active)
	set(nextCertKey, nextKeyKey, m.Announced)
	set(previousCertKey, previousKeyKey, m.Previous)
	roots := bytes.Clone(m.Active.Certificate.Data)
	for _, p := range []*ca.KeyPair{m.Previous, m.Announced} {
		if p != nil {
			roots = append(roots, p.Certificate.Data...)
		}
	}
	data[rootCertKey] = roots
	delete(data, rotationKey)
	if m.Since.IsZero() {
		return nil
	}
	text, err := json.Marshal(rotationState{Since: m.Since, Retire: m.Retire})
	data[rotationKey] = text
	return err
}

// Create implements ca.Store.
func (s *secretStore) Create(ctx context.Context, m ca.Material, tokenKey []byte) error {
	if err := s.secrets.createTokenKey(ctx, tokenKey); err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: s.name}, Type: caSecretType,
		Data: map[string][]byte{"cert-chain.pem": nil, "key.pem": nil}, // empty in a Secret of Istio, too
	}
	if err := writeMaterial(secret.Data, m); err != nil {
		return err
	}
	return s.secrets.create(ctx, secret)
}

// Replace implements ca.Store.
func (s *secretStore) Replace(ctx context.Context, previous, next ca.Material) error {
	secret, err := s.secrets.get(ctx, s.name)
	if err != nil {
		return err
	}
	if secret.ResourceVersion != previous.Version {
		return ca.ErrConflict
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if err := writeMaterial(secret.Data, next); err != nil {
		return err
	}
	return s.secrets.update(ctx, secret)
}

// TokenKey implements ca.Store. It creates the key if there is none, for example because istiod created the CA.
func (s *secretStore) TokenKey(ctx context.Context) (ca.File, error) {
	return s.secrets.tokenKey(ctx)
}

func (c secretClient) createTokenKey(ctx context.Context, key []byte) error {
	return c.create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: tokenKeySecret}, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{tokenKeyKey: key},
	})
}

func (c secretClient) tokenKey(ctx context.Context) (ca.File, error) {
	name := "the key " + tokenKeyKey + " of Secret " + tokenKeySecret
	secret, err := c.get(ctx, tokenKeySecret)
	if err == nil {
		return ca.File{Name: name, Data: secret.Data[tokenKeyKey]}, nil
	}
	if !isMissing(err) {
		return ca.File{}, err
	}
	key, err := ca.NewTokenKey()
	if err != nil {
		return ca.File{}, err
	}
	if err := c.createTokenKey(ctx, key); err != nil {
		return ca.File{}, err
	}
	if secret, err = c.get(ctx, tokenKeySecret); err != nil {
		return ca.File{}, err
	}
	return ca.File{Name: name, Data: secret.Data[tokenKeyKey]}, nil
}
