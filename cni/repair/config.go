package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
)

// Mode is the action for a pod that the CNI plugin did not redirect.
type Mode string

// The values of Mode.
const (
	Watch  Mode = "watch"  // only report the pod
	Repair Mode = "repair" // install the redirection rules in the pod
	Delete Mode = "delete" // delete the pod, so that its controller creates another one
	Label  Mode = "label"  // label the pod, for a user or a controller
)

// API changes pods. *kube.Client implements it.
type API interface {
	Delete(ctx context.Context, p *agentapi.Pod) error
	Label(ctx context.Context, p *agentapi.Pod, key, value string) error
}

// SandboxFinder finds the sandbox of a pod. *sandbox.Index implements it and describes the parameters.
type SandboxFinder interface {
	Find(p *agentapi.Pod, uids []string, hint string) (*sandbox.Sandbox, error)
}

// Config is the configuration of a Repairer.
type Config struct {
	Mode                 Mode
	LabelKey, LabelValue string
	// Drifted makes the repairer also act on pods with incorrect rules. If it is false, the repairer only reports these
	// pods.
	Drifted bool
	// Settings are the plugin's settings. They determine which pods are captured, and with which options.
	Settings capture.Settings
	// Pods returns the pods of the node.
	Pods        func() []*agentapi.Pod
	API         API
	Scan        func() (SandboxFinder, error) // reads the pods' processes
	Redirection Redirection
	// HistoryFile is the file that lists the repaired sandboxes across restarts of the agent; "" for none. It may be
	// lost at a reboot, because all sandboxes are then created again.
	HistoryFile string
	// Every is the interval between checks of all pods; 0 means 1 min. Pause is the minimum interval between checks of
	// changed pods; 0 means 2 s.
	Every, Pause time.Duration
	Callbacks    Callbacks
	Logger       *slog.Logger
}

// Callbacks are functions for metrics and events. Each may be nil.
type Callbacks struct {
	// Checked is called with the result of each check of a pod.
	Checked func(State)
	// Counted is called after each round of checks, with the numbers of checked pods and of pods without correct rules.
	Counted func(captured, drifted int)
	// Acted is called after each action, with the result "success", "fail" or "skip".
	Acted func(mode Mode, result string)
	// Event writes a Kubernetes event about a pod.
	Event func(e kube.PodEvent)
}

func (c *Config) check() error {
	var errs []error
	switch c.Mode {
	case Watch, Repair, Delete:
	case Label:
		if c.LabelKey == "" {
			errs = append(errs, errors.New("repair mode label needs a label key (repair-broken-pod-label-key)"))
		}
	default:
		errs = append(errs, fmt.Errorf("repair mode %q is unknown: use watch, repair, delete or label", c.Mode))
	}
	if c.Every == 0 {
		c.Every = time.Minute
	}
	if c.Pause == 0 {
		c.Pause = 2 * time.Second
	}
	return errors.Join(errs...)
}
