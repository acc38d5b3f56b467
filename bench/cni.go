//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

const (
	cniAlone      = 200 // number of sequential calls of each kind
	cniConcurrent = 50  // number of concurrent ADD calls
	cniTogether   = 1000
)

// cni measures the CNI plugin from the start of its process to its exit, as a container runtime observes it: for a
// redirected pod, for an excluded pod, and for the command VERSION. It calls the plugin sequentially and concurrently. A
// node agent on a unix socket returns the pods to the plugin.
func (b *bench) cni(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can create network namespaces: run `bench -only cni` as root")
	}
	stop, err := serveAgent(filepath.Join(b.dir, agentapi.SocketName))
	if err != nil {
		return err
	}
	defer stop()
	fmt.Printf("CNI plugin, from the start of the process to its exit\n")
	kinds := []struct{ name, command, pod string }{
		{"VERSION (the process alone)", "VERSION", ""}, {"ADD, excluded", "ADD", "plain"}, {"ADD, captured", "ADD", "web"},
		{"CHECK, captured", "CHECK", "web"}, {"DEL", "DEL", "web"},
	}
	times := make([][]cniRun, len(kinds))
	for range cniAlone {
		ns, err := newNetNS()
		if err != nil {
			return err
		}
		for i, k := range kinds {
			took, err := b.callCNI(ctx, ns, k.command, k.pod)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			times[i] = append(times[i], took)
		}
		_ = ns.Close()
	}
	for i, k := range kinds {
		printTimes(k.name, times[i])
	}
	together, err := b.concurrent(ctx)
	if err != nil {
		return err
	}
	printTimes(fmt.Sprintf("ADD, captured, %d at a time", cniConcurrent), together)
	return nil
}

// cniRun is one run of the plugin.
type cniRun struct {
	took      time.Duration
	processor time.Duration // CPU time of the plugin; other load of the machine affects it less than the elapsed time
}

func printTimes(name string, runs []cniRun) {
	var took, processor []time.Duration
	for _, r := range runs {
		took, processor = append(took, r.took), append(processor, r.processor)
	}
	slices.Sort(took)
	slices.Sort(processor)
	fmt.Printf("  %-30s p50 %6.1f ms, p99 %6.1f ms; processor p50 %4.1f ms (%d)\n", name,
		milliseconds(took[len(took)/2]), milliseconds(took[len(took)*99/100]), milliseconds(processor[len(processor)/2]), len(runs))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// concurrent measures concurrent ADD calls, each in a separate network namespace.
func (b *bench) concurrent(ctx context.Context) (times []cniRun, err error) {
	slots, mu := make(chan struct{}, cniConcurrent), sync.Mutex{}
	var all sync.WaitGroup
	for range cniTogether {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			took, failed := b.addInNew(ctx)
			mu.Lock()
			defer mu.Unlock()
			times, err = append(times, took), errors.Join(err, failed)
		})
	}
	all.Wait()
	return times, err
}

func (b *bench) addInNew(ctx context.Context) (cniRun, error) {
	ns, err := newNetNS()
	if err != nil {
		return cniRun{}, err
	}
	defer func() { _ = ns.Close() }()
	return b.callCNI(ctx, ns, "ADD", "web")
}

// newNetNS creates a network namespace with an active loopback interface. It uses a separate thread, which ends
// afterwards.
func newNetNS() (ns netns.NsHandle, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if ns, err = netns.New(); err == nil {
			err = netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}})
		}
	}()
	<-done
	return ns, err
}

func (b *bench) callCNI(ctx context.Context, ns netns.NsHandle, command, pod string) (cniRun, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pilotfish-cni"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_PATH=" + b.bin,
		fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), int(ns)),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_UID=u;K8S_POD_NAME=" + pod}
	cmd.Stdin = bytes.NewReader(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"pods","type":"pilotfish-cni","cni_agent_run_dir":%q,"prevResult":{"cniVersion":"1.0.0"}}`, b.dir))
	var out bytes.Buffer
	cmd.Stdout = &out
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return cniRun{}, fmt.Errorf("%w: %s", err, out.String())
	}
	return cniRun{took: time.Since(begin), processor: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

// serveAgent runs a node agent with two pods: web, which is in the mesh, and plain, which is not.
func serveAgent(socket string) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.FormValue("name")
		p := agentapi.Pod{Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: "u", Annotations: map[string]string{"sidecar.istio.io/status": "{}"}}}
		if name == "web" {
			p.Spec.Containers = []agentapi.Container{{Name: "istio-proxy"}}
		}
		_ = json.NewEncoder(w).Encode(p)
	})}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}
