package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/describe"
	"github.com/pilotfish-mesh/pilotfish/controlplane/inspect"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// defaultMonitoring is the default monitoring address of a standalone control plane.
const defaultMonitoring = "127.0.0.1:15014"

// query contains the flags that all commands that query a control plane share.
type query struct {
	which       whichMesh
	credentials credentials
	address     string
	output      string
}

func (q *query) flags(c *cobra.Command) {
	q.which.flags(c)
	q.credentials.flags(c)
	c.Flags().StringVar(&q.address, "control-plane", "", "host:port of the control plane to query: its monitoring port, or with credentials its token port (default: the control plane of the mesh on this machine, or "+defaultMonitoring+")")
	c.Flags().StringVarP(&q.output, "output", "o", "", "output format: json or yaml (default: a table)")
	usage.SetExclusive(c, "control-plane", "name")
	usage.SetExclusive(c, "control-plane", "file")
	usage.SetCompletions(c, "output", "json", "yaml")
}

func (q *query) checkOutput() error {
	if q.output != "" && q.output != "json" && q.output != "yaml" {
		return usageError{fmt.Errorf("--output %q: use json or yaml, or omit the flag for a table", q.output)}
	}
	return nil
}

// connect returns a client of the control plane. If the control plane belongs to a mesh on this machine, connect also
// returns a client of the mesh, and otherwise nil.
func (q *query) connect() (*inspect.Client, *mesh.Client, error) {
	if err := q.checkOutput(); err != nil {
		return nil, nil, err
	}
	if q.address == "" && (q.credentials.isSet() || q.credentials.rootCert != "") {
		return nil, nil, usageError{errors.New("--token-file, --cert and --root-cert require --control-plane HOST:15016")}
	}
	if q.address == "" {
		running, err := q.which.connect()
		if err == nil {
			return &inspect.Client{HTTP: running.HTTP(), Base: "http://mesh"}, running, nil
		}
		// If no mesh is running, a standalone control plane may be.
		if absent, ok := errors.AsType[*mesh.NotRunningError](err); !ok || absent.Name != "" || len(absent.Running) > 0 {
			return nil, nil, err
		}
		if q.address = defaultMonitoring; !acceptsConnections(q.address) {
			return nil, nil, fmt.Errorf("%w; or select a control plane with --control-plane, because none responds at %s", err, defaultMonitoring)
		}
	}
	base, err := q.credentials.base(q.address)
	if err != nil {
		return nil, nil, err
	}
	client, err := q.credentials.client(base)
	if err != nil {
		return nil, nil, err
	}
	return &inspect.Client{HTTP: client, Base: base}, nil, nil
}

// acceptsConnections reports whether a process accepts TCP connections at address.
func acceptsConnections(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// find connects to the control plane like connect, and returns the status of the connected proxy called name.
func (q *query) find(ctx context.Context, name string) (*inspect.Client, *mesh.Client, xds.ClientStatus, error) {
	client, running, err := q.connect()
	if err != nil {
		return nil, nil, xds.ClientStatus{}, err
	}
	clients, err := client.Clients(ctx)
	if err != nil {
		return nil, nil, xds.ClientStatus{}, err
	}
	found, err := findProxy(ctx, running, clients, name)
	return client, running, found, err
}

// findProxy returns the connected proxy called name. If running is not nil, and name is a workload of this mesh that
// has no sidecar, it returns a noSidecarError.
func findProxy(ctx context.Context, running *mesh.Client, clients []xds.ClientStatus, name string) (xds.ClientStatus, error) {
	found, err := inspect.Find(clients, name)
	if err == nil {
		return found, nil
	}
	if running != nil {
		s, _ := running.Status(ctx) // on an error, the list of instances is empty
		for _, i := range s.Instances {
			if i.Agent.State == mesh.ProcessNone && (name == i.Name || name == i.Name+"."+i.Namespace) {
				err = &noSidecarError{i}
			}
		}
	}
	return xds.ClientStatus{}, usageError{err}
}

// noSidecarError reports that a workload has no proxy.
type noSidecarError struct{ instance mesh.InstanceStatus }

func (e *noSidecarError) Error() string {
	return fmt.Sprintf("workload %s has no sidecar, so there is no proxy to show (`sidecar: false` in the topology)", e.instance.Name)
}

// completeWorkloads returns the names of connected proxies, for shell completion.
func (q *query) completeWorkloads(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
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
	var q query
	c := &cobra.Command{
		Use:     "proxy-status [WORKLOAD]",
		Aliases: []string{"ps"},
		Short:   "Show whether proxies are in sync, and what they rejected",
		Long: `Show, for each proxy that is connected to the control plane: the number of
resources of each type; whether the proxy has acknowledged the newest ones; and
which resources it rejected, with the reason and the documents from which they
were built.

Exit codes:
  0  all shown proxies are in sync and not degraded
  1  a proxy is not in sync or degraded, or the control plane does not respond
  2  wrong flags, no mesh is running, or the proxy is not connected`,
		Args:              usage.Args("[WORKLOAD]"),
		ValidArgsFunction: q.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error {
			client, running, err := q.connect()
			if err != nil {
				return err
			}
			clients, err := client.Clients(c.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				found, err := findProxy(c.Context(), running, clients, args[0])
				if err != nil {
					return err
				}
				clients = []xds.ClientStatus{found}
			}
			if q.output != "" {
				err = printAs(c.OutOrStdout(), clients, q.output)
			} else {
				err = inspect.WriteClients(c.OutOrStdout(), clients, time.Now())
			}
			for _, one := range clients {
				if err == nil && (!one.InSync || one.Degraded != "") {
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
	var q query
	c := &cobra.Command{
		Use:   "describe WORKLOAD",
		Short: "Describe which documents apply to a workload, and their effects",
		Long: `Describe which documents apply to a workload, and their effects. The workload's
proxy must be connected to the control plane, or the workload must belong to a
mesh on this machine and have no sidecar. For inbound calls, the output contains
the workload's ports, services and routes, its mutual TLS mode, and the clients
that are allowed. For outbound calls, it contains the visible services and the
rules for calls to them. Each document is shown with its position.

Exit codes:
  0  success
  1  the control plane does not respond
  2  wrong flags, no mesh is running, or the proxy is not connected`,
		Args:              usage.Args("WORKLOAD"),
		ValidArgsFunction: q.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error {
			d, err := q.describe(c.Context(), args[0])
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

// describe returns the description of a workload with or without a sidecar.
func (q *query) describe(ctx context.Context, name string) (describe.Description, error) {
	client, _, found, err := q.find(ctx, name)
	if plain, ok := errors.AsType[*noSidecarError](err); ok {
		return client.DescribeWithoutSidecar(ctx, plain.instance.Namespace, plain.instance.Name)
	}
	if err != nil {
		return describe.Description{}, err
	}
	return client.Describe(ctx, found.ID)
}

func newDiffCommand() *cobra.Command {
	var q query
	var exitCode bool
	var from string
	var proxies []string
	c := &cobra.Command{
		Use:   "diff DIR|FILE...",
		Short: "Show how changed documents would change each proxy",
		Long: `Show how the configuration of each connected proxy would change if these
documents replaced the documents that the control plane now reads from files.
Nothing is applied. The output also contains the problems of the documents.
Proxies with the same changes are shown together. Private keys of Kubernetes
Secrets are not sent to the control plane.

With --from, compare two directories without a control plane, for the proxies
that --proxy describes.

Exit codes:
  0  success
  1  the comparison failed; with --exit-code also if something would change
  2  wrong flags, no mesh is running, or a file cannot be read`,
		Example: `  pilotfish diff ./config.new
  pilotfish diff ./config.new -o json
  pilotfish diff ./config.new --from ./config \
    --proxy reviews-v1.shop:app=reviews,version=v1 \
    --proxy router/edge.shop:istio=edge`,
		Args: usage.Args("DIR|FILE..."),
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
	c.Flags().StringVar(&from, "from", "", "directory or file to compare with, instead of the control plane's documents")
	c.Flags().StringArrayVar(&proxies, "proxy", nil, "with --from: a proxy, described as [router/]NAME.NAMESPACE:LABEL=VALUE,…; may be repeated")
	usage.SetTogether(c, "from", "proxy")
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 1 if something would change")
	return c
}

// diff returns the changes that files would cause, compared with the documents of the control plane. If from is not
// empty, it compares files with the documents in the directory or file from, without a control plane.
func (q *query) diff(ctx context.Context, files []controlplane.DiffFile, from string, proxies []string) (controlplane.DiffAnswer, error) {
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

// envoyAdmin returns a client of an Envoy's admin interface: at address if that is not empty, or else of a proxy in the
// mesh on this machine.
func envoyAdmin(running *mesh.Client, client xds.ClientStatus, address string) (*inspect.Admin, error) {
	switch {
	case address != "":
		client := &http.Client{Timeout: time.Minute}
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			client.Transport = &http.Transport{DialContext: dial.LocalhostDialer(&net.Dialer{})}
			address = dial.SocketHost(path)
		}
		return &inspect.Admin{HTTP: client, Base: "http://" + address}, nil
	case running != nil:
		name, _, _ := strings.Cut(inspect.Name(client), ".")
		return &inspect.Admin{HTTP: running.HTTP(), Base: "http://mesh/workloads/" + name + "/envoy"}, nil
	}
	return nil, usageError{errors.New("this information is available only from the proxy's Envoy: specify the address of its admin interface with --envoy-admin, such as 127.0.0.1:15000 or unix:/run/pilotfish/admin.sock")}
}
