//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// compareIstiod measures this control plane and Istio's alternately, with the same files, clients and changes. It prints
// the median of the ratios of all turns.
func (b *bench) compareIstiod(ctx context.Context) error {
	if b.istiod == "" {
		return errors.New("set -istiod to the path of Istio's pilot-discovery")
	}
	return b.eachSize(func(services, proxies int) error { return b.compareIstiodWith(ctx, services, proxies) })
}

func (b *bench) compareIstiodWith(ctx context.Context, services, proxies int) error {
	var ours, theirs [][]planeCost
	for turn := range b.turns {
		for _, side := range []struct {
			name string
			of   planeOf
			into *[][]planeCost
		}{{"pilotfish", b.pilotfishPlane, &ours}, {"istiod", b.istiodPlane, &theirs}} {
			fmt.Printf("turn %d, %s: %d services of %d endpoints, %d proxies\n", turn+1, side.name, services, planeEndpoints, proxies)
			costs, err := b.measurePlane(ctx, services, proxies, side.of)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			*side.into = append(*side.into, costs)
		}
	}
	fmt.Printf("ratios of istiod to pilotfish, medians of %d turns\n", b.turns)
	for i, c := range ours[0] {
		of := func(field func(planeCost) float64) float64 {
			return ratio(columnOf(theirs, i, field), columnOf(ours, i, field))
		}
		fmt.Printf("  %-18s time x%-6.1f CPU x%-6.1f memory at most so far x%-5.1f", c.what,
			of(func(c planeCost) float64 { return ms(c.time) }), of(func(c planeCost) float64 { return ms(c.cpu) }),
			of(func(c planeCost) float64 { return c.peak }))
		if c.bytes > 0 { // 0 for the start of the control plane
			fmt.Printf(" bytes a proxy x%.1f", of(func(c planeCost) float64 { return c.bytes }))
		}
		fmt.Println()
	}
	return nil
}

func columnOf(turns [][]planeCost, i int, field func(planeCost) float64) (out []float64) {
	for _, costs := range turns {
		out = append(out, field(costs[i]))
	}
	return out
}

// istiodPlane returns the command that starts Istio's control plane with the files of the mesh. istiod requires a
// Kubernetes API; it uses an emptyKubernetes.
func (b *bench) istiodPlane(ctx context.Context, dir string, mesh *planeMesh) (planeProgram, error) {
	api := &emptyKubernetes{made: map[string]json.RawMessage{}}
	address, err := api.serve(ctx)
	if err != nil {
		return planeProgram{}, err
	}
	config, err := writeKubeconfig(dir, address)
	if err != nil {
		return planeProgram{}, err
	}
	grpc, web, err := freePorts()
	if err != nil {
		return planeProgram{}, err
	}
	cmd := exec.CommandContext(ctx, b.istiod, "discovery", "--configDir", mesh.dir, "--kubeconfig", config, "--grpcAddr", "127.0.0.1:"+grpc,
		"--httpAddr", "127.0.0.1:"+web, "--monitoringAddr", "", "--httpsAddr", "", "--secureGRPCAddr", "", "--ctrlz_port", "0",
		"--log_output_level", "default:error")
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "POD_NAME=istiod", "POD_NAMESPACE=istio-system",
		"ISTIO_KUBE_CLIENT_CONTENT_TYPE=json", "ENABLE_LEADER_ELECTION=false", "PILOT_ENABLE_GATEWAY_API=false"}
	return planeProgram{cmd, "127.0.0.1:" + grpc, "http://127.0.0.1:" + web + "/ready"}, nil
}

// writeKubeconfig writes a kubeconfig for the API at an address, and returns its path.
func writeKubeconfig(dir, address string) (path string, err error) {
	path = filepath.Join(dir, "kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: empty,
  clusters: [{name: empty, cluster: {server: "http://%s"}}], users: [{name: empty, user: {}}],
  contexts: [{name: empty, context: {cluster: empty, user: empty}}]}`, address), 0o600)
}

// serve serves the parts of the Kubernetes API that istiod needs to start: empty lists, watches without events, the
// creation of objects and the review of tokens, until the context ends.
func (k *emptyKubernetes) serve(ctx context.Context) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // returns when the server is closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return listener.Addr().String(), nil
}

// emptyKubernetes is a fake API server that contains only objects created through it.
type emptyKubernetes struct {
	mu   sync.Mutex
	made map[string]json.RawMessage // created objects by path
}

func (k *emptyKubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body)) // the client may be disconnected
	}
	query := r.URL.Query()
	switch {
	case r.URL.Path == "/version":
		answer(http.StatusOK, `{"major": "1", "minor": "34", "gitVersion": "v1.34.0"}`)
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		answer(http.StatusCreated, `{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": {"authenticated": true, "audiences": ["istio-ca"],
			"user": {"username": "system:serviceaccount:default:default", "groups": ["system:serviceaccounts", "system:serviceaccounts:default"]}}}`)
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		k.make(r, answer)
	case r.Method != http.MethodGet:
		answer(http.StatusMethodNotAllowed, statusOf("MethodNotAllowed", http.StatusMethodNotAllowed))
	case query.Get("sendInitialEvents") != "": // clients fall back to list and watch
		answer(http.StatusUnprocessableEntity, statusOf("Invalid", http.StatusUnprocessableEntity))
	case query.Get("watch") != "":
		answer(http.StatusOK, "")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case k.get(r.URL.Path) != nil:
		answer(http.StatusOK, string(k.get(r.URL.Path)))
	case isObject(r.URL.Path):
		answer(http.StatusNotFound, statusOf("NotFound", http.StatusNotFound))
	case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
		answer(http.StatusOK, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	default:
		answer(http.StatusOK, `{"metadata": {"resourceVersion": "1"}, "items": []}`)
	}
}

func (k *emptyKubernetes) get(path string) json.RawMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made[path]
}

func (k *emptyKubernetes) make(r *http.Request, answer func(int, string)) {
	var object json.RawMessage
	var named struct{ Metadata struct{ Name string } }
	if json.NewDecoder(r.Body).Decode(&object) != nil || json.Unmarshal(object, &named) != nil {
		answer(http.StatusBadRequest, statusOf("BadRequest", http.StatusBadRequest))
		return
	}
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + named.Metadata.Name
	}
	k.mu.Lock()
	k.made[path] = object
	k.mu.Unlock()
	answer(http.StatusCreated, string(object))
}

func statusOf(reason string, code int) string {
	return fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)
}

// isObject reports whether an API path names one object, rather than a collection.
func isObject(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2 // api/v1
	if parts[0] == "apis" {
		skip = 3
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	return len(parts) > 1
}
