package translate

import (
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Bootstrap returns the JSON that EnvoyFilters merge into the bootstrap of a proxy, with Envoy's field names. It
// returns nil if no EnvoyFilter patches the bootstrap. When a proxy requests its bootstrap, the control plane knows
// only its type, namespace and labels. Patches with other conditions therefore do not apply.
func Bootstrap(s *snapshot.Snapshot, p *Proxy) ([]byte, error) {
	merged := p.patches(s).Bootstrap(p.Type == Router)
	if merged == nil {
		return nil, nil
	}
	text, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(merged)
	if err != nil {
		return nil, err
	}
	return []byte(config.CompactJSON(text)), nil
}
