package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
)

func someCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// roundTrip checks that an encoded resource is decoded unchanged.
func roundTrip(t *testing.T, r *Resource) {
	t.Helper()
	text, err := Encode(r)
	if err != nil {
		t.Fatalf("%s: %v", r.Key, err)
	}
	again, problems := Parse("kept", text)
	if len(again) != 1 || !again[0].Equal(r) || !again[0].Created.Equal(r.Created) || again[0].APIVersion != r.APIVersion {
		t.Errorf("%s is encoded as %s\nand decoded as %v, %v", r.Key, text, again, problems)
	}
}

func TestEncodedDocumentsAreDecodedUnchanged(t *testing.T) {
	for _, name := range samples(t) {
		resources, _ := Parse(name, readSample(t, name))
		for _, r := range resources {
			roundTrip(t, r)
		}
	}
	for _, text := range []string{
		wrap("DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: c, ttl: 0s}, ringHash: {minimumRingSize: 9007199254740993}}}, outlierDetection: {consecutive5xxErrors: 7, interval: 1h0m0.000000001s}}}"),
		wrap("PeerAuthentication", "{selector: {matchLabels: {a: b}}, portLevelMtls: {80: {mode: DISABLE}}}"),
		wrap("VirtualService", "{hosts: [a], http: [{match: [{headers: {x: {}, y: {exact: \"\\u0001<é\"}}}], fault: {abort: {httpStatus: 500, percentage: {value: 0.1}}}, route: [{destination: {host: a}}]}]}"),
		wrap("EnvoyFilter", "{configPatches: [{applyTo: CLUSTER, match: {context: ANY}, patch: {operation: MERGE, value: {a: 1, b: 0.5, c: [x, true, null, {d: 4294967295}], e: \"1\", f: {}}}}]}"),
		wrap("Sidecar", "{ingress: [{port: {number: 80, protocol: HTTP, name: a}, defaultEndpoint: 127.0.0.1:80, captureMode: NONE}], egress: [{hosts: [./*]}]}"),
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {ca.crt: \"" + strings.ReplaceAll(someCertificate(t), "\n", "\\n") + "\"}",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {.dockerconfigjson: '{\"auths\": {\"registry.example\": {\"auth\": \"bWU6eA==\"}}}'}",
		wrap("Service", "{ports: [{port: 80, targetPort: http}], clusterIP: None}"),
		wrap("Service", `{ports: [{port: 80}], clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7, "fd00::7"]}`),
	} {
		resources, problems := Parse("f", []byte(text))
		if len(resources) != 1 {
			t.Fatalf("%s: %v", text, problems)
		}
		roundTrip(t, resources[0])
	}
}
