//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Loopback addresses of istiod and of the two sidecars that it configures.
const (
	istioPlane  = "127.73.0.1"
	istioClient = "127.73.1.1"
	istioServer = "127.73.2.1"
)

// startIstioPair starts istiod and two sidecars that it configures, with an application behind them. The sidecars have
// the same Envoy and agent as the sidecars of the local mesh.
func (b *bench) startIstioPair(ctx context.Context) (pair *side, stop func(), err error) {
	var stops []func() error
	stop = func() {
		for i := range stops {
			_ = stops[len(stops)-1-i]() // only needed for the measurement
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	_, port, err := freePorts()
	if err != nil {
		return nil, stop, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, stop, err
	}
	end, err := start(b.dir, os.Environ(), self, "-serve", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, end)
	dir := filepath.Join(b.dir, "istio")
	if err := unpack("istio", dir, "${CLIENT}", istioClient, "${SERVER}", istioServer, "${APP_PORT}", port); err != nil {
		return nil, stop, err
	}
	roots, end, err := b.startLoopbackIstiod(ctx, dir)
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, end)
	pair = &side{name: "istiod's sidecars", address: istioClient + ":15080", target: "/", host: "server.bench:15080"}
	for _, w := range []struct{ name, address string }{{"client", istioClient}, {"server", istioServer}} {
		pid, end, err := b.startIstioSidecar(ctx, w.name, w.address, roots)
		if err != nil {
			return nil, stop, fmt.Errorf("%s: %w", w.name, err)
		}
		stops, pair.pids = append(stops, end), append(pair.pids, pid)
	}
	return pair, stop, awaitAnswer(ctx, load{address: pair.address, target: pair.target, host: pair.host})
}

// startLoopbackIstiod starts istiod with the files of a directory, and returns its root certificates.
func (b *bench) startLoopbackIstiod(ctx context.Context, files string) (roots []byte, stop func() error, err error) {
	api := &emptyKubernetes{made: map[string]json.RawMessage{}}
	address, err := api.serve(ctx)
	if err != nil {
		return nil, nil, err
	}
	dir := files + "-istiod"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	kubeconfig, err := writeKubeconfig(dir, address)
	if err != nil {
		return nil, nil, err
	}
	stop, err = start(dir, istiodEnv(dir), b.istiod, "discovery", "--configDir", files, "--kubeconfig", kubeconfig,
		"--httpAddr", istioPlane+":8080", "--grpcAddr", istioPlane+":15010", "--secureGRPCAddr", istioPlane+":15012",
		"--monitoringAddr", "", "--httpsAddr", "", "--ctrlz_port", "0", "--log_output_level", "default:error")
	if err != nil {
		return nil, nil, err
	}
	if _, err := awaitOK(ctx, "http://"+istioPlane+":8080/ready"); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if roots, err = api.istiodRoots(); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return roots, stop, nil
}

// startIstioSidecar starts an agent with one worker thread, as in the local mesh, and returns the PID of its Envoy.
func (b *bench) startIstioSidecar(ctx context.Context, name, address string, roots []byte) (pid int, stop func() error, err error) {
	dir := filepath.Join(b.dir, "istio-"+name)
	for file, data := range map[string][]byte{tokenFile: []byte("token-of-default"), rootFile: roots} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			return 0, nil, err
		}
	}
	log, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(b.bin, "pilotfish-agent"), "proxy", "sidecar", "--concurrency", "1", "--proxyLogLevel=warning")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "ENVOY_PATH=" + b.envoy, "PILOT_CERT_PROVIDER=istiod",
		"ISTIOD_SAN=" + istiodHost, "CA_ADDR=" + istioPlane + ":15012", "PROXY_BIND_ADDRESS=" + address, "INSTANCE_IP=" + address,
		"POD_NAME=" + name, "POD_NAMESPACE=default", "SERVICE_ACCOUNT=default", "ISTIO_META_CLUSTER_ID=Kubernetes",
		"ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_WORKLOAD_NAME=" + name, "TRUST_DOMAIN=cluster.local", "ECC_SIGNATURE_ALGORITHM=ECDSA",
		fmt.Sprintf("ISTIO_METAJSON_LABELS={\"app\":%q}", name), fmt.Sprintf(`PROXY_CONFIG={"discoveryAddress":"%s:15012"}`, istioPlane),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop = func() error { endAgent(cmd); return nil }
	if _, err := awaitOK(ctx, "http://"+address+":15021/healthz/ready"); err != nil {
		_ = stop()
		text, _ := os.ReadFile(log.Name())
		return 0, nil, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-maxPrintedLog):])
	}
	if pid, err = childOf(cmd.Process.Pid); err != nil {
		_ = stop()
		return 0, nil, err
	}
	return pid, stop, nil
}
