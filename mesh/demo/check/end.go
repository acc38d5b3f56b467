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
)

// endsClean ends the mesh, and looks for all that it had: processes, listening addresses, files.
func endsClean(ctx context.Context, t *Target) (string, error) {
	had, err := t.footprint(ctx)
	if err != nil {
		return "", errors.Join(fmt.Errorf("what the mesh has on this machine cannot be told: %w", err), t.Stop(ctx))
	}
	start := time.Now()
	stopErr := t.Stop(ctx)
	took := time.Since(start)
	t.closeClients()
	if stopErr != nil && errors.Is(stopErr, t.startErr) {
		stopErr = nil // it was told when the mesh did not come up
	}
	if err := had.gone(ctx); err != nil || stopErr != nil {
		return "", errors.Join(stopErr, err)
	}
	if len(had.processes) == 0 {
		return "nothing had been started, and nothing is left", nil
	}
	return fmt.Sprintf("in %s: %d processes%s gone, no listener left in %s or at the gateway's port, no socket, no temporary file",
		round(took), len(had.processes), had.countNamespaces(), had.network), nil
}

func (f *footprint) countNamespaces() string {
	if len(f.namespaces) == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d network namespaces", len(f.namespaces))
}

// gone waits a moment, for the kernel to forget what has ended, and says what is still there.
func (f *footprint) gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		left, err := f.left()
		if err != nil || len(left) == 0 {
			return err
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the mesh has ended and left %s", strings.Join(left, ", "))
		}
	}
}

// footprint is all that a running mesh has on the machine.
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
	f.network, _ = netip.ParsePrefix(status.Network)                             // invalid when the mesh never got one
	if u, err := url.Parse(t.Gateway); err == nil && len(status.Instances) > 0 { // else somebody else may be there
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
	f.processes, err = family(os.Getpid(), known)
	f.namespaces = ownNamespaces(f.processes)
	return f, err
}

// left names what of the footprint is still there.
func (f *footprint) left() ([]string, error) {
	var left []string
	for _, p := range f.processes {
		if p.alive() {
			left = append(left, fmt.Sprintf("process %d (%s)", p.pid, p.name))
		}
	}
	listeners, err := listening()
	if err != nil {
		return nil, err
	}
	for _, a := range listeners {
		if a == f.gateway || f.network.IsValid() && f.network.Contains(a.Addr()) {
			left = append(left, "a listener on "+a.String())
		}
	}
	sockets, err := namedSockets()
	if err != nil {
		return nil, err
	}
	for _, name := range sockets {
		if f.owns(name) {
			left = append(left, "the socket "+name)
		}
	}
	others, err := processes()
	if err != nil {
		return nil, err
	}
	for _, ns := range ownNamespaces(others) {
		if slices.Contains(f.namespaces, ns) {
			left = append(left, "the network namespace "+ns)
		}
	}
	for _, folder := range f.folders {
		if _, err := os.Lstat(folder); err == nil {
			left = append(left, "the folder "+folder)
		}
	}
	return left, nil
}

// owns says whether a unix socket is of this mesh: in one of its folders, or the one that stands for its network.
func (f *footprint) owns(socket string) bool {
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
