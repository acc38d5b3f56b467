package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// asInjected is the value of ISTIO_KUBE_APP_PROBERS that Istio's injector writes for a pod with all kinds of probes.
const asInjected = `{"/app-health/web/livez":{"httpGet":{"path":"/live?full=1","port":8080,"scheme":"HTTP","httpHeaders":[{"name":"X-Probe","value":"a"}]},"timeoutSeconds":1},` +
	`"/app-health/web/readyz":{"httpGet":{"path":"ready","port":8443,"host":"elsewhere","scheme":"HTTPS"},"timeoutSeconds":5},` +
	`"/app-health/db/startupz":{"tcpSocket":{"port":5432},"timeoutSeconds":2},` +
	`"/app-health/rpc/livez":{"grpc":{"port":9090,"service":"books"},"timeoutSeconds":3},` +
	`"/app-health/rpc/readyz":{"grpc":{"port":9090,"service":null},"timeoutSeconds":3},` +
	`"/app-lifecycle/web/prestopz":{"httpGet":{"path":"/stop","port":8080}}}`

func TestInjectorProbesAreParsed(t *testing.T) {
	testenv.InDir(t, nil)
	want := map[string]probe.Spec{
		"/app-health/web/livez":       {HTTP: &probe.HTTP{Host: "127.77.3.1", Port: 8080, Path: "/live?full=1"}, Timeout: time.Second},
		"/app-health/web/readyz":      {HTTP: &probe.HTTP{TLS: true, Host: "127.77.3.1", Port: 8443, Path: "ready"}, Timeout: 5 * time.Second},
		"/app-health/db/startupz":     {TCP: &probe.TCP{Host: "127.77.3.1", Port: 5432}, Timeout: 2 * time.Second},
		"/app-health/rpc/livez":       {GRPC: &probe.GRPC{Host: "127.77.3.1", Port: 9090, Service: "books"}, Timeout: 3 * time.Second},
		"/app-health/rpc/readyz":      {GRPC: &probe.GRPC{Host: "127.77.3.1", Port: 9090}, Timeout: 3 * time.Second},
		"/app-lifecycle/web/prestopz": {HTTP: &probe.HTTP{Host: "127.77.3.1", Port: 8080, Path: "/stop"}},
	}
	c := resolve(t, env("INSTANCE_IP=127.77.3.1", "ISTIO_KUBE_APP_PROBERS="+asInjected))
	if diff := cmp.Diff(want, c.AppProbes.Paths); diff != "" {
		t.Errorf("probes (-want +got):\n%s", diff)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings: %q", c.Warnings)
	}
}

func TestProbesFollowSettings(t *testing.T) {
	testenv.InDir(t, nil)
	const one = `ISTIO_KUBE_APP_PROBERS={"/app-health/web/livez":{"tcpSocket":{"port":1}}}`
	for _, c := range []struct {
		env              string
		host             string
		http2, keepAlive bool
	}{
		{"", "127.77.3.1", true, false},
		{"ISTIO_ENABLE_HTTP2_PROBING=false", "127.77.3.1", false, false},
		{"ENABLE_PROBE_KEEPALIVE_CONNECTIONS=true", "127.77.3.1", true, true},
		{"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION=true", "localhost", true, false},
		{"ISTIO_META_APP_ADDRESS=127.77.3.2", "127.77.3.2", true, false},
	} {
		got := resolve(t, env("INSTANCE_IP=127.77.3.1", one, c.env)).AppProbes
		host := got.Paths["/app-health/web/livez"].TCP.Host
		if host != c.host || got.HTTP2 != c.http2 || got.KeepAlive != c.keepAlive {
			t.Errorf("%s: %s, HTTP/2 %v, keep-alive %v", c.env, host, got.HTTP2, got.KeepAlive)
		}
	}
}

func TestInvalidProbesAreRejected(t *testing.T) {
	testenv.InDir(t, nil)
	for _, c := range []struct {
		name, probers string
		want          []string
	}{
		{"not JSON", `{`, []string{"JSON of Istio's injector"}},
		{"another kind", `[]`, []string{"JSON of Istio's injector"}},
		{"two values", `{} {}`, []string{"after the JSON value, at byte"}},
		{"null", `{"/app-health/web/livez":null}`, []string{"/app-health/web/livez", "null"}},
		{"path", `{"/app-health/web/alive":{"tcpSocket":{"port":1}}}`, []string{`"/app-health/web/alive"`, "livez"}},
		{"path of two containers", `{"/app-health/a/b/livez":{"tcpSocket":{"port":1}}}`, []string{`"/app-health/a/b/livez"`}},
		{"no kind", `{"/app-health/web/livez":{"timeoutSeconds":1}}`, []string{"0 of httpGet, tcpSocket and grpc", "exactly one"}},
		{"two kinds", `{"/app-health/web/livez":{"tcpSocket":{"port":1},"grpc":{"port":2}}}`, []string{"2 of httpGet"}},
		{"no port", `{"/app-health/web/livez":{"httpGet":{"path":"/"}}}`, []string{"port", "1 to 65535"}},
		{"port 0", `{"/app-health/web/livez":{"tcpSocket":{"port":0}}}`, []string{"port: 0"}},
		{"null port", `{"/app-health/web/livez":{"tcpSocket":{"port":null}}}`, []string{"port: null"}},
		{"large port", `{"/app-health/web/livez":{"grpc":{"port":65536}}}`, []string{"port: 65536"}},
		{"named port", `{"/app-health/web/livez":{"httpGet":{"port":"http"}}}`, []string{`port: "http"`}},
		{"timeout", `{"/app-health/web/livez":{"httpGet":{"port":1},"timeoutSeconds":-1}}`, []string{"timeoutSeconds: -1"}},
		{"the agent's own", `{"/app-health/web/livez":{"httpGet":{"port":15020,"path":"/app-health/web/livez"}}}`, []string{"injected twice"}},
		{"all at once", `{"/app-health/web/livez":{},"/app-health/web/readyz":{"tcpSocket":{"port":0}}}`, []string{"web/livez", "web/readyz"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Resolve(env("ISTIO_KUBE_APP_PROBERS=" + c.probers))
			for _, want := range append(c.want, "ISTIO_KUBE_APP_PROBERS") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %s: %v", want, err)
				}
			}
		})
	}
}

func TestUnknownInjectorFieldWarns(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env(`ISTIO_KUBE_APP_PROBERS={"/app-health/web/livez":{"tcpSocket":{"port":1},"newField":{}}}`))
	if len(c.AppProbes.Paths) != 1 || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "newField") {
		t.Errorf("probes %v, warnings %q", c.AppProbes.Paths, c.Warnings)
	}
}

func FuzzAppProbersAreReadOrRefused(f *testing.F) {
	for _, seed := range []string{asInjected, "", "{}", "null", `{"/app-health/web/livez":null}`, `{"/app-health/web/livez":{"httpGet":{"port":"x"}}}`,
		`{"/app-health/web/livez":{"httpGet":{"port":1,"path":"%zz\u0000"},"timeoutSeconds":2147483647}}`, `{"a":{"grpc":{"port":1e3}}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		probers, _, err := parseAppProbers(text)
		if err != nil {
			return
		}
		for path, p := range probers {
			spec, err := p.spec("127.0.0.1")
			if err != nil {
				continue
			}
			if !appProbePath().MatchString(path) || spec.Timeout < 0 || spec.String() == "nothing" {
				t.Errorf("%s: %+v", path, spec)
			}
		}
	})
}
