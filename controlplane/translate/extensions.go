package translate

import "github.com/pilotfish-mesh/pilotfish/controlplane/xds"

// patchedExtensions are the configurations that EnvoyFilters give to names, of those that are wanted.
func (v view) patchedExtensions(wanted func(name string) bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	for _, name := range v.patches.Extensions(v.p.Type == Router) {
		if !wanted(name) {
			continue
		}
		r, err := xds.NewResource(name, v.patches.Extension(v.p.Type == Router, name))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
