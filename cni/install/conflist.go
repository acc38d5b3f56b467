package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// PluginType is the plugin's type in CNI configurations and the name of its binary.
const PluginType = "pilotfish-cni"

// oldestList is the first version of the CNI specification with lists of plugins.
const oldestList = "0.3.1"

// network is one CNI configuration file.
type network struct {
	path   string
	list   bool           // whether the file contains a list of plugins or a single plugin
	fields map[string]any // all fields; numbers have the type json.Number
	raw    []byte         // the file's content
}

// parseNetwork parses a CNI configuration. It retains unknown fields.
func parseNetwork(path string, content []byte) (*network, error) {
	n := &network{path: path, raw: content}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&n.fields); err != nil {
		return nil, fmt.Errorf("CNI configuration %s: %w", path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("CNI configuration %s contains data after the JSON object", path)
	}
	if _, isString := n.fields["name"].(string); !isString {
		return nil, fmt.Errorf("CNI configuration %s: \"name\" is missing or not a string", path)
	}
	plugins, has := n.fields["plugins"]
	if !has {
		if _, isString := n.fields["type"].(string); !isString {
			return nil, fmt.Errorf("CNI configuration %s has neither \"plugins\" nor \"type\"", path)
		}
		return n, nil
	}
	n.list = true
	entries, isList := plugins.([]any)
	if !isList {
		return nil, fmt.Errorf("CNI configuration %s: \"plugins\" is not a list", path)
	}
	for _, entry := range entries {
		if fields, isObject := entry.(map[string]any); !isObject || typeOf(fields) == "" {
			return nil, fmt.Errorf("CNI configuration %s contains a plugin without a type", path)
		}
	}
	return n, nil
}

func typeOf(fields map[string]any) string {
	name, _ := fields["type"].(string)
	return name
}

// checkUnchanged returns errChanged if another program has changed the file since it was read.
func (n *network) checkUnchanged() error { return checkUnchanged(n.path, n.raw) }

func (n *network) name() string { return n.fields["name"].(string) }

// plugins returns the entries of the list, or the single plugin as the only entry.
func (n *network) plugins() []map[string]any {
	if !n.list {
		return []map[string]any{n.fields}
	}
	entries := n.fields["plugins"].([]any)
	all := make([]map[string]any, len(entries))
	for i, entry := range entries {
		all[i] = entry.(map[string]any)
	}
	return all
}

// types returns the types of all plugins except pilotfish's.
func (n *network) types() []string {
	var all []string
	for _, p := range n.plugins() {
		if t := typeOf(p); t != PluginType {
			all = append(all, t)
		}
	}
	return all
}

// pluginEntry returns the entry of pilotfish's plugin, or nil.
func (n *network) pluginEntry() map[string]any {
	for _, p := range n.plugins() {
		if typeOf(p) == PluginType {
			return p
		}
	}
	return nil
}

// onlyInlined reports whether the configuration makes the runtime ignore drop-in files (loadOnlyInlinedPlugins).
func (n *network) onlyInlined() bool {
	switch v := n.fields["loadOnlyInlinedPlugins"].(type) {
	case bool:
		return v
	case string:
		return strings.EqualFold(v, "true")
	}
	return false
}

// appendPlugin returns the configuration with entry as the last plugin of the list. It converts a configuration with a
// single plugin to a list.
func (n *network) appendPlugin(entry map[string]any) ([]byte, error) {
	fields := maps.Clone(n.fields)
	var plugins []any
	if n.list {
		for _, p := range n.plugins() {
			if typeOf(p) != PluginType {
				plugins = append(plugins, p)
			}
		}
	} else {
		single := maps.Clone(n.fields)
		delete(single, "cniVersion")
		delete(single, "name")
		fields = map[string]any{"name": n.name(), "cniVersion": listVersion(n.fields["cniVersion"])}
		plugins = []any{single}
	}
	if len(plugins) == 0 {
		return nil, fmt.Errorf("CNI configuration %s has no plugin that creates a network", n.path)
	}
	fields["plugins"] = append(plugins, entry)
	return marshal(fields)
}

// removePlugin returns the configuration without pilotfish's plugin.
func (n *network) removePlugin() ([]byte, error) {
	fields := maps.Clone(n.fields)
	var plugins []any
	for _, p := range n.plugins() {
		if typeOf(p) != PluginType {
			plugins = append(plugins, p)
		}
	}
	fields["plugins"] = plugins
	return marshal(fields)
}

// hasPlugin reports whether entry is the last plugin of the list and the only entry of pilotfish's plugin.
func (n *network) hasPlugin(entry map[string]any) bool {
	plugins := n.plugins()
	if !n.list || len(plugins) < 2 || !sameJSON(plugins[len(plugins)-1], entry) {
		return false
	}
	return slices.IndexFunc(plugins, func(p map[string]any) bool { return typeOf(p) == PluginType }) == len(plugins)-1
}

func sameJSON(a, b map[string]any) bool {
	one, errOne := json.Marshal(a)
	two, errTwo := json.Marshal(b)
	if errOne != nil || errTwo != nil {
		return false
	}
	var x, y any
	return json.Unmarshal(one, &x) == nil && json.Unmarshal(two, &y) == nil && reflect.DeepEqual(x, y)
}

// listVersion returns the CNI version of the list that replaces the configuration of a single plugin: version, or
// oldestList if version does not support lists.
func listVersion(version any) string {
	text, _ := version.(string)
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return oldestList
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	if errMajor != nil || errMinor != nil || major == 0 && minor < 3 || text == "0.3.0" {
		return oldestList
	}
	return text
}

func marshal(fields map[string]any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(fields)
	return b.Bytes(), err
}

// errNoNetwork reports that no primary plugin has written its configuration yet.
var errNoNetwork = errors.New("no primary CNI plugin has written its configuration yet")

// primary returns the configuration of the primary network, which container runtimes use: the first readable file by
// name that contains a plugin other than pilotfish's. If name is set, primary returns the file called name, or the
// file whose name has the other extension (.conflist or .conf).
func primary(dir, name string) (*network, error) {
	if name != "" {
		n, err := readNetwork(filepath.Join(dir, name))
		if err == nil && n == nil {
			n, err = readNetwork(filepath.Join(dir, otherForm(name)))
		}
		if err == nil && n == nil {
			err = fmt.Errorf("%w: %s does not contain %s", errNoNetwork, dir, name)
		}
		return n, err
	}
	all, broken, err := networks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", errNoNetwork, dir)
	}
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if len(n.types()) > 0 {
			return n, nil
		}
	}
	if broken != nil {
		return nil, broken.err
	}
	return nil, fmt.Errorf("%w: %s", errNoNetwork, dir)
}

// otherForm returns the name of a .conflist file with the extension .conf, and the name of any other file with
// .conflist.
func otherForm(name string) string {
	ext := filepath.Ext(name)
	if ext == ".conflist" {
		return strings.TrimSuffix(name, ext) + ".conf"
	}
	return strings.TrimSuffix(name, ext) + ".conflist"
}

// unreadable is a configuration file that cannot be read or parsed.
type unreadable struct {
	path string
	err  error
}

// networks returns the readable configurations in a directory, sorted by file name. It also returns the first
// unreadable one.
func networks(dir string) (all []*network, broken *unreadable, err error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
		default:
			continue
		}
		n, err := readNetwork(filepath.Join(dir, e.Name()))
		if err != nil && broken == nil {
			broken = &unreadable{filepath.Join(dir, e.Name()), err}
		}
		if err == nil && n != nil {
			all = append(all, n)
		}
	}
	return all, broken, nil
}

// readNetwork reads and parses a configuration file. It returns nil if the file does not exist.
func readNetwork(path string) (*network, error) {
	f, err := read(path, maxConf)
	if err != nil {
		return nil, err
	}
	if !f.exists {
		if to, err := os.Readlink(path); err == nil {
			return nil, fmt.Errorf("%s is a symbolic link to %s, which this process cannot access: mount that path too", path, to)
		}
		return nil, nil
	}
	n, err := parseNetwork(path, f.content)
	switch list := filepath.Ext(path) == ".conflist"; {
	case err != nil:
		return nil, err
	case n.list && !list:
		return nil, fmt.Errorf("CNI configuration %s is a list of plugins, which runtimes accept only in a *.conflist file: rename it", path)
	case !n.list && list:
		return nil, fmt.Errorf("CNI configuration %s is not a list of plugins, which runtimes expect in a *.conflist file: rename it to *.conf", path)
	}
	return n, nil
}

// errShadowed reports that container runtimes may not use the configuration file that contains the plugin.
var errShadowed = errors.New("container runtimes may not use the CNI configuration that contains the plugin")

// checkShadowing returns an error if an unreadable file sorts before the primary network's file. Container runtimes
// treat such a file in different ways.
func checkShadowing(dir string) error {
	all, broken, err := networks(dir)
	if err != nil || broken == nil {
		return err
	}
	for _, n := range all {
		if len(n.types()) > 0 && n.path < broken.path {
			return nil
		}
	}
	return fmt.Errorf("%w: %s sorts before it and cannot be read (fix or remove the file): %w", errShadowed, broken.path, broken.err)
}
