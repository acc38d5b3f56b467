package config

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

func TestNamedSocketMustBeServed(t *testing.T) {
	testenv.InDir(t, nil)
	in := env("WORKLOAD_IDENTITY_SOCKET_FILE=spire")
	in.DetectExternalServer = func(string, string, bool) sds.ExternalServer { return sds.ExternalNone }
	if _, err := Resolve(in); err == nil || !strings.Contains(err.Error(), "no process listens") {
		t.Errorf("without it: %v", err)
	}
	for found, want := range map[sds.ExternalServer][3]string{
		sds.ExternalSDS:         {"./var/run/secrets/workload-spiffe-uds/spire", "./var/run/secrets/credential-uds/files-socket", "./var/run/secrets/credential-uds/files-socket"},
		sds.ExternalWorkloadAPI: {"./var/run/secrets/credential-uds/files-socket", "./var/run/secrets/credential-uds/files-socket", ""},
	} {
		in.DetectExternalServer = func(string, string, bool) sds.ExternalServer { return found }
		c := resolve(t, in).Certificates
		if got := [3]string{c.envoySocket(), c.OwnSocket(), c.filesSocket()}; got != want || (c.WorkloadAPI != "") != (found == sds.ExternalWorkloadAPI) {
			t.Errorf("%s: sockets %q, API %q", found, got, c.WorkloadAPI)
		}
	}
}

func TestGatewaySecretServerIsReportedToControlPlane(t *testing.T) {
	testenv.InDir(t, nil)
	in := env()
	in.DetectExternalServer = func(string, string, bool) sds.ExternalServer { return sds.ExternalNone }
	told := func() any {
		m := resolve(t, in).BootstrapConfig().Metadata
		return m["credential"]
	}
	if v := told(); v != nil {
		t.Errorf("without it: %v", v)
	}
	if err := os.MkdirAll(filepath.Dir(gatewaySocket), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", gatewaySocket)
	if err != nil {
		t.Fatal(err)
	}
	if v := told(); v != "true" {
		t.Errorf("with it: %v", v)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if v := told(); v != nil {
		t.Errorf("with a socket without a listener: %v", v)
	}
}

func TestIdentityFilesInIstioOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		files []string
		env   []string
		want  string
	}{
		"none":                  {},
		"mounted":               {files: []string{"etc/certs"}, want: "./etc/certs"},
		"identity first":        {files: []string{"etc/certs", "var/run/secrets/workload-spiffe-credentials"}, want: identityFiles},
		"not there yet":         {env: []string{"FILE_MOUNTED_CERTS=true"}, want: "./etc/certs"},
		"what we wrote":         {files: []string{"etc/certs"}, env: []string{"OUTPUT_CERTS=etc/../etc/certs"}},
		"what we wrote, linked": {files: []string{"etc/certs"}, env: []string{"OUTPUT_CERTS=link"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for _, dir := range tt.files {
				files[dir+"/cert-chain.pem"] = "x"
			}
			testenv.InDir(t, files)
			if err := os.Symlink("etc/certs", "link"); err != nil {
				t.Fatal(err)
			}
			if got := resolve(t, env(tt.env...)).Certificates.Files; got != tt.want {
				t.Errorf("the identity files are in %q, want %q", got, tt.want)
			}
		})
	}
}
