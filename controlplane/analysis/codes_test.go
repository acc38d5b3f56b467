package analysis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// here marks the line of the expected finding.
const here = "# here"

// shop is a mesh without findings.
const shop = `apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{name: tcp, port: 5432, targetPort: 5432}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews-1, namespace: shop}
spec: {address: 10.0.0.1, serviceAccount: reviews, labels: {app: reviews, version: v1, security.istio.io/tlsMode: istio}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-1, namespace: shop}
spec: {address: 10.0.0.2, labels: {app: db}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["reviews.example.com"]}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge-1, namespace: shop}
spec: {address: 10.0.0.4, labels: {istio: edge}}
`

// document returns a document of namespace shop. It does not change the lines of spec.
func document(apiVersion, kind, name, spec string) string {
	return "---\napiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  " +
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

func networkingDocument(kind, name, spec string) string {
	return document("networking.istio.io/v1", kind, name, spec)
}

func securityDocument(kind, name, spec string) string {
	return document("security.istio.io/v1", kind, name, spec)
}

// whileRunning maps the codes that only a running mesh can report to the tests that check them.
var whileRunning = map[config.Code]string{
	config.SourceUnavailable: "controlplane: TestControlPlaneFeedsAnother",
	config.KeysNotFetched:    "controlplane: TestKeysNotFetchedAreReportedAtTheRule",
	config.RejectedByEnvoy:   "controlplane: TestRejectionNamesTheChangedDocumentAndTheQuotedField",
	config.PatchSkipped:      "controlplane/translate: TestPatchesThatEnvoyWouldRejectAreSkipped",
}

func TestTestsOfRunningMeshesExist(t *testing.T) {
	for code, named := range whileRunning {
		folder, name, _ := strings.Cut(named, ": ")
		files, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+name+"(")
		}) {
			t.Errorf("%s: %s has no test %s", code, folder, name)
		}
	}
}

// findings maps each code to documents that cause the finding at the marked line, in addition to those of the shop.
func findings(t *testing.T) map[config.Code]string {
	ended, key := expiredCertificate(t)
	certificate, private := testpki.New(t, "public").Server(t, "reviews.example.com")
	return map[config.Code]string{
		config.Unreadable: "---\napiVersion: v1\nkind: Service\n metadata: {name: x} # here\n",
		config.NoSuchKind: "---\napiVersion: networking.istio.io/v1\nkind: VirtualServise # here\nmetadata: {name: x}\n",
		config.NoSuchField: networkingDocument("DestinationRule", "x", `
host: reviews
trafficPolicies: {} # here`),
		config.InvalidValue: networkingDocument("DestinationRule", "x", `
host: reviews
trafficPolicy:
  connectionPool: {tcp: {maxConnections: -1}} # here`),
		config.DuplicateName: "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop} # here\nspec: {ports: [{port: 1}]}\n",
		config.NoEffect: networkingDocument("WorkloadEntry", "x", `
address: 10.0.0.9
network: other # here`),
		config.KindNoEffect: "---\napiVersion: apps/v1 # here\nkind: Deployment\nmetadata: {name: x}\n",
		config.Questionable: networkingDocument("ServiceEntry", "x", `
hosts: [x.example.com]
resolution: DYNAMIC_DNS
ports:
- number: 9000
  name: tcp
  protocol: TCP # here`),
		config.UnsafeToIgnore: document("extensions.istio.io/v1alpha1", "WasmPlugin", "x", `
url: oci://registry.example/plugin:v1
selector: {matchLabels: {app: reviews}}
verificationKey: abc # here`),
		config.CertificateNotValid: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: shop}\nstringData:\n  tls.crt: | # here\n    " +
			indented(ended) + "\n  tls.key: |\n    " + indented(key) + "\n",
		config.AmbiguousWord: networkingDocument("DestinationRule", "x", `
host: reviews
subsets:
- name: v1
  labels:
    version: v1
    canary: no # here`),

		config.UnknownHost: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route:
  - destination:
      host: revews # here`),
		config.UnknownPort: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route:
  - destination:
      host: reviews
      port:
        number: 8080 # here`),
		config.UnknownSubset: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route:
  - destination:
      host: reviews
      subset: v1 # here`),
		config.UnknownGateway: networkingDocument("VirtualService", "x", `
hosts: [reviews.example.com]
gateways:
- egde # here
http: [{route: [{destination: {host: reviews}}]}]`),
		config.HiddenHost: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route:
  - destination:
      host: hidden.example.com # here`) +
			strings.ReplaceAll(networkingDocument("ServiceEntry", "hidden", `{hosts: [hidden.example.com], exportTo: ["."], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}`), "namespace: shop", "namespace: other"),
		config.SubsetWithoutEndpoints: networkingDocument("DestinationRule", "r", "{host: reviews, subsets: [{name: v2, labels: {version: v2}}]}") + networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route:
  - destination:
      host: reviews
      subset: v2 # here`),
		config.UnknownDelegate: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- delegate: # here
    name: nobody`),
		config.UnknownCredential: networkingDocument("Gateway", "x", `
selector: {istio: edge}
servers:
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: ["reviews.example.com"]
  tls:
    mode: SIMPLE
    credentialName: nothing # here`),
		config.GatewayAccountUnknown: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: shop}\nstringData:\n  tls.crt: |\n    " +
			indented(certificate) + "\n  tls.key: |\n    " + indented(private) + "\n" + networkingDocument("Gateway", "x", `
selector: {istio: edge}
servers:
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: ["reviews.example.com"]
  tls:
    mode: SIMPLE
    credentialName: x # here`),
		config.UnknownIdentity: securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: reviews}}
rules:
- from:
  - source:
      principals:
      - cluster.local/shop/reviews # here`),
		config.UnknownProvider: securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: reviews}}
action: CUSTOM
provider:
  name: nobody # here
rules: [{}]`),

		config.EndpointRefused: networkingDocument("ServiceEntry", "x", `
hosts: [x.example.com]
resolution: STATIC
ports: [{number: 80, name: http, protocol: HTTP}]
endpoints:
- address: unix:///etc/istio/proxy/XDS # here`),

		config.PortRequired: "---\napiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec: {selector: {app: db}, ports: [{name: a, port: 5433}, {name: b, port: 5434}]}\n" + networkingDocument("VirtualService", "x", `
hosts: [reviews.example.com]
gateways: [edge]
http:
- route:
  - destination: # here
      host: two`),

		config.HostConflict: networkingDocument("VirtualService", "a", "{hosts: [reviews], http: [{route: [{destination: {host: reviews}}]}]}") + networkingDocument("VirtualService", "b", `
hosts:
- reviews # here
http: [{route: [{destination: {host: reviews}}]}]`),
		config.UnreachableRoute: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route: [{destination: {host: reviews}}]
- match: [{uri: {prefix: /a}}] # here
  route: [{destination: {host: reviews}}]`),
		config.RuleShadowed: networkingDocument("DestinationRule", "a", "{host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}") + networkingDocument("DestinationRule", "b", `
host: reviews
trafficPolicy: # here
  connectionPool: {tcp: {maxConnections: 2}}`),
		config.GatewayOverlap: networkingDocument("Gateway", "z", `
selector: {istio: edge}
servers:
- port: {number: 80, name: http, protocol: HTTP}
  tls: {httpsRedirect: true}
  hosts: # here
  - reviews.example.com`),
		config.GatewayPortMixed: networkingDocument("Gateway", "z", `
selector: {istio: edge}
servers:
- port:
    number: 80
    name: tcp
    protocol: TCP # here
  hosts: ["*"]`),
		config.ServiceHostConflict: networkingDocument("ServiceEntry", "z", `
hosts: # here
- reviews.shop.svc.cluster.local
ports: [{number: 80, name: http, protocol: HTTP}]
resolution: DNS`),
		config.SharedAddress: networkingDocument("ServiceEntry", "a", "{hosts: [a.example.com], addresses: [10.9.9.9], ports: [{number: 1, name: tcp, protocol: TCP}], resolution: DNS}") + networkingDocument("ServiceEntry", "b", `
hosts: [b.example.com]
addresses:
- 10.9.9.9 # here
ports: [{number: 1, name: tcp, protocol: TCP}]
resolution: DNS`),
		config.MultipleForWorkload: securityDocument("PeerAuthentication", "a", "{selector: {matchLabels: {app: reviews}}, mtls: {mode: PERMISSIVE}}") + securityDocument("PeerAuthentication", "b", `
selector: # here
  matchLabels: {app: reviews}
mtls: {mode: PERMISSIVE}`),
		config.DuplicateSubset: networkingDocument("DestinationRule", "a", "{host: reviews, subsets: [{name: v1, labels: {version: v1}}]}") + networkingDocument("DestinationRule", "b", `
host: reviews
subsets:
- name: v1 # here
  labels: {version: v1}`),
		config.WeightsNot100: networkingDocument("VirtualService", "x", `
hosts: [reviews]
http:
- route: # here
  - {weight: 1, destination: {host: reviews}}
  - {weight: 2, destination: {host: db}}`),
		config.GatewayHostMissing: networkingDocument("VirtualService", "x", `
hosts: [other.example.com]
gateways:
- edge # here
http: [{route: [{destination: {host: reviews}}]}]`),
		config.PortProtocols: "---\napiVersion: v1\nkind: Service\nmetadata: {name: seen-as-bytes, namespace: shop}\nspec:\n  selector: {app: reviews}\n  ports:\n" +
			"  - {name: tcp, port: 81, targetPort: 8080} # here\n",

		config.CertificateShared: networkingDocument("Gateway", "w", `
selector: {istio: edge}
servers:
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: [a.example.com]
  tls: {mode: SIMPLE, serverCertificate: /c.pem, privateKey: /k.pem}`) + networkingDocument("Gateway", "z", `
selector: {istio: edge}
servers:
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: [b.example.com]
  tls: # here
    {mode: SIMPLE, serverCertificate: /c.pem, privateKey: /k.pem}`),

		config.PolicyNeverAccepted: securityDocument("PeerAuthentication", "x", `
selector: {matchLabels: {app: reviews}}
mtls: {mode: STRICTT} # here`),

		config.SelectsNothing: securityDocument("AuthorizationPolicy", "x", `
selector: # here
  matchLabels: {app: review}
rules: [{}]`),
		config.PortNotServed: securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: reviews}}
rules:
- to:
  - operation:
      ports:
      - "80" # here`),

		config.PortNotExposed: "---\napiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: shop}\nspec: {selector: {istio: edge}, ports: [{name: http, port: 80}]}\n" + networkingDocument("Gateway", "x", `
selector: {istio: edge}
servers:
- hosts: [a.example.com]
  port:
    number: 8080 # here
    name: http
    protocol: HTTP`),

		config.PlaintextToStrict: securityDocument("PeerAuthentication", "x", "{selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}}") + networkingDocument("DestinationRule", "x", `
host: reviews
trafficPolicy:
  tls:
    mode: DISABLE # here`),
		config.StrictWithoutSidecar: securityDocument("PeerAuthentication", "x", `
mtls:
  mode: STRICT # here`),
		config.MutualToPlaintext: networkingDocument("DestinationRule", "x", `
host: db
trafficPolicy:
  tls:
    mode: ISTIO_MUTUAL # here`),
		config.PrincipalsUnprovable: securityDocument("PeerAuthentication", "x", "{mtls: {mode: DISABLE}}") + securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: reviews}}
rules:
- from:
  - source: {principals: ["*"]} # here`),
		config.RequestUnverified: securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: reviews}}
rules:
- when:
  - key: request.auth.claims[iss] # here
    values: [a]`),
		config.CredentialForSidecar: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: shop, annotations: {pilotfish.dev/service-accounts: edge}}\nstringData:\n  ca.crt: |\n    " + indented(certificate) + "\n" + networkingDocument("DestinationRule", "x", `
host: reviews
trafficPolicy:
  tls:
    mode: SIMPLE
    credentialName: x # here`),
		config.HTTPRuleOnTCP: securityDocument("AuthorizationPolicy", "x", `
selector: {matchLabels: {app: db}}
action: DENY
rules:
- to:
  - operation: # here
      methods: [GET]`),
	}
}

// expiredCertificate returns an expired certificate and its key, in PEM.
func expiredCertificate(t *testing.T) (certificate, key []byte) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{DNSNames: []string{"shop.example"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	return testpki.PEM(testpki.New(t, "ended").Sign(t, template, signer.Public())), testpki.KeyPEM(t, signer)
}

// indented indents a block scalar below a top-level field.
func indented(pem []byte) string {
	return strings.ReplaceAll(strings.TrimSpace(string(pem)), "\n", "\n    ")
}

// Every code must have documents that cause it.
func TestEachCodeIsReportedWithPositionAndRemedy(t *testing.T) {
	documents := findings(t)
	for _, info := range config.Codes() {
		text, ok := documents[info.Code]
		if whileRunning[info.Code] != "" || info.Code == config.MeshConfigRefused {
			continue
		}
		if !ok {
			t.Errorf("no documents have the finding %s, %s", info.Code, info.Name)
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "shop.yaml")
			text = shop + text
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			line := 1 + strings.Count(text[:strings.Index(text, here)], "\n")
			r := analyze(t, Config{Paths: []string{file}, Mesh: &meshconfig.MeshConfig{RootNamespace: "istio-system"}})
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Code == info.Code })
			count := 1
			if info.Code == config.PolicyNeverAccepted {
				count++ // a consequence of the finding that refuses the document
			}
			if i < 0 || len(r.Findings) != count {
				t.Fatalf("the findings are %v", r.Findings)
			}
			f := r.Findings[i]
			if f.At.File != file || f.At.Line != line || f.At.Column == 0 && f.Code != config.Unreadable {
				t.Errorf("it is reported at %s, not at line %d: %s", f.At, line, f.Problem)
			}
			if f.Message == "" || f.Remedy == "" || f.Name != info.Name {
				t.Errorf("it lacks words or a remedy: %+v", f)
			}
		})
	}
}

// A refused file and fields without effect are reported.
func TestMeshConfigurationIsAnalyzed(t *testing.T) {
	for name, tc := range map[string]struct {
		text, field string
		code        config.Code
	}{
		"unknown field":          {"trustDomain: shop.example\nproxyHttpPorrt: 1 # here\n", "", config.MeshConfigRefused},
		"no YAML":                {"trustDomain: shop.example\nproxyHttpPort: a: 1 # here\n", "", config.MeshConfigRefused},
		"a value out of range":   {"trustDomain: shop.example\nproxyHttpPort: 70000 # here\n", "", config.MeshConfigRefused},
		"a value deeper down":    {"tcpKeepalive:\n  time: 5s\n  interval: -1s # here\n", "", config.MeshConfigRefused},
		"two providers":          {"extensionProviders:\n- {name: a, zipkin: {service: a.b, port: 1}}\n- {name: a, zipkin: {service: a.b, port: 1}} # here\n", "", config.MeshConfigRefused},
		"field without effect":   {"trustDomain: shop.example\ningressClass: x # here\n", "ingressClass", config.NoEffect},
		"one deeper down":        {"extensionProviders:\n- name: a\n  opentelemetry:\n    service: a.b\n    port: 1\n    resource_detectors: {environment: {}} # here\n", "extensionProviders[0].opentelemetry.resourceDetectors", config.NoEffect},
		"a provider of no Envoy": {"extensionProviders:\n- name: a # here\n  lightstep: {service: a.b, port: 1}\n", "extensionProviders[0]", config.NoEffect},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			docs, file := filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "mesh.yml")
			if err := errors.Join(os.WriteFile(docs, []byte(shop), 0o600), os.WriteFile(file, []byte(tc.text), 0o600)); err != nil {
				t.Fatal(err)
			}
			r := analyze(t, Config{Paths: []string{docs}, MeshFile: file})
			if len(r.Findings) != 1 {
				t.Fatalf("the findings are %v", r.Findings)
			}
			f, line := r.Findings[0], 1+strings.Count(tc.text[:strings.Index(tc.text, here)], "\n")
			if f.Code != tc.code || f.Field != tc.field || f.At.File != file || f.At.Line != line || f.Remedy == "" {
				t.Errorf("it is %s %q at %s, not %s at line %d: %v", f.Code, f.Field, f.At, tc.code, line, f.Problem)
			}
		})
	}
	known := config.Problem{Code: config.NoEffect, Severity: config.Warning, At: config.Position{File: "mesh.yaml", Line: 4}, Field: "spec.mesh.ingressClass"}
	if r := analyze(t, Config{Paths: []string{t.TempDir()}, MeshProblems: []config.Problem{known}}); len(r.Findings) != 1 || r.Findings[0].Problem != known {
		t.Errorf("findings of an already parsed mesh configuration: %v", r.Findings)
	}
	if _, err := Analyze(Config{Paths: []string{t.TempDir()}, MeshFile: "/does/not/exist"}); err == nil {
		t.Error("a missing file is accepted")
	}
}
