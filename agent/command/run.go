package command

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/internal/processors"
)

const runHelp = `Run an application with its proxy: start the proxy, start the application when
the proxy is ready, and stop the proxy when the application exits. A Kubernetes
Job with a proxy thus completes when its application does.

The application shares the agent's stdin, stdout and stderr. The agent forwards
these signals to it: SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2,
SIGWINCH and SIGCONT. At SIGTERM the proxy also starts to drain, but it serves
until the application has exited.

If the proxy exits first, the agent sends SIGTERM to the application, and
SIGKILL 10 seconds later. After a request POST /quitquitquit, which stops the
proxy, the application continues without it. If the agent is the first process
of a container, it reaps orphaned processes.

Exit codes, if the application was started: the application's exit code, or 128
plus the number of the signal that killed it. Otherwise, or if the proxy exited
first:
  255    the proxy was not ready in time, and the application was not started
  126    the application cannot be executed
  127    the application was not found, or there is no suitable Envoy
  2      wrong flags or configuration
  other  the proxy exited before the application, with that code`

func newRunCommand() *cobra.Command {
	o := &proxyOptions{}
	var timeoutSeconds uint32
	c := &cobra.Command{
		Use:     "run [sidecar|router] [flags] -- PROGRAM [ARGS]",
		Short:   "Run an application together with its proxy",
		Long:    runHelp,
		Example: "  pilotfish-agent run -- /app/job --once",
		Args:    checkRunArgs,
		// Unknown flags are ignored, as in `proxy`, because pods use this command in place of `proxy`.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			return o.run(cmd, args[:dash], args[dash:], time.Duration(timeoutSeconds)*time.Second)
		},
	}
	o.addTo(c)
	o.log.AddTo(c.Flags())
	c.Flags().Uint32Var(&timeoutSeconds, "timeoutSeconds", 60, "maximum time to wait until the proxy is ready, in seconds")
	return c
}

func checkRunArgs(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0 || dash == len(args):
		return usagef("PROGRAM is missing: write it after --, as in `%s -- /app/job --once`", cmd.CommandPath())
	case dash > 1:
		return usagef("write at most one proxy type before --: %q; usage: %s", args[:dash], cmd.UseLine())
	}
	return nil
}

func (o *proxyOptions) run(cmd *cobra.Command, args, argv []string, timeout time.Duration) error {
	started := time.Now()
	path, err := findApplication(argv[0])
	if err != nil {
		return err
	}
	c, log, err := o.prepare(cmd, args)
	if err != nil {
		return err
	}
	defer log.Close()
	a, err := agent.New(agent.Options{Config: c, Logger: log.Logger, Log: log, Started: started,
		EnvoyOutput: log.WriteEnvoyLine, OnFirstReady: processors.Limit})
	if err != nil {
		return err
	}
	stopNotifier := a.NotifySystemd(cmd.Context())
	err = newAppSupervisor(a, path, argv, timeout).run(cmd.Context())
	stopNotifier(err)
	return err
}
