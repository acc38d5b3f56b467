package traffic

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// rotate replaces the root of all certificates while requests are sent. Each step waits until every Envoy has applied
// the previous one. onlyNew waits until no Envoy trusts the old root. Agents trust it for as long as a certificate of
// theirs that it signed was valid.
func (w *testMesh) rotate(f *traffic) (onlyNew func()) {
	w.t.Helper()
	authority, err := ca.Load(w.state, ca.Options{MustExist: true})
	if err != nil {
		w.t.Fatal(err)
	}
	step := func(want ca.RotationStep) {
		w.t.Helper()
		f.activity.Store("the roots: " + string(want))
		if took, err := authority.Rotate(true); err != nil || took != want {
			w.t.Fatalf("%s: took %s, %v", want, took, err)
		}
	}
	each := func(what string, holds func(roots []*x509.Certificate, leaf *x509.Certificate) error) {
		w.t.Helper()
		for _, i := range w.Instances() {
			testenv.Eventually(w.t, i.Name+" "+what, func() error {
				f.check()
				roots, leaf, err := w.readTrust(i.Name)
				if err != nil {
					return err
				}
				return holds(roots, leaf)
			})
		}
	}
	old := certificates(w.t.Fatal, authority.RootPEM())
	step(ca.Announce)
	both := certificates(w.t.Fatal, authority.RootPEM())
	next := removeCertificate(both, old[0])
	if len(old) != 1 || len(next) != 1 {
		w.t.Fatalf("there were %d roots, and %d are new", len(old), len(next))
	}
	each("trusts both roots", func(roots []*x509.Certificate, _ *x509.Certificate) error { return sameSet(roots, both) })
	step(ca.Activate)
	each("has a certificate of the new root", func(roots []*x509.Certificate, leaf *x509.Certificate) error {
		return errors.Join(sameSet(roots, both), leaf.CheckSignatureFrom(next[0]))
	})
	step(ca.Retire)
	outlived := time.After(*life)
	return func() {
		w.t.Helper()
		<-outlived
		each("trusts the new root alone", func(roots []*x509.Certificate, leaf *x509.Certificate) error {
			return errors.Join(sameSet(roots, next), leaf.CheckSignatureFrom(next[0]))
		})
	}
}

// waitRenewed waits until the certificate of every Envoy is valid for most of its lifetime. A control plane that is
// stopped soon after its start renews none, and its start takes long on a busy machine. Certificates must outlast one
// stop, not several.
func (w *testMesh) waitRenewed(f *traffic) {
	w.t.Helper()
	for _, i := range w.Instances() {
		testenv.Eventually(w.t, i.Name+" has a certificate that is good for long", func() error {
			f.check()
			_, leaf, err := w.readTrust(i.Name)
			if err != nil {
				return err
			}
			if left := time.Until(leaf.NotAfter); left < *life/2 {
				return fmt.Errorf("it ends in %s", left)
			}
			return nil
		})
	}
}

// readTrust reads an Envoy's trusted roots and its own certificate from the admin interface.
func (w *testMesh) readTrust(instance string) (roots []*x509.Certificate, leaf *x509.Certificate, err error) {
	client := http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.DialAdmin(ctx, instance) },
	}}
	response, err := client.Get("http://admin/config_dump?resource=dynamic_active_secrets")
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, err
	}
	dump := &adminv3.ConfigDump{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, dump); err != nil {
		return nil, nil, fmt.Errorf("%w in %.300s", err, text)
	}
	for _, one := range dump.GetConfigs() {
		secret, read := &tlsv3.Secret{}, &adminv3.SecretsConfigDump_DynamicSecret{}
		if err := errors.Join(one.UnmarshalTo(read), read.GetSecret().UnmarshalTo(secret)); err != nil {
			return nil, nil, err
		}
		fail := func(args ...any) { err = errors.New(fmt.Sprint(args...)) }
		switch {
		case secret.GetTlsCertificate() != nil:
			if chain := certificates(fail, secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes()); len(chain) > 0 {
				leaf = chain[0]
			}
		case secret.GetValidationContext() != nil:
			roots = certificates(fail, secret.GetValidationContext().GetTrustedCa().GetInlineBytes())
		}
	}
	if err == nil && (leaf == nil || len(roots) == 0) {
		err = fmt.Errorf("it has no certificate or no roots: %.300s", text)
	}
	return roots, leaf, err
}

func certificates(fail func(...any), text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			fail(err)
			return nil
		}
		out = append(out, one)
	}
	return out
}

func removeCertificate(all []*x509.Certificate, one *x509.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range all {
		if !c.Equal(one) {
			out = append(out, c)
		}
	}
	return out
}

func sameSet(got, want []*x509.Certificate) error {
	var missing []string
	for _, c := range want {
		if len(removeCertificate(got, c)) == len(got) {
			missing = append(missing, c.SerialNumber.String())
		}
	}
	for _, c := range got {
		if len(removeCertificate(want, c)) == len(want) {
			missing = append(missing, "other than "+c.SerialNumber.String())
		}
	}
	if len(missing) > 0 {
		return errors.New("roots differ: " + strings.Join(missing, ", "))
	}
	return nil
}
