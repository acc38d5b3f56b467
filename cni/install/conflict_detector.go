package install

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// If the installer repairs the installation more than maxRepairs times within conflictWindow, this is a conflict:
	// another program reverts each repair.
	maxRepairs     = 5
	conflictWindow = time.Minute
	// maxBackoff is the maximum delay between two repairs during a conflict, and the minimum interval between log
	// messages about it. absentDelay is the delay if the other program has removed the plugin's entry from the CNI
	// configuration. It is short, because new pods start without redirection until the next repair.
	maxBackoff  = 15 * time.Second
	absentDelay = time.Second
)

// conflictDetector detects a conflict with another program that repeatedly rewrites the installed files.
type conflictDetector struct {
	rounds     []time.Time // times of the repairs within conflictWindow
	lastLogged time.Time
}

// round records a repair. It reports whether there is a conflict, and the delay before the next repair. During a
// conflict the delay grows exponentially. absent means that the other program has removed the plugin's entry.
func (f *conflictDetector) round(now time.Time, absent bool) (conflict bool, wait time.Duration) {
	f.rounds = slices.DeleteFunc(f.rounds, func(t time.Time) bool { return now.Sub(t) > conflictWindow })
	f.rounds = append(f.rounds, now)
	more := len(f.rounds) - maxRepairs
	if more <= 0 {
		return false, 0
	}
	if absent {
		return true, absentDelay
	}
	return true, min(time.Second<<min(more-1, 10), maxBackoff)
}

// shouldLog reports whether to log a message about the conflict. It limits the messages to one per maxBackoff.
func (f *conflictDetector) shouldLog(now time.Time) bool {
	if now.Sub(f.lastLogged) < maxBackoff {
		return false
	}
	f.lastLogged = now
	return true
}

// describeOpponent names the program that probably rewrites the configuration, and the remedy. It derives the program
// from the plugins in the configuration.
func describeOpponent(n *network) string {
	if n == nil {
		return "the primary CNI plugin of this node; check which program writes to the directory"
	}
	for plugin, hint := range map[string]string{
		"cilium-cni": "Cilium: set cni.exclusive=false in its Helm values (cni-exclusive: \"false\" in its ConfigMap)",
		"istio-cni":  "Istio's CNI node agent (istio-cni-node): remove Istio's or pilotfish's node agent",
		"calico":     "Calico's install-cni: it writes its file when its pod restarts; check why it restarts so often",
		"multus":     "Multus: configure it to delegate to this network, and install the plugin with chained-cni-plugin=false",
		"aws-cni":    "the AWS VPC CNI's aws-node: it writes its file when its pod restarts; check why it restarts so often",
	} {
		if slices.Contains(n.types(), plugin) {
			return hint
		}
	}
	return fmt.Sprintf("the program that installs %s (check which program writes to %s)", strings.Join(n.types(), ", "), n.path)
}
