package translate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// answering returns a Wasm module that responds to requests with status 418 and a word, and blocks the data of TCP
// connections. It is assembled by hand, so that the test requires no compiler.
func answering(word string) []byte {
	section := func(id byte, content ...byte) []byte { return append([]byte{id, byte(len(content))}, content...) }
	name := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	join := func(parts ...[]byte) []byte {
		var out []byte
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	const i32 = 0x7f
	body := func(code ...byte) []byte { return append([]byte{byte(len(code) + 2), 0}, append(code, 0x0b)...) }
	return join([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, 4, // types: nothing, allocation, response, headers
			0x60, 0, 0,
			0x60, 1, i32, 1, i32,
			0x60, 8, i32, i32, i32, i32, i32, i32, i32, i32, 1, i32,
			0x60, 3, i32, i32, i32, 1, i32),
		section(2, join([]byte{1}, name("env"), name("proxy_send_local_response"), []byte{0, 2})...),
		section(3, 3, 0, 1, 3),
		section(5, 1, 0, 1),
		section(7, join([]byte{4}, name("proxy_abi_version_0_2_1"), []byte{0, 1}, name("malloc"), []byte{0, 2},
			name("memory"), []byte{2, 0}, name("proxy_on_request_headers"), []byte{0, 3})...),
		section(10, join([]byte{3}, body(), body(0x41, 0x80, 0x08), // malloc returns 1024
			body(0x41, 0xa2, 0x03, 0x41, 0, 0x41, 0, 0x41, 0, 0x41, byte(len(word)), 0x41, 0, 0x41, 0, 0x41, 0x7f,
				0x10, 0, 0x1a, 0x41, 1))...), // send_local_response(418, …); return pause
		section(11, join([]byte{1, 0, 0x41, 0, 0x0b}, name(word))...),
	)
}

// TestWasmPluginSelection uses a real module in Envoy's V8. A plugin applies only to the selected side and port, and no
// longer after its document is removed.
func TestWasmPluginSelection(t *testing.T) {
	forEachEnvoyVersion(t, 176002, func(t *testing.T, version string, network int) {
		module := filepath.Join(t.TempDir(), "answer.wasm")
		if err := os.WriteFile(module, answering("wasm"), 0o644); err != nil {
			t.Fatal(err)
		}
		w := newTestEnv(t, version, network, pair)
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		call := func() httpResult { return w.request(clientPort, serverURL) }
		plugin := func(namespace, fields string) string {
			return fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: answer, namespace: %s}\nspec: {url: file://%s, %s}", namespace, module, fields)
		}
		w.expect(200, "server", call)
		w.change(plugin("back", "match: [{mode: CLIENT}]"))
		w.expect(200, "server", call)
		w.change(plugin("back", "match: [{mode: SERVER, ports: [{number: 9999}]}]"))
		w.expect(200, "server", call)
		w.change(plugin("back", "phase: AUTHN, pluginConfig: {a: 1}, vmConfig: {env: [{name: X, value: y}, {name: HOME, valueFrom: HOST}]}, match: [{mode: SERVER, ports: [{number: 8080}]}]"))
		w.expect(418, "wasm", call)
		w.expect(418, "wasm", func() httpResult { return w.request("", "http://NET.2.1:8080/x") })
		w.remove(keys(parse(t, plugin("back", "")))[0])
		w.expect(200, "server", call)
	})
}
