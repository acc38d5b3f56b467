package inspect

import (
	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// DiffOffline returns the changes that would result if the files after replaced the files before. It needs no control
// plane. described lists the proxies whose configuration is compared, in the form that compare.ParseProxy accepts.
func DiffOffline(before, after []controlplane.DiffFile, described []string) (controlplane.DiffAnswer, error) {
	answer := controlplane.DiffAnswer{Problems: []config.Problem{}, Groups: []compare.Group{}, Proxies: len(described)}
	var proxies []*translate.Proxy
	for _, text := range described {
		p, err := compare.ParseProxy(text)
		if err != nil {
			return answer, err
		}
		proxies = append(proxies, p)
	}
	old, _ := offline(before)
	next, problems := offline(after)
	answer.Problems = append(answer.Problems, problems...)
	groups, err := compare.Proxies(old, next, proxies)
	answer.Groups = append(answer.Groups, groups...)
	return answer, err
}

func offline(files []controlplane.DiffFile) (*snapshot.Snapshot, []config.Problem) {
	texts := make([]dirstore.File, len(files))
	for i, f := range files {
		texts[i] = dirstore.File(f)
	}
	store, problems := dirstore.ReadTexts(texts, config.Parser{Check: envoyfilter.Check}, nil)
	s := snapshot.Build(nil, snapshot.Inputs{Store: store}, nil)
	return s, append(problems, config.Unsuppressed(analysis.Check(s), store)...)
}
