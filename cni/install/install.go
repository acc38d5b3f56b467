package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// The results of attempts to install: values of the label "result" of istio_cni_installs_total, as in Istio.
const (
	resultSuccess    = "SUCCESS"
	resultBinary     = "COPY_BINARIES_FAILURE"
	resultKubeconfig = "CREATE_KUBECONFIG_FAILURE"
	resultConfig     = "CREATE_CNI_CONFIG_FAILURE"
)

// Installer installs the plugin on the node. Install, Uninstall and Run must not be called concurrently.
type Installer struct {
	config Config
	disk   *disk
	entry  map[string]any
	fights conflictDetector
	absent bool              // the last attempt did not find the plugin in the CNI configuration
	undone string            // path of a file that another program changed since the last attempt; "" for none
	copied map[string]string // by the path of a copy: fingerprint of the source and the copy after the last copying
	source map[string]string // by the path of a copy: fingerprint of the source after the last copying
	known  []byte            // content of the kubeconfig that was written last
	// failures is the number of consecutive attempts that failed and were rolled back.
	failures int
	// warnedOfWatch is whether the log contains the warning that files cannot be watched.
	warnedOfWatch bool

	mu        sync.Mutex
	condition health.Condition
}

// New returns an installer, or an error if the configuration is invalid. It does not change files.
func New(c Config) (*Installer, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("the installation settings of the CNI plugin are invalid: %w", err)
	}
	entry := map[string]any{}
	for name, value := range c.Plugin {
		entry[name] = value
	}
	entry["type"] = PluginType
	return &Installer{
		config: c, disk: &disk{before: c.before}, entry: entry, copied: map[string]string{}, source: map[string]string{},
		condition: health.Condition{Reason: "the CNI plugin is not installed yet"},
	}, nil
}

// Health returns the condition of the installation.
func (in *Installer) Health() health.Condition {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.condition
}

// Install installs or repairs all files, and reports whether a file changed. A repeated call changes nothing. If a step
// fails, Install reverts the changes of the other steps, unless isPartial is true for the error.
func (in *Installer) Install() (changed bool, err error) {
	done := &changes{disk: in.disk}
	result, err := in.steps(done)
	changed = len(done.done) > 0
	if err == nil || isPartial(err) {
		done.commit()
	} else if undone := done.undo(); undone != nil {
		err = errors.Join(err, undone)
	}
	in.reportResult(result, err, changed)
	return changed, err
}

// errNotRenewed reports that the kubeconfig could not be renewed, so the previous one remains in use.
var errNotRenewed = errors.New("the previous kubeconfig remains in use")

// isPartial reports whether the successful steps are useful despite err, so that they are not reverted: the primary
// plugin has not written its configuration yet, another program is writing it, the name of an unreadable file precedes
// it, or an existing kubeconfig could not be renewed.
func isPartial(err error) bool {
	return errors.Is(err, errNoNetwork) || errors.Is(err, errShadowed) || errors.Is(err, errNotRenewed) || errors.Is(err, errChanged)
}

// steps runs all steps of an installation. It returns the result for metrics.
func (in *Installer) steps(done *changes) (result string, err error) {
	if err := in.sweep(); err != nil {
		return resultConfig, err
	}
	if err := in.binaries(done); err != nil {
		return resultBinary, fmt.Errorf("installing the plugin's binary: %w", err)
	}
	if in.hasCredentials() {
		return in.repair(done)
	}
	if err := in.credentials(done); err != nil {
		return resultKubeconfig, fmt.Errorf("writing the plugin's kubeconfig: %w", err)
	}
	if err := in.configuration(done); err != nil {
		return resultConfig, fmt.Errorf("adding the plugin to the CNI configuration: %w", err)
	}
	return resultSuccess, nil
}

// hasCredentials reports whether the kubeconfig exists and this process has written or verified it.
func (in *Installer) hasCredentials() bool {
	_, err := os.Stat(in.config.Kubeconfig)
	return in.known != nil && err == nil
}

// repair first restores the plugin's CNI configuration, because pods start without redirection until then. It renews
// the kubeconfig afterwards, because that may have to wait for a token.
func (in *Installer) repair(done *changes) (result string, err error) {
	conf := in.configuration(done)
	if conf != nil {
		conf = fmt.Errorf("adding the plugin to the CNI configuration: %w", conf)
		if !isPartial(conf) {
			return resultConfig, conf
		}
	}
	if err := in.credentials(done); err != nil {
		return resultKubeconfig, errors.Join(fmt.Errorf("writing the plugin's kubeconfig: %w: %w", errNotRenewed, err), conf)
	}
	if conf != nil {
		return resultConfig, conf
	}
	return resultSuccess, nil
}

func (in *Installer) reportResult(result string, err error, changed bool) {
	in.mu.Lock()
	first := !in.condition.OK
	in.condition = health.Condition{OK: err == nil}
	if err != nil {
		in.condition.Reason = err.Error()
	}
	in.mu.Unlock()
	if in.config.OnAttempt != nil && (err != nil || changed || first) {
		in.config.OnAttempt(result)
	}
}

// sweep removes the temporary files of a killed process from all directories that the installer writes to.
func (in *Installer) sweep() error {
	dirs := append([]string{in.config.ConfDir}, in.config.BinDirs...)
	if in.config.Kubeconfig != "" {
		dirs = append(dirs, filepath.Dir(in.config.Kubeconfig))
	}
	if all, _, err := networks(in.config.ConfDir); err == nil {
		for _, n := range all {
			dirs = append(dirs, filepath.Join(in.config.ConfDir, n.name()), filepath.Dir(resolveSymlink(n.path)))
		}
	}
	for _, dir := range dirs {
		if err := in.disk.sweep(dir); err != nil {
			return fmt.Errorf("removing temporary files of an earlier run from %s: %w", dir, err)
		}
	}
	return nil
}

func (in *Installer) binaries(done *changes) error {
	if in.config.Binary == "" {
		return nil
	}
	for _, dir := range in.config.BinDirs {
		if err := in.binary(done, filepath.Join(dir, PluginType)); err != nil {
			return err
		}
	}
	return nil
}

// binary copies the plugin's binary to path if the source or the copy has changed. It detects changes by fingerprints,
// because a comparison of the contents on each call would be expensive.
func (in *Installer) binary(done *changes, path string) error {
	if now := fingerprint(in.config.Binary, path); now != "" && now == in.copied[path] {
		return nil
	}
	if err := done.copy(path, in.config.Binary, 0o755); err != nil {
		return err
	}
	source := fingerprint(in.config.Binary)
	if source != "" && source == in.source[path] {
		in.undone = path
	}
	in.copied[path], in.source[path] = fingerprint(in.config.Binary, path), source
	return nil
}

// fingerprint returns the size, mode and modification time of the files, or "" if one is missing.
func fingerprint(paths ...string) string {
	var all strings.Builder
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return ""
		}
		fmt.Fprintln(&all, info.Size(), info.Mode(), info.ModTime().UnixNano())
	}
	return all.String()
}

// credentials writes the plugin's kubeconfig.
func (in *Installer) credentials(done *changes) error {
	if in.config.Kubeconfig == "" {
		return nil
	}
	text, err := in.kubeconfig()
	if err != nil {
		return err
	}
	changed, err := done.write(in.config.Kubeconfig, text, in.config.KubeconfigMode)
	if err == nil && changed && string(text) == string(in.known) {
		in.undone = in.config.Kubeconfig
	}
	in.known = text
	return err
}

// configuration adds the plugin to the node's CNI configuration.
func (in *Installer) configuration(done *changes) error {
	var err error
	switch in.config.Mode {
	case Standalone:
		return in.standalone(done)
	case DropIn:
		err = in.dropIn(done)
	default:
		err = in.chain(done)
	}
	if err != nil || in.config.ConfName != "" {
		return err
	}
	return checkShadowing(in.config.ConfDir)
}

// standalone writes a separate CNI configuration file.
func (in *Installer) standalone(done *changes) error {
	fields := map[string]any{"name": PluginType, "cniVersion": "1.0.0"}
	for name, value := range in.entry {
		fields[name] = value
	}
	text, err := marshal(fields)
	if err != nil {
		return err
	}
	name := in.config.ConfName
	if name == "" {
		name = defaultStandalone
	}
	path, before := filepath.Join(in.config.ConfDir, name), len(done.done)
	if err := in.rewrite(done, path, text, 0o644, nil); err != nil {
		return err
	}
	if len(done.done) > before {
		in.undone = path
	}
	return nil
}

// chain appends the plugin to the primary network's list. If the primary network's file contains a single plugin, chain
// writes a list into a new file and then removes the old file. In between, both files exist, and runtimes use the old
// one, because its name is the first in alphabetical order.
func (in *Installer) chain(done *changes) error {
	n, err := primary(in.config.ConfDir, in.config.ConfName)
	if err != nil {
		return err
	}
	if err := in.chainInto(done, n); err != nil {
		return err
	}
	return in.removeReplaced(done, filepath.Join(in.config.ConfDir, n.name(), dropInName), nil)
}

func (in *Installer) chainInto(done *changes, n *network) error {
	if n.hasPlugin(in.entry) {
		return nil
	}
	in.absent, in.undone = n.pluginEntry() == nil, n.path
	text, err := n.appendPlugin(in.entry)
	if err != nil {
		return err
	}
	if n.list {
		return in.rewrite(done, n.path, text, 0, n.checkUnchanged)
	}
	list := strings.TrimSuffix(n.path, filepath.Ext(n.path)) + ".conflist"
	if err := in.rewrite(done, list, text, modeOf(n.path), n.checkUnchanged); err != nil {
		return err
	}
	return in.removeReplaced(done, n.path, n.checkUnchanged)
}

func modeOf(path string) fs.FileMode {
	info, err := os.Stat(path)
	if err != nil {
		return 0o644
	}
	return info.Mode().Perm()
}

// dropIn writes a file into the primary network's directory. It then removes the entry that an earlier installation in
// mode chained added to the primary network's file. In between, runtimes run the plugin twice. The second run has no
// further effect.
func (in *Installer) dropIn(done *changes) error {
	n, err := primary(in.config.ConfDir, in.config.ConfName)
	if err != nil {
		return err
	}
	switch {
	case !n.list:
		return fmt.Errorf("%s is not a list of plugins, and only lists have a drop-in directory: use mode chained", n.path)
	case n.onlyInlined():
		return fmt.Errorf("%s sets loadOnlyInlinedPlugins, so runtimes ignore the drop-in directory: use mode chained", n.path)
	case n.name() == "." || n.name() == ".." || strings.ContainsRune(n.name(), filepath.Separator):
		return fmt.Errorf("the network's name %q in %s is not a valid directory name: use mode chained", n.name(), n.path)
	}
	text, err := marshal(in.entry)
	if err != nil {
		return err
	}
	path := filepath.Join(in.config.ConfDir, n.name(), dropInName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		in.absent = n.pluginEntry() == nil
	}
	before := len(done.done)
	if err := in.rewrite(done, path, text, 0o644, nil); err != nil {
		return err
	}
	if len(done.done) > before {
		in.undone = n.path
	}
	if n.pluginEntry() == nil {
		return nil
	}
	if text, err = n.removePlugin(); err != nil {
		return err
	}
	return in.rewrite(done, n.path, text, 0, n.checkUnchanged)
}

// rewrite replaces a configuration file, unless ready returns an error. Before that it stores the previous state in the
// undo log. mode 0 preserves the file's mode.
func (in *Installer) rewrite(done *changes, path string, text []byte, mode fs.FileMode, ready func() error) error {
	was, err := read(path, maxConf)
	if err != nil {
		return err
	}
	if was.exists && (mode == 0 || string(was.content) == string(text)) {
		mode = was.mode
	}
	if was.exists && string(was.content) == string(text) {
		return nil
	}
	if err := in.remember(path, was, text); err != nil {
		return err
	}
	_, err = done.writeOver(resolveSymlink(path), text, mode, ready)
	return err
}

// removeReplaced removes a configuration file that another file of the installer replaces, unless ready returns an
// error.
func (in *Installer) removeReplaced(done *changes, path string, ready func() error) error {
	was, err := read(path, maxConf)
	if err != nil || !was.exists {
		return err
	}
	if filepath.Base(path) != dropInName {
		if err := in.remember(path, was, nil); err != nil {
			return err
		}
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	_, err = done.remove(path)
	return err
}

// remember stores the original state of a configuration file in the undo log before the file changes. was is the
// current state. wrote is the new content, or nil if the file is about to be removed.
func (in *Installer) remember(path string, was file, wrote []byte) error {
	log, err := readUndoLog(in.config.ConfDir)
	if err != nil {
		return err
	}
	// If the undo log was lost, or another program changed the file, the original state is the current content without
	// the plugin.
	if n, err := parseNetwork(path, was.content); err == nil && n.list && n.pluginEntry() != nil && !log.wrote(in.config.ConfDir, path, was) {
		if was.content, err = n.removePlugin(); err != nil {
			return err
		}
	}
	if err := log.note(in.config.ConfDir, path, was, wrote); err != nil {
		return err
	}
	if err := log.save(in.disk, in.config.ConfDir); err != nil {
		return fmt.Errorf("writing the undo log: %w", err)
	}
	return nil
}
