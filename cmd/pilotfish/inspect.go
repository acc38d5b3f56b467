package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/inspect"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// defaultMonitoring is where the monitoring port of a control plane of its own is, unless told otherwise.
const defaultMonitoring = "127.0.0.1:15014"

// inquiry are the flags of commands that ask a control plane.
type inquiry struct {
	which   whichMesh
	address string
	output  string
}

func (q *inquiry) flags(c *cobra.Command) {
	q.which.flags(c)
	c.Flags().StringVar(&q.address, "control-plane", "", "monitoring port of the control plane to ask (default: that of the mesh that runs here, or "+defaultMonitoring+")")
	c.Flags().StringVarP(&q.output, "output", "o", "", "json or yaml, in place of a table")
	c.MarkFlagsMutuallyExclusive("control-plane", "name")
	c.MarkFlagsMutuallyExclusive("control-plane", "file")
	complete(c, "output", "json", "yaml")
}

func (q *inquiry) checkOutput() error {
	if q.output != "" && q.output != "json" && q.output != "yaml" {
		return usageError{fmt.Errorf("output %q is not known: use json or yaml, or leave it out for a table", q.output)}
	}
	return nil
}

// connect finds the control plane; its mesh is nil when that is none of this machine's.
func (q *inquiry) connect() (*inspect.Client, *mesh.Client, error) {
	if err := q.checkOutput(); err != nil {
		return nil, nil, err
	}
	if q.address == "" {
		running, err := q.which.connect()
		if err == nil {
			return &inspect.Client{HTTP: running.HTTP(), Base: "http://mesh"}, running, nil
		}
		// Without a mesh there may be a control plane by itself.
		if absent, ok := errors.AsType[*mesh.NotRunningError](err); !ok || absent.Name != "" || len(absent.Running) > 0 {
			return nil, nil, err
		}
		q.address = defaultMonitoring
	}
	base := strings.TrimSuffix(q.address, "/")
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	return &inspect.Client{HTTP: &http.Client{Timeout: time.Minute}, Base: base}, nil, nil
}

// find gives the client that is meant.
func (q *inquiry) find(ctx context.Context, name string) (*inspect.Client, *mesh.Client, xds.ClientStatus, error) {
	client, running, err := q.connect()
	if err != nil {
		return nil, nil, xds.ClientStatus{}, err
	}
	clients, err := client.Clients(ctx)
	if err != nil {
		return nil, nil, xds.ClientStatus{}, err
	}
	found, err := inspect.Find(clients, name)
	if err != nil {
		err = usageError{err}
	}
	return client, running, found, err
}

// completeWorkloads offers the connected proxies to the shell.
func (q *inquiry) completeWorkloads(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, _, err := q.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	clients, err := client.Clients(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, one := range clients {
		names = append(names, inspect.Name(one))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newProxyStatusCommand() *cobra.Command {
	var q inquiry
	c := &cobra.Command{
		Use:     "proxy-status [WORKLOAD]",
		Aliases: []string{"ps"},
		Short:   "Show how in sync the connected proxies are, and what they rejected",
		Long: `Show, for each connected proxy, how many resources of each type it has; whether it has answered what it was sent; and
what it rejected, with the reason and the documents that it was made of.

It ends with status 0 when all that are shown are in sync, 1 when one is not or the control plane does not answer, and 2
when the flags are wrong or there is no such proxy.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: q.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error {
			client, _, err := q.connect()
			if err != nil {
				return err
			}
			clients, err := client.Clients(c.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				found, err := inspect.Find(clients, args[0])
				if err != nil {
					return usageError{err}
				}
				clients = []xds.ClientStatus{found}
			}
			if q.output != "" {
				err = printAs(c.OutOrStdout(), clients, q.output)
			} else {
				err = inspect.WriteClients(c.OutOrStdout(), clients, time.Now())
			}
			for _, one := range clients {
				if err == nil && !one.InSync {
					return errQuiet
				}
			}
			return err
		},
	}
	q.flags(c)
	return c
}

func newDescribeCommand() *cobra.Command {
	var q inquiry
	c := &cobra.Command{
		Use:   "describe WORKLOAD",
		Short: "Say in words which documents apply to a workload, and what that means",
		Long: `Say in words what the documents come to for the workload of a connected proxy: at which ports of which services it is
called, and by what its callers go; whether with mutual TLS; who may call it; what it sees of the mesh; and by which rules
its calls go out. Each document is named with its place.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: q.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error {
			client, _, found, err := q.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			d, err := client.Describe(c.Context(), found.ID)
			if err != nil {
				return err
			}
			if q.output != "" {
				return printAs(c.OutOrStdout(), d, q.output)
			}
			return d.Write(c.OutOrStdout())
		},
	}
	q.flags(c)
	return c
}

func newDiffCommand() *cobra.Command {
	var q inquiry
	var exitCode bool
	var from string
	var proxies []string
	c := &cobra.Command{
		Use:   "diff DIR|FILE...",
		Short: "Show what a changed directory would change in each proxy, before it is applied",
		Long: `Show, for each connected proxy, what would be added, removed and changed in its configuration if these documents took the
place of those that the control plane reads from files now; and what is to be said of the documents. Nothing is put in
force. Proxies for which the same changes are told together. Private keys of Kubernetes Secrets are not sent along.

With --from, two directories are compared without asking a control plane, for the proxies that --proxy describes.

It ends with status 0, 1 when it could not be told (with --exit-code also when something would change), and 2 when the
flags are wrong or something named cannot be read.`,
		Example: `  pilotfish diff ./config.new
  pilotfish diff ./config.new -o json
  pilotfish diff ./config.new --from ./config --proxy reviews-v1.shop:app=reviews,version=v1 --proxy router/edge.shop:istio=edge`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := inspect.ReadFiles(args)
			if err != nil {
				return usageError{err}
			}
			answer, err := q.diff(c.Context(), files, from, proxies)
			if err != nil {
				return err
			}
			if q.output != "" {
				err = printAs(c.OutOrStdout(), answer, q.output)
			} else {
				err = inspect.WriteDiff(c.OutOrStdout(), answer.Proxies, answer.Groups, answer.Problems)
			}
			if err == nil && exitCode && len(answer.Groups) > 0 {
				return errQuiet
			}
			return err
		},
	}
	q.flags(c)
	c.Flags().StringVar(&from, "from", "", "directory or file to compare with, in place of what a control plane has")
	c.Flags().StringArrayVar(&proxies, "proxy", nil, "with --from: a proxy, as [router/]NAME.NAMESPACE:LABEL=VALUE,…; may be repeated")
	c.MarkFlagsRequiredTogether("from", "proxy")
	c.Flags().BoolVar(&exitCode, "exit-code", false, "end with status 1 when something would change")
	return c
}

// diff asks a control plane, or compares by itself where it is told what with.
func (q *inquiry) diff(ctx context.Context, files []controlplane.DiffFile, from string, proxies []string) (controlplane.DiffAnswer, error) {
	if from == "" {
		client, _, err := q.connect()
		if err != nil {
			return controlplane.DiffAnswer{}, err
		}
		return client.Diff(ctx, files)
	}
	if err := q.checkOutput(); err != nil {
		return controlplane.DiffAnswer{}, err
	}
	before, err := inspect.ReadFiles([]string{from})
	if err != nil {
		return controlplane.DiffAnswer{}, usageError{err}
	}
	answer, err := inspect.DiffOffline(before, files, proxies)
	if err != nil {
		err = usageError{err}
	}
	return answer, err
}

// envoyAdmin are the pages of one Envoy: of the mesh that runs here, or at an address.
func envoyAdmin(running *mesh.Client, client xds.ClientStatus, address string) (*inspect.Admin, error) {
	switch {
	case address != "":
		return &inspect.Admin{HTTP: &http.Client{Timeout: time.Minute}, Base: "http://" + address}, nil
	case running != nil:
		name, _, _ := strings.Cut(inspect.Name(client), ".")
		return &inspect.Admin{HTTP: running.HTTP(), Base: "http://mesh/workloads/" + name + "/envoy"}, nil
	}
	return nil, usageError{errors.New("only its Envoy can say that: give the address of its admin interface by --envoy-admin, such as 127.0.0.1:15000")}
}
