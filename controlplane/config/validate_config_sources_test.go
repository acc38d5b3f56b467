package config

import (
	"strings"
	"testing"
)

func TestConfigSourcesOfTheMeshConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"{address: 'xds://127.0.0.1:15010'}":                              "",
		"{address: 'xds://[::1]:15010'}":                                  "",
		"{address: 'fs:///etc/config'}":                                   "",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: SIMPLE}}": "",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: MUTUAL, clientCertificate: c, privateKey: k}}": "",
		"{address: 'xds://a.example:15012'}": "PF0008: the connection is not encrypted",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: SIMPLE, insecureSkipVerify: true}}": "PF0008: the server is not verified",
		"{address: 'k8s://'}":                 "PF0006: sources of this scheme have no effect",
		"{address: 'xds://a.example'}":        "configSources[0].address: \"xds://a.example\": not the address of an xDS server",
		"{address: 'xds://a.example:1/path'}": "not the address of an xDS server",
		"{address: 'fs://etc/config'}":        "no absolute path",
		"{address: 'a.example:15010'}":        "PF0006: sources of this scheme have no effect",
		"{}":                                  "not an address",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: ISTIO_MUTUAL}}":                                        "configSources[0].tlsSettings.mode: ISTIO_MUTUAL is not supported",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: SIMPLE, credentialName: c}}":                           "tlsSettings.credentialName",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: SIMPLE, caCrl: c}}":                                    "tlsSettings.caCrl",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: MUTUAL, privateKey: k}}":                               "tlsSettings.clientCertificate",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: MUTUAL, clientCertificate: c}}":                        "tlsSettings.privateKey",
		"{address: 'xds://a.example:15012', tlsSettings: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: c}}": "tlsSettings.insecureSkipVerify",
		"{address: 'xds://127.0.0.1:15010'}, {address: 'xds://127.0.0.1:15010'}":                                       "configSources[1].address",
		"{address: 'fs:///etc/config'}, {address: 'xds://localhost:15010'}, {address: 'xds://127.0.0.2:1'}":            "",
		"{address: 'fs:///etc/config', subscribedResources: [SERVICE_REGISTRY]}":                                       "PF0006: has no effect",
	} {
		mesh, problems := ReadMesh("mesh.yaml", []byte("configSources: ["+text+"]\n"))
		var got []string
		for _, p := range problems {
			got = append(got, string(p.Code)+": "+p.Message)
		}
		switch all := strings.Join(got, "; "); {
		case want == "" && (mesh == nil || all != ""), !strings.Contains(all, want):
			t.Errorf("%s: %q, want %q", text, all, want)
		case mesh == nil && problems[0].At.Line != 1:
			t.Errorf("%s: the problem has no line: %v", text, problems[0])
		}
	}
}
