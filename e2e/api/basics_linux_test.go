package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestServicesAreReachedByEveryProtocol(t *testing.T) {
	runRows(t, []row{
		{name: "port that is excluded from redirection", ports: []string{"http"}, docs: "\napiVersion: v1\nkind: Service\nmetadata: {name: $HOST-excluded}\nspec: {selector: {app: server}, ports: [{name: http, port: 3399, targetPort: 8080}]}\n",
			check: func(w *testMesh, host string) error {
				// The sidecar of client is redirected to, and that of other is not.
				for from, proxied := range map[string]bool{"client": true, "other": false} {
					got, err := w.get(from, "http://"+host+"-excluded.default:3399/")
					if err != nil || got.Status != http.StatusOK || got.Server == "" {
						return fmt.Errorf("from %s: %s %w", from, toJSON(got), err)
					}
					if has := got.Echo.Header.Get("X-Forwarded-Client-Cert") != ""; has != proxied {
						return fmt.Errorf("from %s: the caller's sidecar forwarded the request: %t, want %t", from, has, proxied)
					}
				}
				return nil
			}},
		{name: "http and its other versions", ports: []string{"http", "http2"}, check: func(w *testMesh, host string) error {
			for _, port := range []string{"80", "82"} {
				for _, h2 := range []bool{false, true} {
					got, err := w.send("client", request{URL: "http://" + host + ":" + port + "/a?b=c", H2: h2})
					if err != nil {
						return fmt.Errorf("port %s, h2 %t: %w", port, h2, err)
					}
					if got.Status != http.StatusOK || got.Path != "/a?b=c" || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
						return fmt.Errorf("port %s, h2 %t: %s", port, h2, toJSON(got))
					}
				}
			}
			return nil
		}},
		{name: "tcp and server first", ports: []string{"tcp", "mysql"}, check: func(w *testMesh, host string) error {
			for port, lines := range map[string]int{"9000": 1, "3306": 2} {
				received, err := w.sendLine("client", host+":"+port, "hello", lines)
				if err != nil {
					return fmt.Errorf("port %s: %w", port, err)
				}
				if last := received[lines-1]; !strings.HasSuffix(last, "heard hello") {
					return fmt.Errorf("port %s: %q", port, received)
				}
			}
			return nil
		}},
		{name: "undeclared ports", ports: []string{"http"}, docs: `
apiVersion: v1
kind: Service
metadata: {name: $HOST-more}
spec:
  selector: {app: server}
  ports:
  - {name: a, port: 7001, targetPort: 7000}
  - {name: b, port: 8444, targetPort: 8443}
  - {name: c, port: 81, targetPort: 8081}
  - {name: d, port: 9001}
  - {name: e, port: 3307}
`, check: func(w *testMesh, host string) error {
			host += "-more"
			for _, h2 := range []bool{false, true} {
				got, err := w.send("client", request{URL: "http://" + host + ":81/", H2: h2})
				if err != nil || !strings.Contains(got.Echo.Header.Get("X-Forwarded-Client-Cert"), "sa/client") {
					return fmt.Errorf("h2 %t: %s %v", h2, toJSON(got), err)
				}
			}
			for port, lines := range map[string]int{"9001": 1, "3307": 2} {
				received, err := w.sendLine("client", host+":"+port, "hello", lines)
				if err != nil || !strings.HasSuffix(received[lines-1], "heard hello") {
					return fmt.Errorf("port %s: %q %v", port, received, err)
				}
			}
			if server, err := w.checkGRPC("client", host+":7001"); err != nil || server == "" {
				return fmt.Errorf("%q answered, %v", server, err)
			}
			got, err := w.getTLS("client", host+":8444", "server.example")
			if err == nil && got.Server == "" {
				err = fmt.Errorf("%s", toJSON(got))
			}
			return err
		}},
		{name: "grpc", ports: []string{"grpc"}, check: func(w *testMesh, host string) error {
			server, err := w.checkGRPC("client", host+":7000")
			if err == nil && server != "v1" && server != "v2" {
				err = fmt.Errorf("%q answered", server)
			}
			return err
		}},
		{name: "what no service lists", ports: []string{"http"}, docs: ``, check: func(w *testMesh, host string) error {
			// By the address of the workload: the client's Envoy knows neither the protocol of the port nor whether a
			// sidecar serves it.
			to := w.instance("guarded").Proxy.String()
			if got, err := w.expectStatus(200, "client", "http://"+to+":8082/x"); err != nil || got.Server != "guarded" {
				return fmt.Errorf("%s %w", toJSON(got), err)
			}
			received, err := w.sendLine("client", to+":9000", "hello", 1)
			if err == nil && received[0] != "guarded heard hello" {
				err = fmt.Errorf("%q", received)
			}
			return err
		}},
		{name: "tls of the application", ports: []string{"tls"}, check: func(w *testMesh, host string) error {
			got, err := w.getTLS("client", host+":443", "server.example")
			if err == nil && got.Server == "" {
				err = fmt.Errorf("%s", toJSON(got))
			}
			return err
		}},
		{name: "a host outside of the mesh", ports: []string{"http"}, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-outside}
spec:
  hosts: [$HOST.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_HTTP}]
  endpoints: [{address: $OUTSIDE}]
`, check: func(w *testMesh, host string) error {
			got, err := w.expectStatus(200, "client", "http://"+host+".example/")
			if err == nil && got.Server != "outside" {
				err = fmt.Errorf("%s", toJSON(got))
			}
			return err
		}},
	})
}
