package translate

import "github.com/pilotfish-mesh/pilotfish/controlplane/xds"

// patchedExtensions returns the extension configurations that EnvoyFilters add and for whose name wanted returns true.
func (v proxyView) patchedExtensions(wanted func(name string) bool) ([]*xds.Resource, error) {
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
