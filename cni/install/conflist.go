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

// PluginType is the plugin's name in configurations, which is that of its binary.
const PluginType = "pilotfish-cni"

// oldestList is the first version of the specification that has lists of plugins.
const oldestList = "0.3.1"

// network is one file of the CNI configuration.
type network struct {
	path   string
	list   bool           // of plugins; else one plugin
	fields map[string]any // numbers as they were written
	raw    []byte
}

// parseNetwork reads a configuration without loss of what it does not know.
func parseNetwork(path string, content []byte) (*network, error) {
	n := &network{path: path, raw: content}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&n.fields); err != nil {
		return nil, fmt.Errorf("CNI configuration %s: %w", path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("CNI configuration %s: more follows after its end", path)
	}
	if _, isString := n.fields["name"].(string); !isString {
		return nil, fmt.Errorf("CNI configuration %s has no name", path)
	}
	plugins, has := n.fields["plugins"]
	if !has {
		if _, isString := n.fields["type"].(string); !isString {
			return nil, fmt.Errorf("CNI configuration %s names no plugin", path)
		}
		return n, nil
	}
	n.list = true
	entries, isList := plugins.([]any)
	if !isList {
		return nil, fmt.Errorf("CNI configuration %s: \"plugins\" is no list", path)
	}
	for _, entry := range entries {
		if fields, isObject := entry.(map[string]any); !isObject || typeOf(fields) == "" {
			return nil, fmt.Errorf("CNI configuration %s has a plugin without a type", path)
		}
	}
	return n, nil
}

func typeOf(fields map[string]any) string {
	name, _ := fields["type"].(string)
	return name
}

// unchanged fails when the file is no longer what was read of it.
func (n *network) unchanged() error { return unchanged(n.path, n.raw) }

func (n *network) name() string { return n.fields["name"].(string) }

// plugins are the entries, of which a single plugin is one.
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

// types are the names of the plugins other than ours.
func (n *network) types() []string {
	var all []string
	for _, p := range n.plugins() {
		if t := typeOf(p); t != PluginType {
			all = append(all, t)
		}
	}
	return all
}

// ours is the plugin's entry, or nil.
func (n *network) ours() map[string]any {
	for _, p := range n.plugins() {
		if typeOf(p) == PluginType {
			return p
		}
	}
	return nil
}

// onlyInlined says that the runtime is not to look for further plugins in the network's folder.
func (n *network) onlyInlined() bool {
	switch v := n.fields["loadOnlyInlinedPlugins"].(type) {
	case bool:
		return v
	case string:
		return strings.EqualFold(v, "true")
	}
	return false
}

// chained is the network with the plugin as the last of its list.
func (n *network) chained(entry map[string]any) ([]byte, error) {
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
		return nil, fmt.Errorf("CNI configuration %s has no plugin that makes a network", n.path)
	}
	fields["plugins"] = append(plugins, entry)
	return marshal(fields)
}

// without is the network without the plugin.
func (n *network) without() ([]byte, error) {
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

// has says that the plugin is in the list, last, and as it should be.
func (n *network) has(entry map[string]any) bool {
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

// listVersion is that of a single plugin, or the oldest in which it can be in a list.
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

// errNoNetwork says that no other plugin has put its configuration there yet.
var errNoNetwork = errors.New("no primary CNI plugin has put its configuration there yet")

// primary finds the configuration that container runtimes take: the first, by name, that can be read and that is not ours
// alone. A name asks for that one, whether it is of a list yet or of a single plugin.
func primary(dir, name string) (*network, error) {
	if name != "" {
		n, err := readNetwork(filepath.Join(dir, name))
		if err == nil && n == nil {
			n, err = readNetwork(filepath.Join(dir, otherForm(name)))
		}
		if err == nil && n == nil {
			err = fmt.Errorf("%w: %s is not in %s", errNoNetwork, name, dir)
		}
		return n, err
	}
	all, broken, err := networks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s", errNoNetwork, dir)
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

// otherForm is the name of the file of a list for that of a single plugin, and the other way round.
func otherForm(name string) string {
	ext := filepath.Ext(name)
	if ext == ".conflist" {
		return strings.TrimSuffix(name, ext) + ".conf"
	}
	return strings.TrimSuffix(name, ext) + ".conflist"
}

// unreadable is a configuration that cannot be read.
type unreadable struct {
	path string
	err  error
}

// networks are the configurations of a folder that can be read, in the order of their names, and what is wrong with the
// first that cannot.
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

func readNetwork(path string) (*network, error) {
	f, err := read(path, maxConf)
	if err != nil {
		return nil, err
	}
	if !f.exists {
		if to, err := os.Readlink(path); err == nil {
			return nil, fmt.Errorf("%s is a link to %s, which cannot be seen from here: mount that, too", path, to)
		}
		return nil, nil
	}
	n, err := parseNetwork(path, f.content)
	switch list := filepath.Ext(path) == ".conflist"; {
	case err != nil:
		return nil, err
	case n.list && !list:
		return nil, fmt.Errorf("CNI configuration %s is a list of plugins, which runtimes take from a file *.conflist alone: rename it", path)
	case !n.list && list:
		return nil, fmt.Errorf("CNI configuration %s is no list of plugins, as runtimes expect of a file *.conflist: rename it to *.conf", path)
	}
	return n, nil
}

// errShadowed says that runtimes may take another file than the one that has the plugin.
var errShadowed = errors.New("container runtimes may take a CNI configuration without the plugin, or none")

// shadowed is an error when a file that cannot be read comes before the one that was taken for the primary's: what runtimes make of it
// is not known from here.
func shadowed(dir string) error {
	all, broken, err := networks(dir)
	if err != nil || broken == nil {
		return err
	}
	for _, n := range all {
		if len(n.types()) > 0 && n.path < broken.path {
			return nil
		}
	}
	return fmt.Errorf("%w: %s comes first and cannot be read (mend or remove it): %w", errShadowed, broken.path, broken.err)
}
