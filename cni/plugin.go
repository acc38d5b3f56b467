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
	// Started is when the process began, for the time that the node agent is told.
	Started time.Time
	// Patience is how long the pod is asked for; 0: 5 s. The kubelet begins anew after a failure.
	Patience time.Duration
	// Step is called between the steps of ADD, in tests.
	Step func(name string)

	redirector redirector
	version    string // of the specification, as the runtime speaks it
}

const (
	defaultPatience = 5 * time.Second
	firstPause      = 200 * time.Millisecond
	// commandTime bounds a command: a node's iptables may hang. The kubelet waits for minutes.
	commandTime = time.Minute
)

// about is what someone sees who runs the plugin by hand.
const about = "pilotfish-cni is a CNI plugin: a container runtime runs it, behind the plugin that makes a pod's network, " +
	"to redirect the pod's traffic into its sidecar. See docs/cni.md."

// Main runs the command that the process was started for and gives its exit code. A failure is told on standard output, in
// the form that runtimes hand on to the pod's events. An end of a pod (DEL, GC) never fails.
func Main(started time.Time) int {
	umask.SpareOwner()
	debug.SetGCPercent(400)      // what a few milliseconds leave is not worth collecting
	runtime.GOMAXPROCS(1)        // one thing is done after the other; processors that look for more cost a quarter of it
	if os.Getenv("PATH") == "" { // the node's iptables, where they are needed, are in one of these
		_ = os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return newPlugin(started).main()
}

func newPlugin(started time.Time) *Plugin {
	return &Plugin{Out: os.Stdout, Err: os.Stderr, Started: started, redirector: kernel{}}
}

func (p *Plugin) main() int {
	err := p.takeConfig()
	if err == nil {
		err = p.run()
	}
	if err == nil {
		return 0
	}
	err.Msg, err.Details = cut(err.Msg, mostMessage), cut(err.Details, mostDetails)
	if command := os.Getenv("CNI_COMMAND"); command == "DEL" || command == "GC" {
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: %s goes on in spite of: %v\n", command, err)
		return 0
	}
	if writeErr := p.answer(err); writeErr != nil {
		_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: %v (and the answer could not be written: %v)\n", err, writeErr)
	}
	return 1
}

// What a failure says may quote the pod's settings, which hold what anybody wrote. It goes into an event, of which people
// see some hundred letters, and which has no room for 200,000.
const mostMessage, mostDetails = 1 << 10, 4 << 10

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + fmt.Sprintf("… (%d bytes in all)", len(text))
}

// answer tells a failure in the version of the specification that the runtime speaks.
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

// run answers one command. What panics fails, and says so as any other failure.
func (p *Plugin) run() (err *types.Error) {
	defer func() {
		if r := recover(); r != nil {
			_, _ = fmt.Fprintf(p.Err, "pilotfish-cni: panic: %v\n%s", r, debug.Stack())
			err = types.NewError(types.ErrInternal, "pilotfish-cni failed, so the pod does not start unprotected", fmt.Sprint(r))
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

// call is one command at work.
type call struct {
	*journal
	config *Config
	skel   *skel.CmdArgs
	args   *podArgs
	agent  *agentClient
	// result is what the node agent is told.
	result agentapi.Result
}

// command wraps a command in what all have in common: the configuration is read, and what came of it logged and told.
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
		c.tell(context.WithoutCancel(ctx), time.Since(p.Started), err)
		return err
	}
}

// tell logs how the command ended, and tells the node agent of it.
func (c *call) tell(ctx context.Context, took time.Duration, err error) {
	c.result.Seconds = took.Seconds()
	if err != nil {
		c.result.Outcome, c.result.Reason = agentapi.Failed, cut(err.Error(), mostDetails)
	}
	log := c.With("command", c.result.Command, "pod", c.args.name(), "container", c.skel.ContainerID, "outcome", c.result.Outcome,
		"milliseconds", took.Milliseconds())
	switch {
	case err != nil:
		log.Error("the sandbox is refused", "error", c.result.Reason)
	case c.result.Outcome == agentapi.Removed:
		log.Debug("done")
	default:
		log.Info("done", "reason", c.result.Reason, "source", c.result.Source)
	}
	if c.config.PolicyFile == "" {
		c.agent.tell(ctx, c.entries(), c.result)
	}
}

// del leaves the rules in force: they end with the namespace. Until then whatever still runs in it stays captured, and an
// end of one of several networks of a pod takes nothing from the others.
func (p *Plugin) del(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	c.attachments().forget(c.attachment())
	netns, err := openNetNS(c.skel.Netns)
	if err != nil {
		return nil // it is gone, and all that was in it
	}
	defer func() { _ = netns.Close() }()
	// The rules stay as long as the namespace does: its processes may not have ended yet.
	if err := p.redirector.heal(ctx, netns); err != nil {
		c.Debug("the sandbox is left as it is", "pod", c.args.name(), "error", err)
	}
	return nil
}

// status tells the runtime whether an ADD could succeed. It fails for a configuration that would fail every pod, and, where
// that is wanted, while the node agent does not answer.
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
	if !config.StatusAsksAgent {
		return nil
	}
	if err := newAgentClient(config.RunDir).status(context.Background()); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "new pods would wait for the mesh's node agent", err.Error())
	}
	return nil
}

// asCNI gives an error the form of CNI, with what to do about it.
func asCNI(code uint, message string, err error) error {
	if known := new(types.Error); errors.As(err, &known) {
		return known
	}
	return types.NewError(code, message, err.Error())
}
