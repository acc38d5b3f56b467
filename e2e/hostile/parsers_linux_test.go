package hostile

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// parserAttacks are malformed, compressed and deeply nested inputs.
var parserAttacks = []attack{
	{
		name:     "documents expand or nest without end",
		position: tenant,
		limit:    "analyze names each file and needs less than 512 MiB; the control plane needs less than 512 MiB and logs each file",
		service:  "the other documents of the directory are in force, and so are their next edits",
		run:      documentBombs,
	},
	{
		name:     "keys of a token issuer expand without end",
		position: tenant,
		limit:    "the control plane needs less than 256 MiB and logs an error at the rule",
		service:  "the keys of another issuer are fetched",
		run:      compressedKeys,
	},
	{
		name:     "names of documents and node metadata steer the terminal",
		position: tenant,
		limit:    "no control, bidirectional or invisible character is printed",
		service:  "analyze and config show all else, with visible escapes",
		run:      steerTerminal,
	},
	{
		name:     "node metadata and labels with secrets are printed",
		position: localUser,
		limit:    "no value that looks like a secret, or has a name like one, is in the output of config and bootstrap",
		service:  "all other values are shown",
		run:      printMetadata,
	},
}

const goodDocument = "apiVersion: v1\nkind: Service\nmetadata: {name: good}\nspec: {selector: {app: good}, ports: [{port: 80}]}\n"

// bombs returns documents by file name that are small for what they cost a naive reader.
func bombs() map[string]string {
	var laughs, merges, anchors strings.Builder
	laughs.WriteString("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: laughs}\nspec:\n  a: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	merges.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: merges}\nx0: &m0 {a: 1}\n")
	for i := 1; i <= 20; i++ {
		fmt.Fprintf(&laughs, "  b%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
		fmt.Fprintf(&merges, "x%d: &m%d {<<: [%s]}\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*m%d, ", i-1), 10), ", "))
	}
	for i := range 10_000 {
		fmt.Fprintf(&anchors, "- &a%d x\n", i)
	}
	const deep = 1_000_000
	return map[string]string{
		"laughs.yaml": laughs.String(), "merges.yaml": merges.String(), "anchors.yaml": anchors.String(), "cycle.yaml": "a: &a [*a]\n",
		"nested.yaml": strings.Repeat("[", deep), "maps.yaml": strings.Repeat("{a: ", deep), "open.json": strings.Repeat(`{"a":`, deep),
		"closed.json": strings.Repeat("[", deep) + strings.Repeat("]", deep), "binary.yaml": strings.Repeat("\xff\xfe\x00\x01", 1000),
		"large.yaml": "", // of 64 MiB without blocks
	}
}

// writeBombs writes the bombs into a folder.
func writeBombs(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := bombs()
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "large.yaml"), 64<<20); err != nil {
		t.Fatal(err)
	}
	return all
}

func documentBombs(t *testing.T) {
	const maxMemory = 512 << 20
	dir := t.TempDir()
	good := filepath.Join(dir, "good.yaml")
	if err := os.WriteFile(good, []byte(goodDocument), 0o600); err != nil {
		t.Fatal(err)
	}
	plane := startParser(t, exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--config-dir", dir, "--state-dir", t.TempDir(),
		"--port=-2", "--secure-port=-1", "--monitoring-port=-2", "--token-port=-2"))
	awaitLog(t, plane.log, "the control plane listens")
	all := writeBombs(t, dir)
	for name := range all {
		awaitLog(t, plane.log, "level=ERROR", name)
	}
	if err := os.WriteFile(good, []byte(goodDocument+"---\n"+strings.Replace(goodDocument, "name: good", "name: second", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, plane.log, "read the configuration", "resources=2")
	plane.checkMemory(maxMemory)

	analyze := exec.Command(testenv.Bin(t, "pilotfish"), "analyze", dir, "-o", "json", "--severity", "error")
	out, err := analyze.Output()
	if code := exitCode(err); code != 1 {
		t.Fatalf("analyze ended with status %d: %v", code, err)
	}
	var report struct {
		InForce  int `json:"inForce"`
		Findings []struct {
			At struct{ File string }
		}
	}
	if err := json.Unmarshal(out, &report); err != nil || report.InForce != 2 {
		t.Errorf("%d documents are in force: %v", report.InForce, err)
	}
	for _, f := range report.Findings {
		delete(all, filepath.Base(f.At.File))
	}
	if len(all) > 0 {
		t.Errorf("no findings for %d files", len(all))
	}
	if used := maxMemoryOf(analyze); used > maxMemory {
		t.Errorf("analyze used %d MiB", used>>20)
	}
}

func compressedKeys(t *testing.T) {
	m := newCloudMachine(t, "192.0.2.10", "192.0.2.20")
	good := m.serve("192.0.2.20:0", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, keySet) })
	bomb := m.serve("192.0.2.20:0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		_, _ = packed.Write([]byte(`{"keys":[`))
		key := []byte(strings.Repeat(`{"kty":"OKP","crv":"Ed25519","kid":"one","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},`, 1000))
		for range 10_000 { // 900 MB
			if _, err := packed.Write(key); err != nil {
				return // the control plane has read enough
			}
		}
	})
	config := m.write("config/tenant.yaml", keysDocument("good", "http://"+good+"/keys")+keysDocument("bomb", "http://"+bomb+"/keys"))
	plane := m.startParser("control-plane", "--config-dir", config, "--state-dir", m.dir+"/state", "--log-level", "debug")
	awaitLog(t, plane.log, "fetched the keys of a token issuer", good)
	awaitLog(t, plane.log, "fetching the keys of a token issuer failed", bomb)
	plane.checkMemory(256 << 20)
}

// unprintable returns the first character of a text that a terminal may act on.
func unprintable(text string) (r rune, found bool) {
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return r, true
		}
	}
	return 0, false
}

// steering moves the cursor, sets the title, reverses text, hides text, and forges a line.
const steering = `\e[2J\e]0;x\a\u009b2J\u202egnp\u2066\u200b\u2028\r\nforged`

func steerTerminal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	documents := `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: "shop` + steering + `"}
spec: {hosts: ["shop` + steering + `"], "ho` + steering + `": 1}
---
apiVersion: networking.istio.io/v1
kind: "Gate` + steering + `"
metadata: {name: shop}
`
	if err := os.WriteFile(file, []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"analyze", file}, {"analyze", file, "-o", "lines"}, {"analyze", file, "-o", "json"}} {
		out, _ := exec.Command(testenv.Bin(t, "pilotfish"), args...).CombinedOutput()
		if r, found := unprintable(string(out)); found || !strings.Contains(string(out), `\u202egnp`) {
			t.Errorf("%s prints %U:\n%q", args[0], r, out)
		}
		if strings.Contains(string(out), "\nforged") {
			t.Errorf("%s prints a forged line:\n%q", args[0], out)
		}
	}
	out := metadataPrint(t, "config", "ISTIO_META_SHOP=\x1b[2J\x1b]0;x\a\u202egnp\u2066\u200b")
	if r, found := unprintable(out); found || !strings.Contains(out, `\u202egnp`) {
		t.Errorf("config prints %U:\n%q", r, out)
	}
}

func printMetadata(t *testing.T) {
	environment := []string{
		"ISTIO_META_DB_PASSWORD_V2=zq4711-1", "ISTIO_META_DB_PWD=zq4711-2", "ISTIO_META_REGISTRY_AUTH=zq4711-3", "ISTIO_META_DEPLOY=ghp_zq47110123456789abcdefghijABCDEFGHIJ",
		`ISTIO_METAJSON_EXTRA={"EXTRA":{"api-token":"zq4711-4"},"NOTE":"glpat-zq47110123456789abcdef"}`, `ISTIO_METAJSON_LABELS={"app":"shop","db-password":"zq4711-5"}`,
		"ISTIO_META_CLUSTER_ID=visible-1", "ISTIO_META_CERT_SIGNER=visible-2", "ISTIO_META_PUBLIC_KEY=visible-3",
	}
	for _, command := range []string{"config", "bootstrap"} {
		out := metadataPrint(t, command, environment...)
		if strings.Contains(out, "zq4711") {
			t.Errorf("%s prints a secret:\n%s", command, out)
		}
		for i := range 3 {
			if want := fmt.Sprintf("visible-%d", i+1); !strings.Contains(out, want) {
				t.Errorf("%s does not print %s:\n%s", command, want, out)
			}
		}
	}
}
