package agent

import "testing"

func TestSettingsThatMayBeSecretAreNotShown(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"metadata.PASSPHRASE", "abc", notShown},
		{"metadata.REGISTRY_AUTH", "abc", notShown},
		{"metadata.DB_PASS", "abc", notShown},
		{"metadata.SESSION_COOKIE", "abc", notShown},
		{"metadata.J", `{"password":"abc","team":"books"}`, `{"password":"[redacted]","team":"books"}`},
		{"metadata.MODULE", "https://b.s3.example/m.wasm?X-Amz-Signature=abc", "https://b.s3.example/m.wasm[redacted]"},
		{"tokens.file", "/var/run/secrets/tokens/istio-token", "/var/run/secrets/tokens/istio-token"},
		{"metadata.COMPASS", "north", "north"},
		{"proxyConfig.bypass", "all", "all"},
	} {
		if got := shown(c.name, c.value); got != c.want {
			t.Errorf("%s=%s is shown as %q; want %q", c.name, c.value, got, c.want)
		}
	}
}
