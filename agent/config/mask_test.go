package config

import "testing"

func TestSettingsThatMayBeSecretAreNotShown(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"metadata.PASSPHRASE", "abc", maskedValue},
		{"metadata.REGISTRY_AUTH", "abc", maskedValue},
		{"metadata.DB_PASS", "abc", maskedValue},
		{"metadata.SESSION_COOKIE", "abc", maskedValue},
		{"metadata.J", `{"password":"abc","team":"books"}`, `{"password":"[redacted]","team":"books"}`},
		{"metadata.MODULE", "https://b.s3.example/m.wasm?X-Amz-Signature=abc", "https://b.s3.example/m.wasm[redacted]"},
		{"tokens.file", "/var/run/secrets/tokens/istio-token", "/var/run/secrets/tokens/istio-token"},
		{"metadata.DB_PASSWORD_V2", "abc", maskedValue},
		{"metadata.GITHUB_TOKEN_1", "abc", maskedValue},
		{"metadata.SECRET_VALUE", "abc", maskedValue},
		{"metadata.DB_PWD", "abc", maskedValue},
		{"metadata.ENCRYPTION_KEY", "abc", maskedValue},
		{"label db-password", "abc", maskedValue},
		{"metadata.J", `{"labels":{"api-token":"abc"},"team":"books"}`, `{"labels":{"api-token":"[redacted]"},"team":"books"}`},
		{"metadata.DEPLOY", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "[redacted]"},
		{"metadata.CLUSTER_ID", "Kubernetes", "Kubernetes"},
		{"metadata.CERT_SIGNER", "clusterissuers.cert-manager.io/example", "clusterissuers.cert-manager.io/example"},
		{"metadata.PUBLIC_KEY", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A"},
		{"metadata.SECRET_NAME", "gateway-certificate", "gateway-certificate"},
		{"metadata.TOKEN_AUDIENCE", "istio-ca", "istio-ca"},
		{"metadata.TLS_CLIENT_KEY", "/etc/certs/key.pem", "/etc/certs/key.pem"},
		{"metadata.COMPASS", "north", "north"},
		{"proxyConfig.bypass", "all", "all"},
	} {
		if got := maskValue(c.name, c.value); got != c.want {
			t.Errorf("%s=%s is shown as %q; want %q", c.name, c.value, got, c.want)
		}
	}
}
