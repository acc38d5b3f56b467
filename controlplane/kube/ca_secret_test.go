package kube

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

func newFakeSecrets(t testing.TB) (*fakeObjects, secretClient) {
	t.Helper()
	objects, client := newFakeObjects(t)
	return objects, secretClient{rest: client(corev1.SchemeGroupVersion), namespace: "istio-system"}
}

// openFound opens the authority that findAuthority selects.
func openFound(t testing.TB, secrets secretClient, options ca.Options) *ca.Authority {
	t.Helper()
	store, plugIn, err := findAuthority(t.Context(), secrets)
	if err != nil {
		t.Fatal(err)
	}
	options.PlugIn = plugIn
	a, err := ca.Open(store, options)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestConcurrentlyOpenedSecretHasOneAuthority(t *testing.T) {
	_, secrets := newFakeSecrets(t)
	roots := make([][]byte, 6)
	var running sync.WaitGroup
	for n := range roots {
		running.Go(func() { roots[n] = openFound(t, secrets, ca.Options{}).RootPEM() })
	}
	running.Wait()
	for _, root := range roots {
		if !bytes.Equal(root, roots[0]) {
			t.Errorf("two replicas have the roots %s and %s", roots[0], root)
		}
	}
}

func TestStaleSecretIsNotReplaced(t *testing.T) {
	objects, secrets := newFakeSecrets(t)
	one, two := openFound(t, secrets, ca.Options{}), openFound(t, secrets, ca.Options{})
	store := &secretStore{secrets: secrets, name: caSecretName}
	stale, err := store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Rotate(true); err != nil {
		t.Fatal(err)
	}
	if err := store.Replace(t.Context(), stale, stale); !errors.Is(err, ca.ErrConflict) {
		t.Errorf("replacing a stale version: %v", err)
	}
	// Another replica writes between the read and the write of Replace.
	fresh, err := store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	objects.before = func() {
		if step, err := two.Rotate(true); err != nil || step != ca.Activate {
			t.Errorf("the other replica: %s, %v", step, err)
		}
	}
	if err := store.Replace(t.Context(), fresh, fresh); !errors.Is(err, ca.ErrConflict) {
		t.Errorf("replacing a version that changes meanwhile: %v", err)
	}
}

func TestRotationPreservesOtherKeysAndEndsWithTheFormatOfIstio(t *testing.T) {
	_, secrets := newFakeSecrets(t)
	a := openFound(t, secrets, ca.Options{})
	secret, err := secrets.get(t.Context(), caSecretName)
	if err != nil {
		t.Fatal(err)
	}
	secret.Labels, secret.Data["note"] = map[string]string{"team": "a"}, []byte("x")
	if err := secrets.update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for _, want := range []ca.RotationStep{ca.Announce, ca.Activate, ca.Retire} {
		if step, err := a.Rotate(true); err != nil || step != want {
			t.Fatalf("%s: %s, %v", want, step, err)
		}
		if secret, err = secrets.get(t.Context(), caSecretName); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(secret.Data[rootCertKey], a.RootPEM()) {
			t.Errorf("after %s, %s differs from the trusted roots", want, rootCertKey)
		}
		if strings.Count(string(secret.Data[caCertKey]), "BEGIN") != 1 {
			t.Errorf("after %s, %s is %s; istiod accepts one certificate", want, caCertKey, secret.Data[caCertKey])
		}
		if secret.Labels["team"] != "a" || string(secret.Data["note"]) != "x" {
			t.Errorf("after %s, other fields of the Secret are lost: %v", want, secret)
		}
	}
	for _, key := range []string{nextCertKey, nextKeyKey, previousCertKey, previousKeyKey} {
		if _, ok := secret.Data[key]; ok {
			t.Errorf("after the rotation, the Secret still has %s", key)
		}
	}
}

func TestExternalCAInASecretSigns(t *testing.T) {
	_, secrets := newFakeSecrets(t)
	created := openFound(t, secrets, ca.Options{})
	own, err := secrets.get(t.Context(), caSecretName)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data     map[string][]byte
		external bool
	}{
		"Istio's files":     {map[string][]byte{caCertKey: own.Data[caCertKey], caKeyKey: own.Data[caKeyKey], rootCertKey: own.Data[caCertKey], "cert-chain.pem": own.Data[caCertKey]}, true},
		"kubernetes.io/tls": {map[string][]byte{tlsCertKey: own.Data[caCertKey], tlsKeyKey: own.Data[caKeyKey], tlsRootKey: own.Data[caCertKey]}, true},
		"of istiod":         {map[string][]byte{caCertKey: own.Data[caCertKey], caKeyKey: own.Data[caKeyKey], generatedKey: {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects, secrets := newFakeSecrets(t)
			if err := secrets.create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: plugInSecretName}, Data: test.data}); err != nil {
				t.Fatal(err)
			}
			a := openFound(t, secrets, ca.Options{})
			if !bytes.Equal(a.RootPEM(), created.RootPEM()) {
				t.Errorf("the authority has the roots %s", a.RootPEM())
			}
			token, err := a.IssueToken("shop", "reviews", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := openFound(t, secrets, ca.Options{}).VerifyToken(token); err != nil {
				t.Errorf("another replica refuses a token: %v", err)
			}
			writes := objects.writes
			if _, err := a.Rotate(true); (err == nil) == test.external {
				t.Errorf("rotating the root: %v", err)
			}
			if test.external && objects.writes != writes {
				t.Error("the rotation of an external CA writes")
			}
			if _, err := secrets.get(t.Context(), caSecretName); !isMissing(err) {
				t.Errorf("%s exists: %v", caSecretName, err)
			}
		})
	}
}

func TestSecretOfIstioHasPrecedenceOverAGeneratedOne(t *testing.T) {
	_, secrets := newFakeSecrets(t)
	a := openFound(t, secrets, ca.Options{})
	if err := secrets.create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: plugInSecretName}, Data: map[string][]byte{generatedKey: {}}}); err != nil {
		t.Fatal(err)
	}
	if again := openFound(t, secrets, ca.Options{}); !bytes.Equal(a.RootPEM(), again.RootPEM()) {
		t.Error("the generated Secret has precedence")
	}
}

func TestDamagedSecretIsReportedNotReplaced(t *testing.T) {
	objects, secrets := newFakeSecrets(t)
	openFound(t, secrets, ca.Options{})
	secret, err := secrets.get(t.Context(), caSecretName)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data[caKeyKey] = nil
	if err := secrets.update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	writes := objects.writes
	_, err = ca.Open(&secretStore{secrets: secrets, name: caSecretName}, ca.Options{})
	if err == nil || !strings.Contains(err.Error(), "Secret istio-system/istio-ca-secret") || !strings.Contains(err.Error(), "ca-key.pem is damaged") {
		t.Errorf("opening a damaged Secret: %v", err)
	}
	if objects.writes != writes {
		t.Error("the damaged Secret was replaced")
	}
}
