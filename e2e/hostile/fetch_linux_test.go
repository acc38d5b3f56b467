package hostile

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// fetchAttacks have the control plane or an agent fetch from addresses that the author of a document does not reach.
var fetchAttacks = []attack{
	{
		name:     "keys of a token issuer are fetched from a metadata service",
		position: tenant,
		limit:    "no connection to link-local, metadata or loopback addresses: direct, by redirect, by name, by discovery document",
		service:  "the keys of a reachable issuer are fetched",
		run:      fetchKeysOfMetadataService,
	},
	{
		name:     "answers of internal servers are read in errors of jwksUri",
		position: tenant,
		limit:    "no message contains text of a server",
		service:  "the errors name the cause: status code, invalid response, another issuer",
		run:      readAnswersInKeyErrors,
	},
	{
		name:     "Wasm modules are fetched from a metadata service",
		position: tenant,
		limit:    "no connection to it: direct, by redirect, by name; no message contains text of a server",
		service:  "the workload's Envoy becomes ready",
		run:      fetchModulesOfMetadataService,
	},
	{
		name:     "Wasm modules expand without limit",
		position: tenant,
		limit:    "each fetch is refused, with 384 MiB of the agent's memory, and nothing of it stays on the disk",
		service:  "the workload's Envoy becomes ready",
		run:      fetchEndlessModules,
	},
}

// keySet is a JWK set with a public key.
const keySet = `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`

const discoveryPath = "/.well-known/openid-configuration"

// keysDocument returns a RequestAuthentication whose issuer's keys are at an address.
func keysDocument(name, keys string) string {
	issuer := name + ".example"
	rule := fmt.Sprintf(`{issuer: %q, jwksUri: %q}`, issuer, keys)
	if base, ok := strings.CutSuffix(keys, discoveryPath); ok {
		rule = fmt.Sprintf(`{issuer: %q}`, base)
	}
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: %s, namespace: tenant}\nspec: {jwtRules: [%s]}\n---\n", name, rule)
}

// startSharedControlPlane runs a control plane that serves other machines, with documents, and returns its log.
func (m *cloudMachine) startSharedControlPlane(documents string, flags ...string) *testenv.Buffer {
	m.t.Helper()
	config := m.write("config/tenant.yaml", documents)
	args := []string{"control-plane", "--config-dir", config, "--state-dir", m.dir + "/state", "--address", "192.0.2.10", "--log-level", "debug"}
	return m.run("pilotfish", append(args, flags...)...)
}

// awaitLog waits until a log has a line with all the texts.
func awaitLog(t *testing.T, log *testenv.Buffer, texts ...string) {
	t.Helper()
	testenv.Eventually(t, "the log has "+strings.Join(texts, ", "), func() error {
		for line := range strings.Lines(log.String()) {
			if containsAll(line, texts) {
				return nil
			}
		}
		return fmt.Errorf("log:\n%s", log)
	})
}

func containsAll(line string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(line, text) {
			return false
		}
	}
	return true
}

func fetchKeysOfMetadataService(t *testing.T) {
	m := newCloudMachine(t, "192.0.2.10", "192.0.2.20")
	local := m.serve("127.0.0.1:80", func(http.ResponseWriter, *http.Request) { t.Error("a server on loopback was asked for keys") })
	good := m.serve("192.0.2.20:0", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, keySet) })
	redirect := m.serve("192.0.2.20:0", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+metadataAddress+"/latest", http.StatusFound)
	})
	discovery := m.serve("192.0.2.20:0", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"issuer": "http://%s", "jwks_uri": "http://%s/latest"}`, r.Host, metadataAddress)
	})
	attacks := map[string]string{
		"direct": "http://" + metadataAddress + "/latest", "mapped": "http://[::ffff:" + metadataAddress + "]/latest",
		"named": "http://" + metadataName + "/latest", "redirected": "http://" + redirect + "/keys",
		"discovered": "http://" + discovery + discoveryPath, "loopback": "http://" + local + "/keys", "unspecified": "http://0.0.0.0/keys",
	}
	documents := keysDocument("good", "http://"+good+"/keys")
	for name, at := range attacks {
		documents += keysDocument(name, at)
	}
	log := m.startSharedControlPlane(documents)
	awaitLog(t, log, "fetched the keys of a token issuer", good)
	for _, at := range attacks {
		awaitLog(t, log, "fetching the keys of a token issuer failed", at, "fetches from this address are blocked")
	}
}

func readAnswersInKeyErrors(t *testing.T) {
	m := newCloudMachine(t, "192.0.2.10", "192.0.2.20")
	discovery := func(issuer, keys string) string {
		return "http://" + m.serve("192.0.2.20:0", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, strings.ReplaceAll(issuer, "SELF", "http://"+r.Host), keys)
		}) + discoveryPath
	}
	attacks := map[string]string{ // by the message that the author gets
		"the response is not valid HTTP":                 "http://" + m.serveRaw("192.0.2.20:0", "SSH-2.0-"+internalText+"\r\n") + "/",
		"responds with status 500 Internal Server Error": "http://" + m.serveRaw("192.0.2.20:0", "HTTP/1.1 500 "+internalText+"\r\n\r\n") + "/",
		"resolving the host name":                        "http://" + m.serveRaw("192.0.2.20:0", "HTTP/1.1 302 Found\r\nLocation: http://"+internalText+".invalid/\r\n\r\n") + "/",
		"the response is not usable: JSON syntax error":  "http://" + m.serveRaw("192.0.2.20:0", "HTTP/1.1 200 OK\r\n\r\n"+internalText) + "/",
		"the discovery document of another issuer":       discovery(internalText, "http://192.0.2.20/"),
		"no jwks_uri that can be used":                   discovery("SELF", internalText),
	}
	documents, n := "", 0
	for _, at := range attacks {
		n++
		documents += keysDocument(fmt.Sprintf("attack-%d", n), at)
	}
	log := m.startSharedControlPlane(documents)
	for message, at := range attacks {
		awaitLog(t, log, "fetching the keys of a token issuer failed", at)
		if !containsAll(log.String(), []string{message}) {
			t.Errorf("no message %q for %s", message, at)
		}
	}
	if strings.Contains(log.String(), internalText) {
		t.Errorf("messages contain text of a server:\n%s", log)
	}
}

// wasmMesh has one gateway, and runs without capture in the machine's own network.
const wasmMesh = `apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: wasm-attack}
spec:
  config: config
  workloads:
    - {name: edge, namespace: tenant, type: gateway, labels: {app: edge}, ports: [{name: http, port: 8080, protocol: HTTP}]}
`

const wasmGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: tenant}
spec: {selector: {app: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: fetches, namespace: istio-system}
spec: {environmentVariables: {WASM_HTTP_REQUEST_MAX_RETRIES: "0", WASM_INSECURE_REGISTRIES: 127.0.0.1}}
---
`

func fetchModulesOfMetadataService(t *testing.T) {
	m := newCloudMachine(t, "192.0.2.20")
	redirect := m.serve("192.0.2.20:0", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+metadataAddress+"/latest", http.StatusFound)
	})
	denied := m.serveRaw("127.0.0.1:0", "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\r\n"+
		`{"errors":[{"code":"DENIED","message":"`+internalText+`"}]}`)
	documents := wasmGateway
	for name, url := range map[string]string{
		"direct": "http://" + metadataAddress + "/latest", "named": "http://" + metadataName + "/latest", "redirected": "http://" + redirect + "/",
		"raw": "http://" + m.serveRaw("192.0.2.20:0", "SSH-2.0-"+internalText+"\r\n") + "/", "module": "http://" + m.serveRaw("192.0.2.20:0", "HTTP/1.1 200 OK\r\n\r\n"+internalText) + "/",
		"registry": "oci://" + denied + "/module:v1",
	} {
		documents += fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: %s, namespace: tenant}\nspec: {url: %q, failStrategy: FAIL_OPEN}\n---\n", name, url)
	}
	m.write("config/tenant.yaml", documents)
	log := m.run("pilotfish", "up", "-f", m.write("mesh.yaml", wasmMesh), "--no-capture", "--verbose", "--runtime-dir", m.dir+"/run",
		"--envoy-path", testenv.Envoy(t))
	for _, name := range []string{"direct", "named", "redirected", "raw", "module", "registry"} {
		awaitLog(t, log, "a filter's module cannot be fetched", "tenant."+name)
	}
	awaitLog(t, log, "is up")
	if strings.Contains(log.String(), internalText[:8]) { // of a module that is none, the agent quoted the first bytes
		t.Errorf("messages contain text of a server:\n%s", log)
	}
}

// fetchEndlessModules has an agent fetch gzip that expands to far more than a module may have, by HTTP and from a registry.
func fetchEndlessModules(t *testing.T) {
	const expanded = 4 << 30 // more than the limit of an agent (256 MiB)
	m := newCloudMachine(t, "192.0.2.20")
	bomb := func(head string) []byte {
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, head) // a buffer has no errors
		zeros := make([]byte, 1<<20)
		for range expanded / len(zeros) {
			_, _ = w.Write(zeros)
		}
		_ = w.Close()
		return packed.Bytes()
	}
	module := bomb("\x00asm\x01\x00\x00\x00")
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	configuration := []byte("{}")
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
		`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}]}`,
		digest(configuration), len(configuration), digest(module), len(module))
	server := m.serve("127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			_, _ = w.Write(manifest)
		case strings.HasSuffix(r.URL.Path, digest(configuration)):
			_, _ = w.Write(configuration)
		case strings.HasSuffix(r.URL.Path, digest(module)), r.URL.Path == "/module":
			_, _ = w.Write(module)
		}
	})
	documents := wasmGateway
	for name, url := range map[string]string{"packed": "http://" + server + "/module", "image": "oci://" + server + "/module:v1"} {
		documents += fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: %s, namespace: tenant}\nspec: {url: %q, failStrategy: FAIL_OPEN}\n---\n", name, url)
	}
	m.write("config/tenant.yaml", documents)
	log := m.run("pilotfish", "up", "-f", m.write("mesh.yaml", wasmMesh), "--no-capture", "--verbose", "--runtime-dir", m.dir+"/run",
		"--envoy-path", testenv.Envoy(t))
	for _, name := range []string{"packed", "image"} {
		awaitLog(t, log, "a filter's module cannot be fetched", "tenant."+name, "larger than")
	}
	awaitLog(t, log, "is up")
	agents := 0
	for _, process := range processesIn(t, "pilotfish", m.dir+"/run") {
		agents++
		process.checkMemory(384 << 20)
	}
	if agents == 0 {
		t.Error("no agent runs")
	}
	stored := int64(0)
	_ = filepath.WalkDir(m.dir, func(_ string, entry fs.DirEntry, err error) error { // files may be removed meanwhile
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				stored += info.Size()
			}
		}
		return nil
	})
	if stored > 64<<20 {
		t.Errorf("there are %d MiB on the disk", stored>>20)
	}
}

// processesIn returns the processes of programs with a prefix that work in a directory.
func processesIn(t *testing.T, prefix, dir string) (found []*parserProcess) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline")) // it may have ended
		working, _ := os.Readlink(filepath.Join("/proc", entry.Name(), "cwd"))
		name, _, _ := strings.Cut(string(command), "\x00")
		if strings.HasPrefix(filepath.Base(name), prefix) && strings.HasPrefix(working, dir) {
			found = append(found, &parserProcess{t: t, cmd: &exec.Cmd{Process: &os.Process{Pid: pid}}})
		}
	}
	return found
}
