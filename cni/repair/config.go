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

// The modes.
const (
	Watch  Mode = "watch"  // only report it
	Repair Mode = "repair" // apply the rules
	Delete Mode = "delete" // delete the pod; its controller creates another
	Label  Mode = "label"  // label the pod, for a user or a controller
)

// API changes pods. *kube.Client implements it.
type API interface {
	Delete(ctx context.Context, p *agentapi.Pod) error
	Label(ctx context.Context, p *agentapi.Pod, key, value string) error
}

// SandboxFinder finds the sandbox of a pod. *sandbox.Index implements it. hint may be "".
type SandboxFinder interface {
	Find(p *agentapi.Pod, uids []string, hint string) (*sandbox.Sandbox, error)
}

// Config is the configuration of a Repairer.
type Config struct {
	Mode                 Mode
	LabelKey, LabelValue string
	// Drifted also repairs pods with incorrect rules; otherwise those are only reported.
	Drifted bool
	// Settings are the plugin's settings, which decide which pods are captured, and how.
	Settings capture.Settings
	// Pods returns the known pods.
	Pods        func() []*agentapi.Pod
	API         API
	Scan        func() (SandboxFinder, error)
	Redirection Redirection
	// HistoryFile stores the repaired sandboxes across restarts; "" for none. It may be lost on reboot, after which all
	// sandboxes are new.
	HistoryFile string
	// Every is the interval of checks of all pods. Pause is the minimum interval of checks of changed pods. 0: 1 min, 2
	// s.
	Every, Pause time.Duration
	Callbacks    Callbacks
	Logger       *slog.Logger
}

// Callbacks are called for metrics and events; each may be nil.
type Callbacks struct {
	Checked func(State)
	Counted func(captured, drifted int)
	Acted   func(mode Mode, result string)
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
