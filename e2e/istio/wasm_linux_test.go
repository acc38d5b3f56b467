package istio

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// module is the smallest module that Envoy accepts: an ABI version, malloc and memory.
const module = "AGFzbQEAAAABCQJgAABgAX8BfwMDAgABBQMBAAEHLQMXcHJveHlfYWJpX3ZlcnNpb25fMF8yXzEAAAZtYWxsb2MAAQZtZW1vcnkCAAoJAgIACwQAQQAL"

var running = regexp.MustCompile(`wasm\.envoy\.wasm\.runtime\.v8\.created: [1-9]`)

func plugin(url, strategy string) string {
	return `---
apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: plugin, namespace: books}
spec:
  selector: {matchLabels: {app: reviews}}
  wasm: {url: "` + url + `", failStrategy: ` + strategy + `}
`
}

// TestWasmModulesOfAnIstioMesh: istiod names a module, the agent fetches it, and Envoy runs it; where it cannot be
// fetched, the plugin's strategy decides.
func TestWasmModulesOfAnIstioMesh(t *testing.T) {
	t.Parallel()
	code, err := base64.StdEncoding.DecodeString(module)
	if err != nil {
		t.Fatal(err)
	}
	m := newMesh(t, strict)
	files := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/plugin.wasm" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(code)
	})}
	listener := m.node.listen(t, m.node.address.String()+":8000")
	ended := make(chan struct{})
	go func() { defer close(ended); _ = files.Serve(listener) }()
	t.Cleanup(func() { _ = files.Close(); <-ended })

	m.web.waitAnswer(t, http.StatusOK, "reviews")
	m.plane.write(t, "policies/all.yaml", strict+plugin("http://10.157.0.1:8000/plugin.wasm", "FAIL_CLOSE"))
	testenv.Eventually(t, "Envoy runs the module", func() error {
		body, err := m.reviews.get("http://127.0.0.1:15000/stats?filter=wasm.*created")
		if err == nil && !running.Match(body) {
			err = fmt.Errorf("Envoy counts %s", body)
		}
		return err
	})
	m.web.waitAnswer(t, http.StatusOK, "reviews")

	m.plane.write(t, "policies/all.yaml", strict+plugin("http://10.157.0.1:8000/missing.wasm", "FAIL_CLOSE"))
	m.web.waitAnswer(t, http.StatusForbidden, "RBAC")
	m.plane.write(t, "policies/all.yaml", strict+plugin("http://10.157.0.1:8000/missing.wasm", "FAIL_OPEN"))
	m.web.waitAnswer(t, http.StatusOK, "reviews")
	m.reviews.accepted(t)
}
