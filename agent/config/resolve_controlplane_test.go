package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestSeveralControlPlaneAddresses(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env(`PROXY_CONFIG={"discoveryAddress":"istiod-a.example:15012, istiod-b.example:15012"}`)).ControlPlane
	if want := []string{"istiod-a.example:15012", "istiod-b.example:15012"}; !slices.Equal(c.Addresses(), want) {
		t.Errorf("addresses %q", c.Addresses())
	}
	if c.ServerName != "" || c.Plaintext {
		t.Errorf("several addresses must have no common server name: %+v", c)
	}
	c = resolve(t, env(`PROXY_CONFIG={"discoveryAddress":"a:15012,b:15012"}`, "ISTIOD_SAN=istiod.example")).ControlPlane
	if c.ServerName != "istiod.example" {
		t.Errorf("ISTIOD_SAN: %+v", c)
	}
	if c := resolve(t, env(`PROXY_CONFIG={"discoveryAddress":"a:15010,b:15010"}`)).ControlPlane; !c.Plaintext {
		t.Errorf("15010 is the plaintext port: %+v", c)
	}
	_, err := Resolve(env(`PROXY_CONFIG={"discoveryAddress":"a:15012,b"}`))
	if err == nil || !strings.Contains(err.Error(), "commas") {
		t.Errorf("an address without port: %v", err)
	}
}

func TestClientCertificateOfTheControlPlane(t *testing.T) {
	for name, tt := range map[string]struct {
		files           map[string]string
		env             []string
		cert, key, root string
	}{
		"none":      {root: istiodRoot},
		"PROV_CERT": {env: []string{"PROV_CERT=/var/certs"}, cert: "/var/certs/cert-chain.pem", key: "/var/certs/key.pem", root: "/var/certs/root-cert.pem"},
		"FILE_MOUNTED_CERTS": {
			env: []string{"FILE_MOUNTED_CERTS=true", "ISTIO_META_TLS_CLIENT_CERT_CHAIN=/c", "ISTIO_META_TLS_CLIENT_KEY=/k",
				"ISTIO_META_TLS_CLIENT_ROOT_CERT=/r"},
			cert: "/c", key: "/k", root: "/r",
		},
		"metadata alone": {env: []string{"ISTIO_META_TLS_CLIENT_CERT_CHAIN=/c", "ISTIO_META_TLS_CLIENT_KEY=/k"}, root: istiodRoot},
		"XDS_ROOT_CA":    {env: []string{"PROV_CERT=/var/certs", "XDS_ROOT_CA=/x"}, cert: "/var/certs/cert-chain.pem", key: "/var/certs/key.pem", root: "/x"},
		"/etc/certs": {
			files: map[string]string{"etc/certs/root-cert.pem": "x"}, env: []string{"PROV_CERT=/var/certs"},
			cert: "/var/certs/cert-chain.pem", key: "/var/certs/key.pem", root: customRoot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.InDir(t, tt.files)
			c := resolve(t, env(tt.env...)).ControlPlane
			if c.CertFile != tt.cert || c.KeyFile != tt.key || c.RootFile != tt.root {
				t.Errorf("got %s, %s, %s; want %s, %s, %s", c.CertFile, c.KeyFile, c.RootFile, tt.cert, tt.key, tt.root)
			}
		})
	}
	testenv.InDir(t, nil)
	c := resolve(t, env("FILE_MOUNTED_CERTS=true", "ISTIO_META_TLS_CLIENT_CERT_CHAIN=/c"))
	if c.ControlPlane.CertFile != "" || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "ISTIO_META_TLS_CLIENT_KEY") {
		t.Errorf("a certificate without a key: %q, warnings %q", c.ControlPlane.CertFile, c.Warnings)
	}
}

func TestMaxRequestSetting(t *testing.T) {
	testenv.InDir(t, nil)
	if c := resolve(t, env("ISTIO_GPRC_MAXRECVMSGSIZE=1048576")).ControlPlane; c.MaxRequest != 1<<20 {
		t.Errorf("limit %d", c.MaxRequest)
	}
	if c := resolve(t, env("ISTIO_GPRC_MAXRECVMSGSIZE=4MB")); c.ControlPlane.MaxRequest != 0 || len(c.Warnings) != 1 {
		t.Errorf("a limit that is not a number: %d, warnings %q", c.ControlPlane.MaxRequest, c.Warnings)
	}
}

// Istio's agent also ignores an unknown policy. A pod that starts with Istio's agent must start with this one.
func TestUnknownTLSPolicyIsIgnoredWithWarning(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env("COMPLIANCE_POLICY=fips"))
	if c.TLSPolicy != "" || c.setting("tls.policy").Value != "none" {
		t.Errorf("the policy is %q, shown as %q", c.TLSPolicy, c.setting("tls.policy").Value)
	}
	for _, part := range []string{"COMPLIANCE_POLICY", `"fips"`, "TLS is not restricted", "fips-140-2, fips-140-3, pqc"} {
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], part) {
			t.Errorf("the warnings do not contain %s: %q", part, c.Warnings)
		}
	}
}
