package dial

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// newJWT returns a token with the given expiry and an invalid signature.
func newJWT(end time.Time) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"sub":"me","exp":%d}`, end.Unix())) + ".c2ln"
}

func writeFile(t *testing.T, file string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCredentialsReportExpiry(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	cert, key := testpki.New(t, "root").Workload(t, "spiffe://a/ns/b/sa/c")
	server := Server{
		TokenFile: writeFile(t, filepath.Join(dir, "token"), []byte(newJWT(now.Add(-time.Minute))+"\n")),
		TLS: TLS{
			CertFile: writeFile(t, filepath.Join(dir, "cert-chain.pem"), cert),
			KeyFile:  writeFile(t, filepath.Join(dir, "key.pem"), key),
		},
	}
	found := server.Credentials()
	if len(found) != 2 || found[0].Kind != KindToken || found[1].Kind != KindClientCertificate {
		t.Fatalf("credentials %+v", found)
	}
	if p := found[0].Problem(now); !strings.Contains(p, "expired") || !strings.Contains(p, server.TokenFile) {
		t.Errorf("the expired token: %q", p)
	}
	if p := found[1].Problem(now); p != "" {
		t.Errorf("the certificate, which is valid: %q", p)
	}
	if p := found[1].Problem(now.Add(48 * time.Hour)); !strings.Contains(p, "expired") || !strings.Contains(p, server.TLS.CertFile) {
		t.Errorf("the expired certificate: %q", p)
	}
	writeFile(t, server.TLS.KeyFile, []byte("no key"))
	if p := server.Credentials()[1].Problem(now); !strings.Contains(p, server.TLS.KeyFile) {
		t.Errorf("the certificate without key: %q", p)
	}
	server.Plaintext = true
	if found := server.Credentials(); found != nil {
		t.Errorf("shown in plaintext: %+v", found)
	}
}

func TestTokensWithoutExpiryHaveNoProblem(t *testing.T) {
	for _, token := range []string{"opaque", "a.b.c", "..", "a.e30.c", "a." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":"x"}`)) + ".c"} {
		if end := tokenExpiry(token); !end.IsZero() {
			t.Errorf("%q ends at %v", token, end)
		}
	}
}

func TestConnectTriesAddressesInOrder(t *testing.T) {
	_, err := Server{Plaintext: true}.Connect(t.Context(), "127.152.1.1:1, 127.152.1.2:1", time.Second)
	if err == nil || !strings.Contains(err.Error(), "127.152.1.1:1") || !strings.Contains(err.Error(), "127.152.1.2:1") {
		t.Errorf("the error does not name both addresses: %v", err)
	}
}
