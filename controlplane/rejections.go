package controlplane

import (
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// rejections are what proxies refuse at the moment, as problems of the documents that are the likeliest causes. What several
// refuse for one reason is told once.
func rejections(clients []xds.ClientStatus, store config.Store) []config.Problem {
	var out []config.Problem
	told := map[config.Problem]int{} // places in out
	by := map[int]int{}              // how many proxies
	for _, c := range clients {
		for _, t := range c.Types {
			if t.Rejected == nil {
				continue
			}
			p := rejection(t, store)
			at, ok := told[p]
			if !ok {
				at = len(out)
				told[p], out = at, append(out, p)
			}
			by[at]++
		}
	}
	for i := range out {
		out[i].Message = fmt.Sprintf("rejected by %s, each of which keeps what it had: %s", proxies(by[i]), out[i].Message)
	}
	return out
}

func rejection(t xds.TypeStatus, store config.Store) config.Problem {
	p := config.Problem{
		Code: config.RejectedByEnvoy, Severity: config.Error, Message: t.Rejected.Reason,
		Remedy: "mend the document, or look at those that `pilotfish proxy-status` names beside it",
	}
	if len(t.Rejected.From) == 0 {
		p.Remedy = "no document is known to be its cause: look at what `pilotfish proxy-status` and the log of the proxy's Envoy say of it"
		if len(t.Rejected.Resources) > 0 {
			p.Remedy = "no document is known to be its cause: look at " + t.Rejected.Resources[0]
		}
		return p
	}
	likeliest := t.Rejected.From[0]
	kind, name, _ := strings.Cut(likeliest.Document, " ")
	namespace, name, _ := strings.Cut(name, "/")
	p.Key, p.Field = config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name}, likeliest.Field
	if r := store.Get(p.Key); r != nil {
		p.At = r.Place(p.Field)
	}
	return p
}

func proxies(n int) string {
	if n == 1 {
		return "a proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}
