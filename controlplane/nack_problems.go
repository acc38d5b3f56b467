package controlplane

import (
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// nackProblems returns a finding for each current NACK of clients, about the document that most likely caused it. It
// reports equal NACKs of several proxies once, with the number of proxies.
func nackProblems(clients []xds.ClientStatus, store config.Store) []config.Problem {
	var out []config.Problem
	indices := map[config.Problem]int{} // indices in out
	count := map[int]int{}              // number of proxies with the same finding, by the finding's index
	for _, c := range clients {
		for _, t := range c.Types {
			if t.Rejected == nil {
				continue
			}
			p := nackProblem(t, store)
			at, ok := indices[p]
			if !ok {
				at = len(out)
				indices[p], out = at, append(out, p)
			}
			count[at]++
		}
	}
	for i := range out {
		out[i].Message = fmt.Sprintf("rejected by %s, so the last accepted configuration stays in use: %s", describeProxies(count[i]), out[i].Message)
	}
	return out
}

func nackProblem(t xds.TypeStatus, store config.Store) config.Problem {
	p := config.Problem{
		Code: config.RejectedByEnvoy, Severity: config.Error, Message: t.Rejected.Reason,
		Remedy: "fix the document, or check the other documents that `pilotfish proxy-status` lists",
	}
	if len(t.Rejected.From) == 0 {
		p.Remedy = "the control plane found no document that may be the cause: check `pilotfish proxy-status` and the log of the proxy's Envoy"
		if len(t.Rejected.Resources) > 0 {
			p.Remedy = "the control plane found no document that may be the cause: check " + t.Rejected.Resources[0]
		}
		return p
	}
	likeliest := t.Rejected.From[0]
	kind, name, _ := strings.Cut(likeliest.Document, " ")
	namespace, name, _ := strings.Cut(name, "/")
	p.Key, p.Field = config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name}, likeliest.Field
	if r := store.Get(p.Key); r != nil {
		p.At = r.PositionOf(p.Field)
	}
	return p
}

func describeProxies(n int) string {
	if n == 1 {
		return "a proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}
