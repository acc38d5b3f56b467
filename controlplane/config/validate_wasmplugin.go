package config

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
)

// WasmHintPrefix is the prefix of those environment variables in a module's configuration that the agent reads and the
// module does not receive.
const WasmHintPrefix = "ISTIO_META_WASM_"

// WasmPullSecret is the environment variable that contains the registry credentials. Only the agent may read it.
const WasmPullSecret = WasmHintPrefix + "IMAGE_PULL_SECRET"

const maxWasmEnv = 256

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func validateWasmPlugin(s validator, p *extensions.WasmPlugin) {
	s.field("selector").checkSelector(p.GetSelector())
	s.checkTargets(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	s.field("url").checkModuleURL(p.GetUrl())
	if sum := p.GetSha256(); sum != "" && !sha256Pattern.MatchString(sum) {
		s.field("sha256").refuse(sum, "not a checksum", "write 64 hexadecimal digits in lower case")
	}
	if len(p.GetPluginName()) > 256 {
		s.field("pluginName").refuse(p.GetPluginName(), "longer than 256 characters", "shorten it")
	}
	for i, m := range p.GetMatch() {
		for j, port := range m.GetPorts() {
			s.item("match", i).item("ports", j).field("number").checkPort(port.GetNumber())
		}
	}
	s.field("vmConfig").checkWasmEnvironment(p.GetVmConfig())
}

func (s validator) checkModuleURL(text string) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		s.refuse("", "the URL of the module is missing", "set a URL: oci://, https://, http:// or file://")
	case len(text) > 4096:
		s.refuse(text, "longer than 4096 characters", "shorten it")
	case err != nil && strings.Contains(text, "://"):
		s.refuse(text, "not a URL", "use a value such as oci://registry.example.com/module:1.0")
	case strings.ContainsAny(text, "\r\n\x00 "):
		s.refuse(text, "not a URL", "write it without spaces and line breaks")
	case !strings.Contains(text, "://"): // an OCI image
	case u.Scheme == "file" && !strings.HasPrefix(u.Path, "/"):
		s.refuse(text, "not the path of a file", "use a value such as file:///opt/module.wasm")
	case u.Scheme != "file" && u.Host == "":
		s.refuse(text, "the URL contains no host", "use a value such as https://example.com/module.wasm")
	case u.Scheme != "oci" && u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file":
		s.refuse(text, "agents cannot fetch modules by "+u.Scheme, "use oci, https, http or file")
	}
}

func (s validator) checkWasmEnvironment(vm *extensions.VmConfig) {
	if len(vm.GetEnv()) > maxWasmEnv {
		s.field("env").refuse(len(vm.GetEnv()), "too many variables for a module", "at most 256")
	}
	seen := map[string]bool{}
	for i, e := range vm.GetEnv() {
		at := s.item("env", i)
		switch name := e.GetName(); {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			at.field("name").refuse(name, "not the name of a variable", "set a name without an equals sign")
		case strings.HasPrefix(name, WasmHintPrefix):
			at.field("name").refuse(name, "names with this prefix configure the agent", "choose another name")
		case seen[name]:
			at.field("name").refuse(name, "duplicate name", "remove one")
		}
		seen[e.GetName()] = true
		if e.GetValueFrom() == extensions.EnvValueSource_HOST && e.GetValue() != "" {
			at.field("value").refuse(e.GetValue(), "the variable has a value, but valueFrom: HOST reads the value from the proxy's environment", "remove it, or valueFrom")
		}
	}
}

// CompactJSON removes insignificant white space from JSON. It returns text unchanged if it is not valid JSON.
func CompactJSON(text []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return string(text)
	}
	return b.String()
}
