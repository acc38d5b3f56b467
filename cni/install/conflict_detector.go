package install

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// quickRounds within quickTime are a conflict: another program restores its configuration each time.
	quickRounds = 5
	quickTime   = time.Minute
	// maxTruce is the maximum delay between two rounds of a conflict, and the minimum interval of its log messages.
	// shortTruce applies where the plugin was removed from the configuration, because new pods start without it
	// meanwhile.
	maxTruce   = 15 * time.Second
	shortTruce = time.Second
)

// conflictDetector detects that another program rewrites the configuration repeatedly.
type conflictDetector struct {
	rounds     []time.Time
	lastLogged time.Time
}

// round records a round and returns the delay before the next. The delay is 0 until there is a conflict, then grows
// exponentially. absent reports that the plugin was removed from the configuration.
func (f *conflictDetector) round(now time.Time, absent bool) (fight bool, wait time.Duration) {
	f.rounds = slices.DeleteFunc(f.rounds, func(t time.Time) bool { return now.Sub(t) > quickTime })
	f.rounds = append(f.rounds, now)
	more := len(f.rounds) - quickRounds
	if more <= 0 {
		return false, 0
	}
	if absent {
		return true, shortTruce
	}
	return true, min(time.Second<<min(more-1, 10), maxTruce)
}

// shouldLog reports whether a log message about the conflict is due, at most once per maxTruce.
func (f *conflictDetector) shouldLog(now time.Time) bool {
	if now.Sub(f.lastLogged) < maxTruce {
		return false
	}
	f.lastLogged = now
	return true
}

// describeOpponent returns the program that is probably the cause, derived from the plugins in the file, and the
// remedy.
func describeOpponent(n *network) string {
	if n == nil {
		return "the primary CNI plugin of this node; check which program writes to the directory"
	}
	for plugin, hint := range map[string]string{
		"cilium-cni": "Cilium: set cni.exclusive=false in its Helm values (cni-exclusive: \"false\" in its ConfigMap)",
		"istio-cni":  "Istio's node agent (istio-cni-node): remove one of the two node agents",
		"calico":     "Calico's install-cni: it writes its file when its pod restarts; check why it restarts so often",
		"multus":     "Multus: let it delegate to this network and install with mode standalone (chained-cni-plugin=false)",
		"aws-cni":    "the AWS VPC CNI's aws-node: it writes its file when its pod restarts; check why it restarts so often",
	} {
		if slices.Contains(n.types(), plugin) {
			return hint
		}
	}
	return fmt.Sprintf("the program that installs %s (check which program writes to %s)", strings.Join(n.types(), ", "), n.path)
}
