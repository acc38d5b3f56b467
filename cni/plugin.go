package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
)

// Plugin runs one command of a container runtime.
type Plugin struct {
	Out, Err io.Writer
	// Started is the start time of the process, for the duration reported to the node agent.
	Started time.Time
	// PodTimeout limits the lookup of the pod; 0: 5 s. The kubelet retries after a failure.
	PodTimeout time.Duration
	// Step is called between the steps of ADD, for tests.
	Step func(name string)

	redirector redirector
	version    string // the specification version that the runtime uses
}

const (
	defaultPodTimeout = 5 * time.Second
	firstPause        = 200 * time.Millisecond
	// commandTime limits a command, since a node's iptables may hang. The kubelet waits for minutes.
	commandTime = time.Minute
)

// about is printed to a user who runs the plugin by hand.
const about = "pilotfish-cni is a CNI plugin: a container runtime runs it, behind the plugin that makes a pod's network, " +
	"to redirect the pod's traffic into its sidecar. See docs/cni.md."

// Main runs the command for which the runtime started the process and returns its exit code. It prints an error on
// standard output in the form that runtimes add to the pod's events. DEL and GC never fail.
func Main(started time.Time) int {
	umask.ClearOwnerBits()
	debug.SetGCPercent(400)      // the garbage of a few milliseconds is not worth collecting
	runtime.GOMAXPROCS(1)        // the work is sequential; idle processors that search for work use a quarter of the CPU time
	if os.Getenv("PATH") == "" { // directories of the node's iptables
		_ = os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return newPlugin(started).main()
}

func newPlugin(started time.Time) *Plugin {
	return &Plugin{Out: os.Stdout, Err: os.Stderr, Started: started, redirector: kernel{}}
}

func (p *Plugin) main() int {
	err := p.readStdin()
	if err == nil {
		err = p.run()
	}
	if err == nil {
		return 0
	}
	err.Msg, err.Details = cut(err.Msg, maxMessage), cut(err.Details, maxDetails)
	if command := os.Getenv("CNI_COMMAND"); command == "DEL" || command == "GC" {
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: %s continues despite: %v\n", command, err)
		return 0
	}
	if writeErr := p.answer(err); writeErr != nil {
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: %v (and the response could not be written: %v)\n", err, writeErr)
	}
	return 1
}

// An error may quote the pod's settings, which a user controls. It is stored in an event, which shows some hundred
// characters and cannot hold 200,000.
const maxMessage, maxDetails = 1 << 10, 4 << 10

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("… (%d bytes in all)", len(text))
}

// answer prints an error in the specification version that the runtime uses.
func (p *Plugin) answer(failure *types.Error) error {
	text, err := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(p.version, "1.0.0"), failure})
	if err == nil {
		_, err = p.Out.Write(append(text, '\n'))
	}
	return err
}

// run runs one command. It converts a panic to an error.
func (p *Plugin) run() (err *types.Error) {
	defer func() {
		if r := recover(); r != nil {
			_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: panic: %v\n%s", r, debug.Stack())
			err = types.NewError(types.ErrInternal, "pilotfish-cni failed; the pod is not started, because it would be unprotected", fmt.Sprint(r))
		}
	}()
	return skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    p.command("ADD", p.add),
		Check:  p.command("CHECK", p.check),
		Del:    p.command("DEL", p.del),
		GC:     p.command("GC", p.gc),
		Status: p.status,
	}, version.All, about)
}

// call is the state of one command.
type call struct {
	*journal
	config *Config
	skel   *skel.CmdArgs
	args   *podArgs
	agent  *agentClient
	// result is reported to the node agent.
	result agentapi.Result
}

// command wraps a command: it reads the configuration, and logs and reports the result.
func (p *Plugin) command(name string, run func(context.Context, *call) error) func(*skel.CmdArgs) error {
	return func(cmd *skel.CmdArgs) error {
		config, err := parseConfig(cmd.StdinData)
		if err != nil {
			return err
		}
		p.version = config.CNIVersion
		c := &call{journal: newJournal(p.Err, config), config: config, skel: cmd, agent: newAgentClient(config.RunDir)}
		c.result = agentapi.Result{Command: name, ContainerID: cmd.ContainerID, NetNS: cmd.Netns}
		ctx, cancel := context.WithTimeoutCause(context.Background(), commandTime, fmt.Errorf("%s took longer than %v", name, commandTime))
		defer cancel()
		if c.args, err = parseArgs(cmd.Args); err != nil {
			err = types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS cannot be read", err.Error())
		} else {
			c.result.Namespace, c.result.Pod, c.result.UID = c.args.Namespace, c.args.Name, c.args.UID
			err = run(ctx, c)
		}
		c.reportResult(context.WithoutCancel(ctx), time.Since(p.Started), err)
		return err
	}
}

// reportResult logs the result of the command and reports it to the node agent.
func (c *call) reportResult(ctx context.Context, took time.Duration, err error) {
	c.result.Seconds = took.Seconds()
	if err != nil {
		c.result.Outcome, c.result.Reason = agentapi.Failed, cut(err.Error(), maxDetails)
	}
	log := c.With("command", c.result.Command, "pod", c.args.name(), "container", c.skel.ContainerID, "outcome", c.result.Outcome,
		"milliseconds", took.Milliseconds())
	switch {
	case err != nil:
		log.Error("the sandbox is invalid", "error", c.result.Reason)
	case c.result.Outcome == agentapi.Removed:
		log.Debug("done")
	default:
		log.Info("done", "reason", c.result.Reason, "source", c.result.Source)
	}
	if c.config.PolicyFile == "" {
		c.agent.report(ctx, c.entries(), c.result)
	}
}

// del does not remove the rules, which end with the namespace. Processes that still run in it stay captured. The
// removal of one of several networks does not affect the others.
func (p *Plugin) del(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	c.attachments().remove(c.attachment())
	netns, err := openNetNS(c.skel.Netns)
	if err != nil {
		return nil // the namespace no longer exists
	}
	defer func() { _ = netns.Close() }()
	// The rules remain as long as the namespace exists: its processes may still run.
	if err := p.redirector.repairRules(ctx, netns); err != nil {
		c.Debug("the sandbox is not changed", "pod", c.args.name(), "error", err)
	}
	return nil
}

// status reports whether an ADD can succeed. It fails if the configuration would fail every pod and, if configured,
// while the node agent does not respond.
func (p *Plugin) status(cmd *skel.CmdArgs) error {
	config, err := parseConfig(cmd.StdinData)
	if err != nil {
		return err
	}
	p.version = config.CNIVersion
	if err := config.validate(); err != nil {
		return err
	}
	if config.PolicyFile != "" {
		_, err := loadPolicy(config.PolicyFile)
		return err
	}
	if !config.StatusChecksAgent {
		return nil
	}
	if err := newAgentClient(config.RunDir).status(context.Background()); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "new pods cannot start before the mesh's node agent responds", err.Error())
	}
	return nil
}

// asCNI converts an error to a CNI error with a remedy.
func asCNI(code uint, message string, err error) error {
	if known := new(types.Error); errors.As(err, &known) {
		return known
	}
	return types.NewError(code, message, err.Error())
}
