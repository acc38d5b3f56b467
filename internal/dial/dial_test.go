package dial

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTokenErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{filepath.Join(dir, "none"): "does not exist", empty: "is empty", dir: "directory"} {
		if _, err := ReadToken(file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadToken(%s): %v", file, err)
		}
	}
}

func TestSilentServerFailsInTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = Server{}.Connect(context.Background(), l.Addr().String(), 50*time.Millisecond)
	if err == nil {
		t.Fatal("connected to a server that does not respond")
	}
}

func TestClientCertificateOutOfDateIsNotPresented(t *testing.T) {
	dir := t.TempDir()
	tls := TLS{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	if tls.HasClientCertificate(time.Now()) {
		t.Error("a missing client certificate is reported as valid")
	}
	cert, key := testpki.New(t, "root").Workload(t, "spiffe://a/ns/b/sa/c")
	for file, content := range map[string][]byte{tls.CertFile: cert, tls.KeyFile: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !tls.HasClientCertificate(time.Now()) {
		t.Error("the valid certificate is not reported")
	}
	if tls.HasClientCertificate(time.Now().Add(48 * time.Hour)) {
		t.Error("the expired certificate is reported as valid")
	}
	config, err := tls.Config("host")
	if err != nil || len(config.Certificates) != 1 || config.ServerName != "host" {
		t.Errorf("config = %+v, %v", config, err)
	}
}
