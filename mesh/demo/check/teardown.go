package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// checkTeardown stops the mesh, and checks that none of its processes, listeners and files remain.
func checkTeardown(ctx context.Context, t *Target) (string, error) {
	had, err := t.footprint(ctx)
	if err != nil {
		return "", errors.Join(fmt.Errorf("listing the mesh's resources on this machine: %w", err), t.Stop(ctx))
	}
	start := time.Now()
	stopErr := t.Stop(ctx)
	took := time.Since(start)
	t.closeClients()
	if stopErr != nil && errors.Is(stopErr, t.startErr) {
		stopErr = nil // the check of the start has already reported the error
	}
	if err := had.waitRemoved(ctx); err != nil || stopErr != nil {
		return "", errors.Join(stopErr, err)
	}
	if len(had.processes) == 0 {
		return "no process was started, and nothing remains", nil
	}
	return fmt.Sprintf("after %s, none of the %d processes%s remain, and no listener in %s or at the gateway's port, no unix socket and no temporary file",
		round(took), len(had.processes), had.countNamespaces(), had.network), nil
}

func (f *footprint) countNamespaces() string {
	if len(f.namespaces) == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d network namespaces", len(f.namespaces))
}

// waitRemoved waits up to two seconds for the kernel to release resources, and reports resources that still exist.
func (f *footprint) waitRemoved(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		left, err := f.remaining()
		if err != nil || len(left) == 0 {
			return err
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the mesh has stopped, but these remain: %s", strings.Join(left, ", "))
		}
	}
}

// footprint lists the resources of this machine that a running mesh uses.
type footprint struct {
	processes []process
	network   netip.Prefix
	gateway   netip.AddrPort
	folders   []string
	// namespaces are the network namespaces of a mesh that captures traffic.
	namespaces []string
}

func (t *Target) footprint(ctx context.Context) (*footprint, error) {
	status := t.Mesh.Status(ctx)
	f := &footprint{folders: append([]string{}, t.Folders...)}
	if status.RuntimeDir != "" {
		f.folders = append(f.folders, status.RuntimeDir)
	}
	f.network, _ = netip.ParsePrefix(status.Network)                             // the zero value if the mesh has no network
	if u, err := url.Parse(t.Gateway); err == nil && len(status.Instances) > 0 { // without instances, another process may use the address
		f.gateway, _ = netip.ParseAddrPort(u.Host)
	}
	var known []int
	for _, i := range status.Instances {
		known = append(known, i.Agent.PID, i.EnvoyPID)
		if i.App != nil {
			known = append(known, i.App.PID)
		}
	}
	var err error
	f.processes, err = descendants(os.Getpid(), known)
	f.namespaces = otherNamespaces(f.processes)
	return f, err
}

// remaining returns descriptions of the resources that still exist.
func (f *footprint) remaining() ([]string, error) {
	var left []string
	for _, p := range f.processes {
		if p.isAlive() {
			left = append(left, fmt.Sprintf("process %d (%s)", p.pid, p.name))
		}
	}
	listeners, err := tcpListeners()
	if err != nil {
		return nil, err
	}
	for _, a := range listeners {
		if a == f.gateway || f.network.IsValid() && f.network.Contains(a.Addr()) {
			left = append(left, "a listener on "+a.String())
		}
	}
	sockets, err := unixSockets()
	if err != nil {
		return nil, err
	}
	for _, name := range sockets {
		if f.ownsSocket(name) {
			left = append(left, "the socket "+name)
		}
	}
	others, err := processes()
	if err != nil {
		return nil, err
	}
	for _, ns := range otherNamespaces(others) {
		if slices.Contains(f.namespaces, ns) {
			left = append(left, "the network namespace "+ns)
		}
	}
	for _, folder := range f.folders {
		if _, err := os.Lstat(folder); err == nil {
			left = append(left, "the directory "+folder)
		}
	}
	return left, nil
}

// ownsSocket reports whether a unix socket belongs to this mesh. The mesh's sockets are in its directories, except the
// socket that reserves its network.
func (f *footprint) ownsSocket(socket string) bool {
	if f.network.IsValid() && socket == "@pilotfish/"+f.network.Addr().String() {
		return true
	}
	for _, folder := range f.folders {
		if strings.HasPrefix(socket, folder+"/") {
			return true
		}
	}
	return false
}
