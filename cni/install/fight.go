package install

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// quickRounds within quickTime are a fight: another program puts its configuration back each time.
	quickRounds = 5
	quickTime   = time.Minute
	// longestTruce is the most that is waited in a fight between two rounds, and how often it is told of. Where the plugin
	// was taken out it is shortTruce: all that time new pods start without it.
	longestTruce = 15 * time.Second
	shortTruce   = time.Second
)

// fights notices that somebody else rewrites the configuration again and again.
type fights struct {
	rounds []time.Time
	told   time.Time
}

// round notes one, and says how long to wait before the next: not at all until it is a fight, then ever longer. absent says
// that the plugin was taken out.
func (f *fights) round(now time.Time, absent bool) (fight bool, wait time.Duration) {
	f.rounds = slices.DeleteFunc(f.rounds, func(t time.Time) bool { return now.Sub(t) > quickTime })
	f.rounds = append(f.rounds, now)
	more := len(f.rounds) - quickRounds
	if more <= 0 {
		return false, 0
	}
	if absent {
		return true, shortTruce
	}
	return true, min(time.Second<<min(more-1, 10), longestTruce)
}

// tell says whether it is time to tell of the fight again.
func (f *fights) tell(now time.Time) bool {
	if now.Sub(f.told) < longestTruce {
		return false
	}
	f.told = now
	return true
}

// fighter says who it is likely to be, by the plugins of the file, and what ends the fight.
func fighter(n *network) string {
	if n == nil {
		return "the primary CNI plugin of this node; see what writes to the folder"
	}
	for plugin, hint := range map[string]string{
		"cilium-cni": "Cilium: set cni.exclusive=false in its Helm values (cni-exclusive: \"false\" in its ConfigMap)",
		"istio-cni":  "Istio's node agent (istio-cni-node): remove it, one of the two is enough",
		"calico":     "Calico's install-cni: it writes its file when its pod restarts; see why it restarts so often",
		"multus":     "Multus: let it delegate to this network and install with mode standalone (chained-cni-plugin=false)",
		"aws-cni":    "the AWS VPC CNI's aws-node: it writes its file when its pod restarts; see why it restarts so often",
	} {
		if slices.Contains(n.types(), plugin) {
			return hint
		}
	}
	return fmt.Sprintf("the one that installs %s (see what writes to %s)", strings.Join(n.types(), ", "), n.path)
}
