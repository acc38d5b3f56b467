package agent

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

const runHelp = `Run an application beside its proxy: start the proxy, start the application when the proxy is ready, and end the
proxy when the application ends. A job with a proxy ends by itself that way.

The application has the agent's input and output. Signals are passed on to it: SIGTERM, SIGINT, SIGQUIT, SIGHUP,
SIGUSR1, SIGUSR2, SIGWINCH and SIGCONT; with SIGTERM the proxy also fails its readiness and tells its clients to
go, and serves on until the application has ended. When the proxy ends first, the application gets SIGTERM, and
10 seconds later SIGKILL; not when it was asked to by POST /quitquitquit, as jobs do at their end. As the first process
of a container it takes in orphaned processes.

Exit codes:
  the application's own, or 128 and the number of the signal that ended it
  255    the proxy was not ready in time, and the application was not started
  126    the application cannot be run
  127    the application was not found, or there is no Envoy that will do
  2      wrong flags or configuration
  other  the proxy ended before the application, with that code`

func newRunCommand() *cobra.Command {
	o := &proxyOptions{}
	var timeoutSeconds uint32
	c := &cobra.Command{
		Use:     "run [sidecar|router] [flags] -- PROGRAM [ARGS]",
		Short:   "Run an application beside its proxy, and end the proxy with it",
		Long:    runHelp,
		Example: "  pilotfish-agent run -- /app/job --once",
		Args:    usageArgs(checkRunArgs),
		// As `proxy`, which it takes the place of.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			return o.run(cmd, args[:dash], args[dash:], time.Duration(timeoutSeconds)*time.Second)
		},
	}
	o.addTo(c.Flags())
	c.Flags().Uint32Var(&timeoutSeconds, "timeoutSeconds", 60, "how long to wait for the proxy to be ready")
	return c
}

func checkRunArgs(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0 || dash == len(args):
		return fmt.Errorf("there is no application to run: write it after --, as `%s -- /app/job --once`", cmd.CommandPath())
	case dash > 1:
		return fmt.Errorf("at most one kind of proxy goes before --: %q", args[:dash])
	}
	return nil
}

func (o *proxyOptions) run(cmd *cobra.Command, args, argv []string, timeout time.Duration) error {
	started := time.Now()
	path, err := findApplication(argv[0])
	if err != nil {
		return err
	}
	config, log, err := o.prepare(cmd, args)
	if err != nil {
		return err
	}
	defer log.Close()
	a, err := New(Options{Config: config, Logger: log.Logger, Log: log, Started: started,
		EnvoyOutput: log.envoyLine})
	if err != nil {
		return err
	}
	stopTelling := tellService(cmd.Context(), a)
	err = newJob(a, path, argv, timeout).run(cmd.Context())
	stopTelling(err)
	return err
}
