package translate

import (
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Bootstrap is what EnvoyFilters merge into the bootstrap of a proxy that is yet to start, in JSON with Envoy's names of
// fields; nothing when none does. Of such a proxy no more is known than its type, namespace and labels: patches that ask for
// more are not for it.
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
