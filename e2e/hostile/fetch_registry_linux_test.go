package hostile

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// registryAttacks have a server of Wasm modules choose addresses from which an agent fetches.
var registryAttacks = []attack{{
	name:     "a registry of Wasm modules leads an agent to a metadata service or to loopback",
	position: tenant,
	limit:    "no connection to them: by the token server, with GET and POST, by redirects of each request, by name and address",
	service:  "a module of a registry with a token server is fetched",
	run:      leadAgentByRegistry,
}}

const (
	registryAddress = "192.0.2.20"
	// ownName resolves to the loopback address of the agent's machine.
	ownName = "own.tenant.example"
	// blockedFetch is a part of the agent's error.
	blockedFetch = "fetches from this address are blocked"
)

// imageServer is a registry with one module, whose requests an attack may answer first.
type imageServer struct {
	module   []byte
	blobs    atomic.Int32
	override func(w http.ResponseWriter, r *http.Request) (answered bool)
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.override != nil && s.override(w, r) {
		return
	}
	configuration := []byte("{}")
	switch {
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
			`"config":{"mediaType":"application/vnd.wasm.config.v0+json","digest":%q,"size":%d},`+
			`"layers":[{"mediaType":"application/wasm","digest":%q,"size":%d}]}`, digestOf(configuration), len(configuration), digestOf(s.module), len(s.module))
	case strings.HasSuffix(r.URL.Path, digestOf(configuration)):
		_, _ = w.Write(configuration)
	case strings.HasSuffix(r.URL.Path, digestOf(s.module)):
		s.blobs.Add(1)
		_, _ = w.Write(s.module)
	}
}

// challenge answers with the address of a token server.
func challenge(w http.ResponseWriter, realm string) bool {
	w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="images"`)
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// redirectPart redirects the requests whose path contains a text.
func redirectPart(part, target string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) {
			return false
		}
		http.Redirect(w, r, target, http.StatusTemporaryRedirect)
		return true
	}
}

func requireToken(realm string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool { return challenge(w, realm) }
}

// serveImage serves a registry, and returns it with its address.
func (m *cloudMachine) serveImage(override func(http.ResponseWriter, *http.Request) bool) (*imageServer, string) {
	m.t.Helper()
	// An empty module that Envoy's V8 loads.
	module, err := base64.StdEncoding.DecodeString("AGFzbQEAAAABCQJgAABgAX8BfwMDAgABBQMBAAEHLQMXcHJveHlfYWJpX3ZlcnNpb25fMF8yXzEAAAZtYWxsb2MAAQZtZW1vcnkCAAoJAgIACwQAQQAL")
	if err != nil {
		m.t.Fatal(err)
	}
	s := &imageServer{module: module, override: override}
	return s, m.serve(registryAddress+":0", s.ServeHTTP)
}

func leadAgentByRegistry(t *testing.T) {
	m := newCloudMachine(t, registryAddress)
	m.write("hosts", "127.0.0.1 localhost "+ownName+"\n"+metadataAddress+" "+metadataName+"\n")
	m.serve("127.0.0.1:80", func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a server on loopback got %s %s", r.Method, r.URL)
	})
	tokens := m.serve(registryAddress+":0", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+metadataName+"/token", http.StatusTemporaryRedirect)
	})
	_, other := m.serveImage(requireToken("http://" + ownName + "/token"))
	page := m.serve(registryAddress+":0", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+strings.TrimPrefix(r.URL.Path, "/")+"/", http.StatusFound)
	})
	urls := map[string]string{"page-named": "http://" + page + "/" + ownName, "page-address": "http://" + page + "/127.0.0.1"}
	for name, override := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"realm-metadata":   requireToken("http://" + metadataName + "/token"),
		"realm-own":        requireToken("http://" + ownName + "/token"),
		"realm-posted":     requireToken("http://" + ownName + "/quitquitquit"),
		"realm-address":    requireToken("http://" + metadataAddress + "/token"),
		"realm-loopback":   requireToken("http://127.0.0.1/token"),
		"realm-redirected": requireToken("http://" + tokens + "/token"),
		"manifest":         redirectPart("/manifests/", "http://"+ownName+"/"),
		"manifest-address": redirectPart("/manifests/", "http://127.0.0.1/"),
		"other-registry":   redirectPart("/manifests/", "http://"+other+"/v2/module/manifests/v1"),
		"blob":             redirectPart("/blobs/", "http://"+metadataName+"/"),
		"blob-own":         redirectPart("/blobs/", "http://"+ownName+"/"),
	} {
		_, at := m.serveImage(override)
		urls[name] = "oci://" + at + "/module:v1"
	}
	// Here the registry's library reports another error: it refuses the address itself, or continues without a token.
	otherError := map[string]bool{"realm-address": true, "realm-loopback": true, "manifest-address": true, "other-registry": true}

	var good *imageServer
	var goodAddress string
	good, goodAddress = m.serveImage(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			fmt.Fprint(w, `{"token": "good"}`)
			return true
		}
		return r.Header.Get("Authorization") != "Bearer good" && challenge(w, "http://"+r.Host+"/token")
	})
	documents := strings.Replace(wasmGateway, "WASM_INSECURE_REGISTRIES: 127.0.0.1", `WASM_INSECURE_REGISTRIES: "*"`, 1)
	plugin := func(name, url string) {
		documents += fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: %[1]s, namespace: tenant}\n"+
			"spec: {url: %[2]q, failStrategy: FAIL_OPEN, imagePullSecret: %[1]s}\n---\n", name, url)
		// With an identity token, the request to the token server is a POST.
		secret := fmt.Sprintf(`{"auths": {%q: {"identitytoken": "zq"}}}`, strings.TrimSuffix(strings.TrimPrefix(url, "oci://"), "/module:v1"))
		if name != "realm-posted" {
			secret = `{"auths": {}}`
		}
		documents += fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: tenant}\ntype: kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: %s}\n---\n",
			name, base64.StdEncoding.EncodeToString([]byte(secret)))
	}
	plugin("good", "oci://"+goodAddress+"/module:v1")
	for name, url := range urls {
		plugin(name, url)
	}
	m.write("config/tenant.yaml", documents)
	log := m.run("pilotfish", "up", "-f", m.write("mesh.yaml", wasmMesh), "--no-capture", "--verbose", "--runtime-dir", m.dir+"/run",
		"--envoy-path", testenv.Envoy(t))
	for name := range urls {
		texts := []string{"a filter's module cannot be fetched", "tenant." + name + " "}
		if !otherError[name] {
			texts = append(texts, blockedFetch)
		}
		awaitLog(t, log, texts...)
	}
	testenv.Eventually(t, "the module of the good registry is fetched", func() error {
		if good.blobs.Load() == 0 {
			return errors.New("its layer was not requested")
		}
		return nil
	})
	awaitLog(t, log, "is up")
}
