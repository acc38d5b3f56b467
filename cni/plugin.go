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
	// Started is the start time of the process. The duration that the plugin reports to the node agent begins then.
	Started time.Time
	// PodTimeout is the timeout of the pod lookup; 0 means 5 s. If the lookup fails, the kubelet runs ADD again.
	PodTimeout time.Duration
	// Step is called between the steps of ADD, for tests.
	Step func(name string)

	redirector redirector
	version    string // version of the CNI specification in the runtime's configuration
}

const (
	defaultPodTimeout = 5 * time.Second
	firstPause        = 200 * time.Millisecond
	// commandTime is the timeout of a command. It is necessary because the node's iptables may hang, and the kubelet
	// waits for minutes.
	commandTime = time.Minute
)

// about is the text for a user who runs the plugin manually.
const about = "pilotfish-cni is a CNI plugin that redirects a pod's traffic to its sidecar. The container runtime runs it " +
	"after the plugin that creates the pod's network. See docs/cni.md."

// Main runs the command in CNI_COMMAND and returns the exit code of the process. It prints an error on standard output
// in the CNI format, which runtimes add to the pod's events. DEL and GC never fail.
func Main(started time.Time) int {
	umask.ClearOwnerBits()
	debug.SetGCPercent(400) // the process runs for milliseconds, so fewer garbage collections save CPU time
	// The work is sequential; with more, idle scheduler threads would use a quarter of the CPU time.
	runtime.GOMAXPROCS(1)
	if os.Getenv("PATH") == "" { // the node's iptables binaries are in these directories
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
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: ignored an error of %s: %v\n", command, err)
		return 0
	}
	if writeErr := p.writeError(err); writeErr != nil {
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: %v (and the response could not be written: %v)\n", err, writeErr)
	}
	return 1
}

// maxMessage and maxDetails limit an error's texts, in bytes. An error may quote settings of the pod, which a user
// controls. Kubernetes stores the error in an event, whose size is limited.
const maxMessage, maxDetails = 1 << 10, 4 << 10

// cut shortens text to maxBytes bytes. It appends the full length to a text that it shortens.
func cut(text string, maxBytes int) string {
	if len(text) <= maxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxBytes], "") + fmt.Sprintf("… (%d bytes in total)", len(text))
}

// writeError prints an error in the CNI format, with the version of the CNI specification that the runtime uses.
func (p *Plugin) writeError(failure *types.Error) error {
	text, err := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(p.version, "1.0.0"), failure})
	if err == nil {
		_, err = p.Out.Write(append(text, '\n'))
	}
	return err
}

// run runs the command in CNI_COMMAND. It converts a panic to an error.
func (p *Plugin) run() (err *types.Error) {
	defer func() {
		if r := recover(); r != nil {
			_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: panic: %v\n%s", r, debug.Stack())
			err = types.NewError(types.ErrInternal, "pilotfish-cni crashed; the pod is not started, because its traffic would not be redirected", fmt.Sprint(r))
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

// command returns a handler that reads the configuration, runs the command, and logs and reports the result.
func (p *Plugin) command(name string, run func(context.Context, *call) error) func(*skel.CmdArgs) error {
	return func(cmd *skel.CmdArgs) error {
		config, err := parseConfig(cmd.StdinData)
		if err != nil {
			return err
		}
		p.version = config.CNIVersion
		c := &call{journal: newJournal(p.Err, config), config: config, skel: cmd, agent: newAgentClient(config.RunDir)}
		c.result = agentapi.Result{Command: name, ContainerID: cmd.ContainerID, NetNS: cmd.Netns}
		ctx, cancel := context.WithTimeoutCause(context.Background(), commandTime, fmt.Errorf("the CNI command %s timed out after %v", name, commandTime))
		defer cancel()
		if c.args, err = parseArgs(cmd.Args); err != nil {
			err = types.NewError(types.ErrInvalidEnvironmentVariables, "cannot parse CNI_ARGS", err.Error())
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
		log.Error("the CNI command failed", "error", c.result.Reason)
	case c.result.Outcome == agentapi.Removed:
		log.Debug("the CNI command succeeded")
	default:
		log.Info("the CNI command succeeded", "reason", c.result.Reason, "source", c.result.Source)
	}
	if c.config.PolicyFile == "" {
		c.agent.report(ctx, c.entries(), c.result)
	}
}

// del implements DEL. It removes the attachment's file, and the remains of an ADD that was killed, but no complete
// rules. The traffic of processes that still run in the sandbox thus remains captured. The kernel removes the rules
// together with the network namespace.
func (p *Plugin) del(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	c.attachments().remove(c.attachment())
	netns, err := openNetNS(c.skel.Netns)
	if err != nil {
		return nil // the namespace no longer exists
	}
	defer func() { _ = netns.Close() }()
	if err := p.redirector.repairRules(ctx, netns); err != nil {
		c.Debug("cannot remove the remains of an interrupted ADD", "pod", c.args.name(), "error", err)
	}
	return nil
}

// status implements STATUS. It returns an error if the plugin's configuration is invalid, because every ADD would then
// fail. With StatusChecksAgent it also returns an error while the node agent does not respond.
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
		return types.NewError(types.ErrPluginNotAvailable, "new pods cannot start until the mesh's node agent responds", err.Error())
	}
	return nil
}

// asCNI returns the CNI error that err wraps. If err does not wrap one, it returns a CNI error with the code and message,
// and with err as details.
func asCNI(code uint, message string, err error) error {
	if known := new(types.Error); errors.As(err, &known) {
		return known
	}
	return types.NewError(code, message, err.Error())
}
