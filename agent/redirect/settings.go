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

// Where values come from.
const (
	sourceDefault   = "default"
	sourceFlag      = "flag"
	sourceFile      = "file"
	sourceNamespace = "namespace"
	sourceResolv    = "/etc/resolv.conf"
)

const (
	optionUID       = "proxy-uid"
	optionGID       = "proxy-gid"
	optionServers   = "dns-servers"
	optionAddresses = "addresses"
)

// addOptions adds the flags of all options; taken are shorthands that mean something else here.
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

// defaultText is for help; what is found out has no fixed default.
func defaultText(o *iptables.Options, name string) string {
	if name == optionUID || name == optionGID {
		return ""
	}
	return o.Get(name)
}

// value is one option's value with where it is from.
type value struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// resolved is what the options come to.
type resolved struct {
	options iptables.Options
	values  []value
}

// resolver finds the values of options, each source over those before it: defaults, a saved configuration or else the
// environment, flags. What is still open is found out.
type resolver struct {
	process Process
	flags   *pflag.FlagSet
	saved   map[string]string // instead of the environment
	space   namespace
	out     resolved
	errs    []error
}

func (r *resolver) resolve() (*resolved, error) {
	r.out.options = iptables.DefaultOptions()
	sources := map[string]string{}
	r.refuseUnknown()
	for _, s := range iptables.Settings() {
		text, source := r.given(&s)
		if source == "" {
			continue
		}
		if text == "" && (s.Name == optionUID || s.Name == optionGID) {
			continue // as Istio's: nothing is the default
		}
		if err := r.out.options.Set(s.Name, text, r.process.names()); err != nil {
			r.errs = append(r.errs, from(source, err))
		}
		sources[s.Name] = source
	}
	r.findOut(sources)
	if err := errors.Join(append(r.errs, r.out.options.Validate())...); err != nil {
		return nil, usage(err)
	}
	for _, s := range iptables.Settings() {
		r.out.values = append(r.out.values, value{s.Name, r.out.options.Get(s.Name), cmp.Or(sources[s.Name], sourceDefault)})
	}
	return &r.out, nil
}

// refuseUnknown tells of what a saved configuration names and nobody reads, which is a slip of whoever wrote it.
func (r *resolver) refuseUnknown() {
	for _, name := range slices.Sorted(maps.Keys(r.saved)) {
		if !slices.ContainsFunc(iptables.Settings(), func(s iptables.Setting) bool { return s.Name == name }) {
			r.errs = append(r.errs, from(sourceFile, fmt.Errorf("there is no option %q: `show -o yaml` prints all that there are", name)))
		}
	}
}

func from(source string, err error) error {
	if source == sourceFlag {
		return err
	}
	return fmt.Errorf("%s: %w", source, err)
}

// given is what is said of an option; no source where nothing is.
func (r *resolver) given(s *iptables.Setting) (text, source string) {
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
			return text, "environment " + name
		}
	}
	return "", ""
}

// findOut fills in what nobody said.
func (r *resolver) findOut(sources map[string]string) {
	o := &r.out.options
	if sources[optionUID] == "" {
		id, source := r.process.proxyUser()
		o.ProxyUIDs, sources[optionUID] = []uint32{id}, source
	}
	if sources[optionGID] == "" {
		o.ProxyGIDs, sources[optionGID] = slices.Clone(o.ProxyUIDs), "as --"+optionUID
	}
	if r.saved != nil {
		return
	}
	if sources[optionServers] == "" && o.RedirectDNS && !o.CaptureAllDNS {
		r.found(optionServers, sourceResolv, &o.DNSServers, sources, r.process.resolvers)
	}
	if sources[optionAddresses] == "" {
		r.found(optionAddresses, sourceNamespace, &o.Addresses, sources, r.space.addresses)
	}
}

func (r *resolver) found(name, source string, to *[]netip.Addr, sources map[string]string, find func() ([]netip.Addr, error)) {
	list, err := find()
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	if len(list) > 0 {
		*to, sources[name] = list, source
	}
}
