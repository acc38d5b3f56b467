package analysis

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// ExplainRefused returns a copy of problems with better findings about missing objects. If a refused document would
// define the missing object, the finding reports the refusal and its position. refused contains the problems of all
// documents.
func ExplainRefused(s *snapshot.Snapshot, problems, refused []config.Problem) []config.Problem {
	refused = slices.DeleteFunc(slices.Clone(refused), func(p config.Problem) bool {
		return p.Severity != config.Error || p.Code == config.DuplicateName || p.Key.Name == ""
	})
	if len(refused) == 0 {
		return problems
	}
	out := slices.Clone(problems)
	for i, p := range out {
		if p.Missing == (config.MissingObject{}) {
			continue
		}
		at := slices.IndexFunc(refused, func(r config.Problem) bool { return mayDefine(s, r, p.Missing) })
		if at < 0 {
			continue
		}
		cause := refused[at]
		out[i].Message = fmt.Sprintf("%s is refused (%s)", cause.Key, cause.At)
		if p.Missing.Effect != "" {
			out[i].Message += ": " + p.Missing.Effect
		}
		out[i].Remedy = "correct " + cause.Key.String() + " as its finding describes"
	}
	return out
}

// mayDefine reports whether a refused document would define the missing object if it were in force.
func mayDefine(s *snapshot.Snapshot, refused config.Problem, missing config.MissingObject) bool {
	key := refused.Key
	isFor := func(host string) bool {
		return slices.ContainsFunc(strings.Fields(refused.Hosts), func(written string) bool {
			return snapshot.MatchHost(s.Registry.ResolveHostname(written, key.Namespace), host)
		})
	}
	switch missing.Kind {
	case "":
		return key.Kind == config.Service && fmt.Sprintf("%s.%s.svc.%s", key.Name, key.Namespace, s.Domain) == missing.Host ||
			key.Kind == config.ServiceEntry && isFor(missing.Host)
	case config.DestinationRule:
		return key.Kind == config.DestinationRule && isFor(missing.Host)
	case config.RequestAuthentication:
		return key.Kind == missing.Kind && (key.Namespace == missing.Namespace || key.Namespace == s.Mesh.GetRootNamespace())
	}
	return key.Kind == missing.Kind && key.Name == missing.Name && (missing.Namespace == "" || key.Namespace == missing.Namespace)
}
