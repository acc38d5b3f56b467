package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestServicesAreReachedByEveryProtocol(t *testing.T) {
	runRows(t, []row{
		{name: "http and its other versions", check: func(w *world, host string) error {
			for _, port := range []string{"80", "82"} {
				for _, h2 := range []bool{false, true} {
					got, err := w.ask("client", request{URL: "http://" + host + ":" + port + "/a?b=c", H2: h2})
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
		{name: "tcp and server first", check: func(w *world, host string) error {
			for port, lines := range map[string]int{"9000": 1, "3306": 2} {
				heard, err := w.say("client", host+":"+port, "hello", lines)
				if err != nil {
					return fmt.Errorf("port %s: %w", port, err)
				}
				if last := heard[lines-1]; !strings.HasSuffix(last, "heard hello") {
					return fmt.Errorf("port %s: %q", port, heard)
				}
			}
			return nil
		}},
		{name: "grpc", check: func(w *world, host string) error {
			server, err := w.checkGRPC("client", host+":7000")
			if err == nil && server != "v1" && server != "v2" {
				err = fmt.Errorf("%q answered", server)
			}
			return err
		}},
		{name: "tls of the application", check: func(w *world, host string) error {
			got, err := w.getTLS("client", host+":443", "server.example")
			if err == nil && got.Server == "" {
				err = fmt.Errorf("%s", toJSON(got))
			}
			return err
		}},
		{name: "a host outside of the mesh", docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST-outside}
spec:
  hosts: [$HOST.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: $OUTSIDE_HTTP}]
  endpoints: [{address: $OUTSIDE}]
`, check: func(w *world, host string) error {
			got, err := w.expect(200, "client", "http://"+host+".example/")
			if err == nil && got.Server != "outside" {
				err = fmt.Errorf("%s", toJSON(got))
			}
			return err
		}},
	})
}
