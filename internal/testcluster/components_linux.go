package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// disabledControllers react to nodes without a kubelet and to pods without a node, or need a cloud or volumes.
const disabledControllers = "*,-node-lifecycle-controller,-taint-eviction-controller,-device-taint-eviction-controller,-pod-garbage-collector-controller," +
	"-persistentvolume-attach-detach-controller,-persistentvolume-binder-controller,-persistentvolume-expander-controller," +
	"-persistentvolumeclaim-protection-controller,-persistentvolume-protection-controller,-ephemeral-volume-controller," +
	"-service-lb-controller,-node-route-controller,-node-ipam-controller"

// serviceRanges are the addresses of Services, of both families.
const serviceRanges = "10.96.0.0/16,fd96::/112"

// Issuer is the issuer of the tokens of service accounts.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// startComponent starts a component and waits until it is ready.
func (c *Cluster) startComponent(name string, port int) error {
	args, isReady := c.etcdArgs(), c.checkEtcd
	switch name {
	case APIServer:
		args, isReady = c.apiServerArgs(port), c.checkAPIServer
	case Controllers:
		args, isReady = c.controllerArgs(), c.checkControllers
	}
	p, err := startProcess(c.path(name+".log"), filepath.Join(c.bin, name), args...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.components[name] = p
	c.mu.Unlock()
	return c.waitReady(name, p, isReady)
}

func (c *Cluster) waitReady(name string, p *process, isReady func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for {
		err := isReady(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended before it was ready", name)
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %s: %w\n%s", name, readyTimeout, err, p.readLogEnd())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Cluster) checkEtcd(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path("etcd.sock"))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (c *Cluster) checkAPIServer(ctx context.Context) error {
	_, err := c.Do(ctx, http.MethodGet, "/readyz", "", nil)
	return err
}

// checkControllers returns nil once the controllers for service accounts and root certificates have worked.
func (c *Cluster) checkControllers(ctx context.Context) error {
	return c.checkNamespace(ctx, "default")
}

// checkNamespace returns nil once pods can be created in a namespace.
func (c *Cluster) checkNamespace(ctx context.Context, namespace string) error {
	_, err := c.Do(ctx, http.MethodGet, "/api/v1/namespaces/"+namespace+"/serviceaccounts/default", "", nil)
	if err == nil {
		_, err = c.Do(ctx, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps/kube-root-ca.crt", "", nil)
	}
	return err
}

func (c *Cluster) etcdArgs() []string { return []string{c.path("etcd"), c.path("etcd.sock")} }

func (c *Cluster) apiServerArgs(port int) []string {
	args := []string{
		"--etcd-servers=unix://" + c.path("etcd.sock"), "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--endpoint-reconciler-type=none", // an endpoint cannot be a loopback address
		"--service-cluster-ip-range=" + serviceRanges, "--authorization-mode=RBAC", "--allow-privileged", "--profiling=false",
		"--cert-dir=" + c.dir, "--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--service-account-issuer=" + Issuer, "--service-account-signing-key-file=" + c.path("accounts.key"),
		"--service-account-key-file=" + c.path("accounts.pub"),
	}
	if c.options.AuditPolicy != "" {
		// The mode makes each request wait until it is logged.
		args = append(args, "--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"), "--audit-log-mode=blocking-strict")
	}
	return append(args, c.options.APIServerFlags...)
}

func (c *Cluster) controllerArgs() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig, "--controllers=" + disabledControllers, "--secure-port=0", "--leader-elect=false", "--profiling=false",
		"--service-account-private-key-file=" + c.path("accounts.key"), "--root-ca-file=" + c.path("ca.crt"),
		"--cluster-signing-cert-file=" + c.path("ca.crt"), "--cluster-signing-key-file=" + c.path("ca.key"),
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	}
}

// Kill kills a component: Etcd, APIServer or Controllers. Its data remains.
func (c *Cluster) Kill(t testing.TB, name string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.components[name]
	if p == nil {
		t.Fatalf("%s does not run", name)
	}
	p.kill()
	delete(c.components, name)
}

// Restart starts a component after Kill and waits until it is ready. After a restart, the API server returns 410 Gone
// to watches that continue at an earlier version.
func (c *Cluster) Restart(t testing.TB, name string) {
	t.Helper()
	c.mu.Lock()
	running := c.components[name] != nil
	c.mu.Unlock()
	address, err := url.Parse(c.URL)
	if err != nil || running {
		t.Fatal(errors.Join(err, fmt.Errorf("%s runs: %t", name, running)))
	}
	port, _ := strconv.Atoi(address.Port())
	if err := c.startComponent(name, port); err != nil {
		t.Fatal(err)
	}
}
