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

// Mode is what is done with a pod that slipped past.
type Mode string

// The modes.
const (
	Watch  Mode = "watch"  // it is told, no more
	Mend   Mode = "repair" // its rules are put in force
	Delete Mode = "delete" // for its controller to make another
	Label  Mode = "label"  // for a person or a controller to see
)

// API changes pods; *kube.Client is one.
type API interface {
	Delete(ctx context.Context, p *agentapi.Pod) error
	Label(ctx context.Context, p *agentapi.Pod, key, value string) error
}

// Processes finds the sandbox of a pod; *sandbox.Index is one. hint may be "".
type Processes interface {
	Find(p *agentapi.Pod, uids []string, hint string) (*sandbox.Sandbox, error)
}

// Config is what a Repairer needs.
type Config struct {
	Mode                 Mode
	LabelKey, LabelValue string
	// Drifted deals also with pods whose rules are there and not what they should be; otherwise those are only told.
	Drifted bool
	// Settings decide which pods have to be captured, and how: those of the plugin's configuration.
	Settings capture.Settings
	// Pods gives those that are known now.
	Pods        func() []*agentapi.Pod
	API         API
	Scan        func() (Processes, error)
	Redirection Redirection
	// Memory is a file that keeps what was acted on beyond this process; "" for none. It may be lost at a reboot, after
	// which all sandboxes are others.
	Memory string
	// Every is how often all pods are looked at, Pause the least between two looks at those that changed; 0: 1 min, 2 s.
	Every, Pause time.Duration
	Tell         Tell
	Logger       *slog.Logger
}

// Tell is how a Repairer's figures come out; each may be nil.
type Tell struct {
	Checked  func(State)
	Standing func(captured, drifted int)
	Acted    func(mode Mode, result string)
	// Event is for the pod's own events, for people.
	Event func(e kube.PodEvent)
}

func (c *Config) check() error {
	var errs []error
	switch c.Mode {
	case Watch, Mend, Delete:
	case Label:
		if c.LabelKey == "" {
			errs = append(errs, errors.New("pods cannot be labelled without a label's name (repair-broken-pod-label-key)"))
		}
	default:
		errs = append(errs, fmt.Errorf("repair mode %q is not known: watch, repair, delete and label are", c.Mode))
	}
	if c.Every == 0 {
		c.Every = time.Minute
	}
	if c.Pause == 0 {
		c.Pause = 2 * time.Second
	}
	return errors.Join(errs...)
}
