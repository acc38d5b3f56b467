//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// Loopback addresses of the processes in this measurement.
const (
	planeAddress = "127.70.0.1"
	proxyAddress = "127.70.1.1"
	appAddress   = "127.70.1.2"
)

// pollInterval is the interval between readiness polls. It is not shorter because Envoy's main thread handles each
// poll, and more polls would slow down Envoy's start.
const pollInterval = 5 * time.Millisecond

const startupConfig = `
apiVersion: v1
kind: Service
metadata: {name: server, namespace: default}
spec:
  selector: {app: server}
  ports: [{name: http, port: 8080}]
`

// startup compares the time from exec to readiness of the agent with Envoy, and of Envoy alone. Envoy alone has the same
// bootstrap, and its configuration and certificate are already available on the sockets.
func (b *bench) startup(ctx context.Context) error {
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // only needed for the measurement
	var agent, alone, extra []time.Duration
	for round := range b.rounds + 1 {
		a, err := b.startAgent(ctx)
		if err != nil {
			return err
		}
		e, err := b.startEnvoy(ctx)
		if err != nil {
			return err
		}
		if round == 0 { // the first round fills the file system's caches
			continue
		}
		agent, alone, extra = append(agent, a), append(alone, e), append(extra, a-e)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	ratio := float64(median(agent)) / float64(median(alone))
	fmt.Printf("time from start to readiness, medians of %d\n", b.rounds)
	fmt.Printf("  Envoy alone, same bootstrap, warm xDS and SDS   %6.1f ms\n", ms(median(alone)))
	fmt.Printf("  agent and Envoy                                 %6.1f ms   x%.2f, +%.1f ms\n", ms(median(agent)), ratio, ms(median(extra)))
	return nil
}

func (b *bench) startPlane(ctx context.Context) (stop func() error, err error) {
	dir := filepath.Join(b.dir, "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "service.yaml"), []byte(startupConfig), 0o600); err != nil {
		return nil, err
	}
	stop, err = start(b.dir, os.Environ(), filepath.Join(b.bin, "pilotfish"),
		"control-plane", "--config-dir", dir, "--state-dir", b.stateDir(), "--address", planeAddress)
	if err != nil {
		return nil, err
	}
	if _, err := awaitOK(ctx, "http://"+planeAddress+":15014/ready"); err != nil {
		return nil, fmt.Errorf("waiting until the control plane is ready: %w: %w", err, stop())
	}
	return stop, nil
}

func (b *bench) stateDir() string { return filepath.Join(b.dir, "state") }

// workDir creates an agent's working directory.
func (b *bench) workDir(name string) (string, error) {
	dir := filepath.Join(b.dir, name)
	for _, d := range []string{"var/run/secrets/tokens", "var/run/secrets/istio", "etc/istio/proxy"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return "", err
		}
	}
	token := exec.Command(filepath.Join(b.bin, "pilotfish"), "token", "--state-dir", b.stateDir(), "--out",
		filepath.Join(dir, "var/run/secrets/tokens/istio-token"))
	if out, err := token.CombinedOutput(); err != nil {
		return "", fmt.Errorf("issuing a token with `pilotfish token`: %w\n%s", err, out)
	}
	root, err := b.root()
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, rootFile), root, 0o600)
}

const (
	rootFile  = "var/run/secrets/istio/root-cert.pem"
	tokenFile = "var/run/secrets/tokens/istio-token"
)

func (b *bench) root() ([]byte, error) {
	found, err := filepath.Glob(filepath.Join(b.stateDir(), "authority", "*root*.pem"))
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("the authority's root is not in %s", b.stateDir())
	}
	return os.ReadFile(found[0])
}

func (b *bench) agentEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "ENVOY_PATH=" + b.envoy,
		"INSTANCE_IP=" + proxyAddress, "PROXY_BIND_ADDRESS=" + proxyAddress,
		"POD_NAME=server", "POD_NAMESPACE=default", "SERVICE_ACCOUNT=default",
		"ISTIO_META_INTERCEPTION_MODE=NONE", "ISTIO_META_APP_ADDRESS=" + appAddress,
		"ISTIO_METAJSON_LABELS={\"app\":\"server\"}", "ECC_SIGNATURE_ALGORITHM=ECDSA",
		"CA_ADDR=" + planeAddress + ":15012", "PROXY_CONFIG={\"discoveryAddress\":\"" + planeAddress + ":15012\"}",
	}
}

// runningAgent is a running agent whose Envoy is ready.
type runningAgent struct {
	cmd  *exec.Cmd
	took time.Duration // from start to readiness
}

// launchAgent starts the agent and waits until it is ready. more are additional environment variables. The caller must stop
// the agent.
func (b *bench) launchAgent(ctx context.Context, more ...string) (*runningAgent, error) {
	dir, err := b.workDir("agent")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(b.dir, "agent.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	began := time.Now()
	cmd := exec.Command(filepath.Join(b.bin, "pilotfish-agent"), "proxy", "sidecar")
	cmd.Dir, cmd.Env = dir, append(b.agentEnv(), more...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &runningAgent{cmd: cmd}
	ready, err := awaitOK(ctx, "http://"+proxyAddress+":15020/healthz/ready")
	if err != nil {
		r.quit()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("starting the agent: %w\n%s", err, text)
	}
	r.took = ready.Sub(began)
	return r, nil
}

// quit stops the agent without draining.
func (r *runningAgent) quit() {
	_ = r.cmd.Process.Signal(syscall.SIGINT)
	quit(proxyAddress)
	_ = r.cmd.Wait() // its exit status is not relevant
}

// startAgent measures one start of the agent with its Envoy.
func (b *bench) startAgent(ctx context.Context) (took time.Duration, err error) {
	r, err := b.launchAgent(ctx)
	if err != nil {
		return 0, err
	}
	r.quit()
	return r.took, nil
}

// startEnvoy measures one start of Envoy alone, with the bootstrap that the agent would write.
func (b *bench) startEnvoy(ctx context.Context) (time.Duration, error) {
	dir := filepath.Join(b.dir, "agent")
	ctx, cancel := context.WithCancel(ctx)
	done, err := serveSockets(ctx, dir)
	if err != nil {
		cancel()
		return 0, err
	}
	defer func() { cancel(); done() }()
	began := time.Now()
	stop, err := start(dir, os.Environ(), b.envoy, "-c", "etc/istio/proxy/envoy-rev.json", "--disable-hot-restart",
		"--allow-unknown-static-fields", "-l", "warning")
	if err != nil {
		return 0, err
	}
	ready, err := awaitOK(ctx, "http://"+proxyAddress+":15000/ready")
	if stopErr := stop(); err != nil {
		return 0, fmt.Errorf("starting Envoy without the agent: %w: %w", err, stopErr)
	}
	return ready.Sub(began), nil
}

// serveSockets serves all that the agent serves to Envoy, on the sockets in the bootstrap: an xDS relay and SDS. It returns
// when the relay is connected and the certificate is issued.
func serveSockets(ctx context.Context, dir string) (wait func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	tls := xdsproxy.TLS{RootFile: filepath.Join(dir, rootFile), ServerName: "istiod.istio-system.svc"}
	relay, err := xdsproxy.New(xdsproxy.Config{
		Socket: filepath.Join(dir, "etc/istio/proxy/XDS"), Upstreams: []string{planeAddress + ":15012"},
		Server: xdsproxy.Server{TLS: tls, TokenFile: filepath.Join(dir, tokenFile)},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	source, err := sds.NewCASource(sds.CAConfig{
		Address: planeAddress + ":15012", CAServer: sds.CAServer{TLS: tls, TokenFile: filepath.Join(dir, tokenFile)},
		TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default",
	})
	if err != nil {
		cancel()
		return nil, err
	}
	secrets, err := sds.New(sds.Config{Socket: filepath.Join(dir, "var/run/secrets/workload-spiffe-uds/socket"), Source: source})
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(ctx) }()
	go func() { ended <- secrets.Run(ctx) }()
	wait = func() { cancel(); <-ended; <-ended }
	for deadline := time.Now().Add(5 * time.Second); len(secrets.Certificates()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			wait()
			return nil, fmt.Errorf("the SDS server sent no certificate within 5 s")
		}
	}
	return wait, nil
}

// awaitOK polls a URL until the response has status 200, and returns the time of that response. It fails after a minute,
// because an Envoy with thousands of statistics starts slowly.
func awaitOK(ctx context.Context, url string) (time.Time, error) {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	last := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(pollInterval) {
		response, err := client.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return time.Now(), nil
		}
		last = response.Status
	}
	return time.Time{}, fmt.Errorf("%s did not respond with status 200: %s", url, last)
}

// quit stops an agent without draining.
func quit(address string) {
	client := http.Client{Timeout: time.Second}
	if response, err := client.Post("http://"+address+":15020/quitquitquit", "", nil); err == nil {
		response.Body.Close()
	}
}
