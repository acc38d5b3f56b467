package redirect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Sources of option values, in the form that the command show prints.
const (
	sourceDefault   = "default"
	sourceFlag      = "flag"
	sourceFile      = "file"
	sourceNamespace = "namespace"
	sourceResolv    = "/etc/resolv.conf"
	// sourceEnvironment is followed by the name of the variable.
	sourceEnvironment = "environment "
)

const (
	optionUID       = "proxy-uid"
	optionGID       = "proxy-gid"
	optionServers   = "dns-servers"
	optionAddresses = "addresses"
)

// addOptions adds the flags of all options. taken contains the shorthands that are not available, because the command
// uses them for other flags.
func addOptions(f *pflag.FlagSet, taken string) {
	defaults := iptables.DefaultOptions()
	for _, s := range iptables.Settings() {
		if s.NoFlag {
			continue
		}
		short := s.Shorthand
		if strings.Contains(taken, short) {
			short = ""
		}
		if s.Boolean {
			f.BoolP(s.Name, short, false, s.Help)
			continue
		}
		f.StringP(s.Name, short, "", s.Help)
		f.Lookup(s.Name).DefValue = defaultText(&defaults, s.Name)
	}
}

// defaultText returns the default value for the help text. It returns "" for values that are detected at run time.
func defaultText(o *iptables.Options, name string) string {
	if name == optionUID || name == optionGID {
		return ""
	}
	return o.Get(name)
}

// optionValue is the value of one option with its source.
type optionValue struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// resolvedOptions contains the options that were resolved from all sources, and the source of each value.
type resolvedOptions struct {
	options iptables.Options
	values  []optionValue
}

// resolver resolves options. The sources in ascending precedence are: defaults, the saved configuration (if there is
// none, the environment), flags. Some options that no source has set are detected.
type resolver struct {
	process   Process
	flags     *pflag.FlagSet
	saved     map[string]string // replaces the environment
	namespace namespace
	out       resolvedOptions
	errs      []error
}

func (r *resolver) resolve() (*resolvedOptions, error) {
	r.out.options = iptables.DefaultOptions()
	sources := map[string]string{}
	r.refuseUnknown()
	for _, s := range iptables.Settings() {
		text, source := r.lookup(&s)
		if source == "" {
			continue
		}
		if text == "" && (s.Name == optionUID || s.Name == optionGID) {
			continue // an empty value selects the default, as in Istio
		}
		if err := r.out.options.Set(s.Name, text, r.process.nameLookup()); err != nil {
			if strings.HasPrefix(source, sourceEnvironment) && s.IsTolerated() {
				r.out.options.AddWarning(addSource(source, err).Error() + "; the default is used")
				continue
			}
			r.errs = append(r.errs, addSource(source, err))
		}
		sources[s.Name] = source
	}
	r.detect(sources)
	r.out.options.Normalize()
	if err := errors.Join(append(r.errs, r.out.options.Validate())...); err != nil {
		return nil, usageError(err)
	}
	for _, s := range iptables.Settings() {
		r.out.values = append(r.out.values, optionValue{s.Name, r.out.options.Get(s.Name), cmp.Or(sources[s.Name], sourceDefault)})
	}
	return &r.out, nil
}

// refuseUnknown adds an error for each unknown option in the saved configuration, because it is probably a typo.
func (r *resolver) refuseUnknown() {
	for _, name := range slices.Sorted(maps.Keys(r.saved)) {
		if !slices.ContainsFunc(iptables.Settings(), func(s iptables.Setting) bool { return s.Name == name }) {
			r.errs = append(r.errs, addSource(sourceFile, fmt.Errorf("unknown option %q: `show -o yaml` prints all options", name)))
		}
	}
}

func addSource(source string, err error) error {
	if source == sourceFlag {
		return err
	}
	return fmt.Errorf("%s: %w", source, err)
}

// lookup returns the value of option s and its source. Both are empty if no source sets s.
func (r *resolver) lookup(s *iptables.Setting) (text, source string) {
	if !s.NoFlag {
		if f := r.flags.Lookup(s.Name); f != nil && f.Changed {
			return f.Value.String(), sourceFlag
		}
	}
	if r.saved != nil {
		if text, ok := r.saved[s.Name]; ok {
			return text, sourceFile
		}
		return "", ""
	}
	for _, name := range s.Env {
		if text := r.process.env(name); text != "" {
			return text, sourceEnvironment + name
		}
	}
	return "", ""
}

// detect sets options that no source has set: proxy user and group, DNS servers, and pod addresses. With a saved
// configuration, it sets only the proxy user and group.
func (r *resolver) detect(sources map[string]string) {
	o := &r.out.options
	if sources[optionUID] == "" {
		id, source := r.process.lookupProxyUser()
		o.ProxyUIDs, sources[optionUID] = []uint32{id}, source
	}
	if sources[optionGID] == "" {
		o.ProxyGIDs, sources[optionGID] = slices.Clone(o.ProxyUIDs), "as --"+optionUID
	}
	if r.saved != nil {
		return
	}
	if sources[optionServers] == "" && o.RedirectDNS && !o.CaptureAllDNS {
		r.detectAddresses(optionServers, sourceResolv, &o.DNSServers, sources, r.process.readResolvers)
	}
	if sources[optionAddresses] == "" {
		r.detectAddresses(optionAddresses, sourceNamespace, &o.Addresses, sources, r.namespace.listAddresses)
	}
}

func (r *resolver) detectAddresses(name, source string, to *[]netip.Addr, sources map[string]string, find func() ([]netip.Addr, error)) {
	list, err := find()
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	if len(list) > 0 {
		*to, sources[name] = list, source
	}
}
