//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// Addresses of the measurement of two agents. All of them are in a network namespace of the benchmark, because Istio's
// agent listens on all addresses.
const (
	agentsPodAddress = "10.99.0.2"
	istiodHost       = "istiod.istio-system.svc"
)

// namespaceVariable is set in the process that runs in the network namespace.
const namespaceVariable = "PILOTFISH_BENCH_NAMESPACE"

// enterNamespaceScript runs a program in an environment in which the pod's address exists and the name of istiod
// resolves.
const enterNamespaceScript = `ip link set lo up && ip address add ` + agentsPodAddress + `/32 dev lo &&
mount --bind "$1" /etc/hosts && shift && exec "$@"`

// agentKind is one of the compared agents.
type agentKind struct {
	name, program string
}

// agentRun contains the measurements of one agent with one mesh size.
type agentRun struct {
	start time.Duration
	agentStartRun
	agentScrapeRun
	loadRSS, loadAnon   float64 // MiB, the highest values until the agent is ready
	endpointCPU         time.Duration
	routeCPU            time.Duration
	routeRSS, routeAnon float64 // MiB, the maximum during the edits of routes
}

// settleDelay is the time after a change until the agent has saved the configuration and released the memory of large
// messages. Without this delay, the CPU time of the first edits would include this work.
const settleDelay = 12 * time.Second

// agentEdits is the number of edits of each kind.
const agentEdits = 20

// maxPrintedLog limits the part of an agent's log that is printed after a failure, in bytes.
const maxPrintedLog = 4000

// agents compares this agent with Istio's, with the same Envoy and a real istiod: the time from exec to readiness, the
// memory while it loads the configuration, and the CPU time for each edit of an endpoint and of a route.
func (b *bench) agents(ctx context.Context) error {
	return b.compareAgents(ctx, "agents", (*agentRun).measure, []agentValue{
		{"exec to ready, ms", func(r agentRun) float64 { return ms(r.start) }},
		{"memory peak while loading, MiB", func(r agentRun) float64 { return r.loadRSS }},
		{"  of which anonymous", func(r agentRun) float64 { return r.loadAnon }},
		{"CPU for each endpoint edit, ms", func(r agentRun) float64 { return ms(r.endpointCPU) / agentEdits }},
		{"CPU for each route edit, ms", func(r agentRun) float64 { return ms(r.routeCPU) / agentEdits }},
		{"memory peak with route edits, MiB", func(r agentRun) float64 { return r.routeRSS }},
		{"  of which anonymous", func(r agentRun) float64 { return r.routeAnon }},
	})
}

// agentMeasurement measures an agent that was started at the time began.
type agentMeasurement func(run *agentRun, ctx context.Context, pid int, began time.Time, mesh *planeMesh) error

// agentValue is one line of the result.
type agentValue struct {
	name  string
	value func(agentRun) float64
}

func (b *bench) compareAgents(ctx context.Context, name string, measure agentMeasurement, values []agentValue) error {
	if b.istiod == "" {
		return errors.New("set -istiod to the path of Istio's pilot-discovery; pilot-agent must be in the same directory")
	}
	if os.Getenv(namespaceVariable) == "" {
		return b.rerunInNamespace(ctx, name)
	}
	counts, err := sizes(b.services)
	if err != nil {
		return err
	}
	for _, services := range counts {
		if err := b.compareAgentsWith(ctx, services, measure, values); err != nil {
			return err
		}
	}
	return nil
}

// rerunInNamespace runs a measurement again in new network and mount namespaces, which end with the process.
func (b *bench) rerunInNamespace(ctx context.Context, name string) error {
	hosts := filepath.Join(b.dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost "+istiodHost+"\n"), 0o644); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--net", "--mount", "sh", "-c", enterNamespaceScript, "sh", hosts, self}
	cmd := exec.CommandContext(ctx, "unshare", append(append(args, os.Args[1:]...), "-only", name)...)
	cmd.Env = append(os.Environ(), namespaceVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

func (b *bench) compareAgentsWith(ctx context.Context, services int, measure agentMeasurement, values []agentValue) error {
	mesh := &planeMesh{dir: filepath.Join(b.dir, fmt.Sprintf("agents-%d", services)), services: services}
	if err := mesh.write(); err != nil {
		return err
	}
	roots, stop, err := b.startSecureIstiod(ctx, mesh)
	if err != nil {
		return fmt.Errorf("starting istiod: %w", err)
	}
	defer stop()
	kinds := []agentKind{
		{"pilotfish", filepath.Join(b.bin, "pilotfish-agent")},
		{"pilot-agent", filepath.Join(filepath.Dir(b.istiod), "pilot-agent")},
	}
	if b.earlier != "" {
		kinds = append(kinds, agentKind{"earlier", filepath.Join(b.earlier, "pilotfish-agent")})
	}
	runs := map[string][]agentRun{}
	for round := range b.turns + 1 {
		for _, kind := range kinds {
			measured := measure
			if round == 0 { // warms the caches of the file system and of istiod
				measured = (*agentRun).measureStart
			}
			run, err := b.runAgent(ctx, kind, mesh, roots, measured)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			if round > 0 {
				runs[kind.name] = append(runs[kind.name], run)
				fmt.Fprintf(os.Stderr, "  %s: turn %d of %d\n", kind.name, round, b.turns)
			}
		}
	}
	printAgents(services, b.turns, kinds, runs, values)
	return nil
}

// printAgents prints the medians, and the ratio of the first agent to the second one.
func printAgents(services, turns int, kinds []agentKind, runs map[string][]agentRun, values []agentValue) {
	fmt.Printf("istiod with %d services: medians of %d rounds, in which the agents alternate\n  %-34s", services, turns, "")
	for _, kind := range kinds {
		fmt.Printf(" %12s", kind.name)
	}
	fmt.Println("  ratio")
	for _, row := range values {
		fmt.Printf("  %-34s", row.name)
		var medians []float64
		for _, kind := range kinds {
			var all []float64
			for _, r := range runs[kind.name] {
				all = append(all, row.value(r))
			}
			medians = append(medians, medianOf(all))
			fmt.Printf(" %12.2f", medians[len(medians)-1])
		}
		fmt.Printf("  x%.2f\n", medians[0]/medians[1])
	}
}

// runAgent starts an agent in a new directory, as in a new container, and measures it.
func (b *bench) runAgent(ctx context.Context, kind agentKind, mesh *planeMesh, roots []byte, measure agentMeasurement) (run agentRun, err error) {
	dir, err := os.MkdirTemp(b.dir, "pod")
	if err != nil {
		return run, err
	}
	if err := writePod(dir, filepath.Join(filepath.Dir(b.istiod), "envoy_bootstrap.json"), roots); err != nil {
		return run, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return run, err
	}
	defer log.Close()
	cmd := exec.Command(kind.program, "proxy", "sidecar", "--domain", "default.svc.cluster.local", "--proxyLogLevel=warning",
		"--templateFile", filepath.Join(dir, "envoy_bootstrap.json"))
	if kind.name != "pilot-agent" { // its bootstrap needs no template
		cmd.Args = cmd.Args[:len(cmd.Args)-2]
	}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, b.podEnv(dir), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return run, err
	}
	defer endAgent(cmd)
	if err := measure(&run, ctx, cmd.Process.Pid, began, mesh); err != nil {
		text, _ := os.ReadFile(log.Name())
		return run, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-maxPrintedLog):])
	}
	return run, nil
}

func (run *agentRun) measure(ctx context.Context, pid int, began time.Time, mesh *planeMesh) error {
	peak := watchMemory(pid)
	ready, err := awaitOK(ctx, "http://127.0.0.1:15021/healthz/ready")
	if err != nil {
		peak()
		return err
	}
	run.start = ready.Sub(began)
	backoff.Sleep(ctx, settleDelay)
	run.loadRSS, run.loadAnon = peak()
	if run.endpointCPU, err = editsOf(ctx, pid, endpointsPage, mesh.editEndpoint); err != nil {
		return err
	}
	peak = watchMemory(pid)
	run.routeCPU, err = editsOf(ctx, pid, routesPage, mesh.editRoutes)
	run.routeRSS, run.routeAnon = peak()
	return err
}

// editsOf makes the edits, and returns the CPU time that the process used for them. It makes each edit as soon as Envoy
// has applied the previous one. page returns the page of Envoy's admin interface that shows an edit.
func editsOf(ctx context.Context, pid int, page func(planeEdit) string, edit func() planeEdit) (time.Duration, error) {
	cpu, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	for range agentEdits {
		e := edit()
		if _, err := e.apply(); err != nil {
			return 0, err
		}
		if err := awaitText(ctx, "http://127.0.0.1:15000"+page(e), e.sign.Text); err != nil {
			return 0, err
		}
	}
	backoff.Sleep(ctx, settleDelay)
	spent, err := cpuOf(pid)
	return spent - cpu, err
}

// endpointsPage returns the page with the endpoints of only the edited service, because a page with all endpoints is
// large.
func endpointsPage(e planeEdit) string {
	return "/config_dump?include_eds&resource=dynamic_endpoint_configs&name_regex=.*" + e.host + ".*"
}

func routesPage(planeEdit) string { return "/config_dump?resource=dynamic_route_configs" }

// awaitText polls a page until it contains a text.
func awaitText(ctx context.Context, url, text string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		page, err := fetch(ctx, url)
		if err == nil && strings.Contains(string(page), text) {
			return nil
		}
		if !backoff.Sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s does not contain %s after a minute", url, text)
}

// watchMemory samples the memory of a process until peak is called. peak returns the maximum values in MiB.
func watchMemory(pid int) (peak func() (rss, anon float64)) {
	stop, done := make(chan struct{}), make(chan memory)
	go func() {
		var highest memory
		for {
			if m, err := memoryOf(pid); err == nil {
				highest.all, highest.own = max(highest.all, m.all), max(highest.own, m.own)
			}
			select {
			case <-stop:
				done <- highest
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() (float64, float64) {
		close(stop)
		m := <-done
		return m.all, m.own
	}
}

// endAgent ends an agent and its Envoy. The latter is necessary because Envoy continues to run if Istio's agent is
// killed.
func endAgent(cmd *exec.Cmd) {
	envoy, _ := childOf(cmd.Process.Pid)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(15 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
	if envoy != 0 {
		_ = syscall.Kill(envoy, syscall.SIGKILL)
	}
}

// writePod writes the files that the kubelet mounts into a sidecar.
func writePod(dir, template string, roots []byte) error {
	text, err := os.ReadFile(template)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		tokenFile: []byte("token-of-default"), rootFile: roots, "envoy_bootstrap.json": text,
		"etc/istio/pod/labels": []byte("app=\"server\"\n"), "etc/istio/pod/annotations": nil, "etc/istio/proxy/.keep": nil,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// podEnv returns the environment of an injected sidecar. The home directory is new, as in a new container.
func (b *bench) podEnv(dir string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "ENVOY_PATH=" + b.envoy, "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=" + istiodHost + ":15012",
		"POD_NAME=server", "POD_NAMESPACE=default", "SERVICE_ACCOUNT=default", "INSTANCE_IP=" + agentsPodAddress, "HOST_IP=" + agentsPodAddress,
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_WORKLOAD_NAME=server",
		"ISTIO_META_MESH_ID=cluster.local", "TRUST_DOMAIN=cluster.local", "ISTIO_CPU_LIMIT=2", "ECC_SIGNATURE_ALGORITHM=" + b.key,
		"ISTIO_METAJSON_LABELS={\"app\":\"server\"}", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true",
		fmt.Sprintf(`PROXY_CONFIG={"binaryPath":%q,"discoveryAddress":"%s:15012","terminationDrainDuration":"1s"%s}`, b.envoy, istiodHost, b.proxyConfig),
	}
}

// startSecureIstiod starts istiod with the configuration files of mesh. istiod serves xDS over TLS, and issues
// certificates to clients with a token that writePod wrote. startSecureIstiod returns istiod's root certificates.
func (b *bench) startSecureIstiod(ctx context.Context, mesh *planeMesh) (roots []byte, stop func(), err error) {
	api := &emptyKubernetes{made: map[string]json.RawMessage{}}
	address, err := api.serve(ctx)
	if err != nil {
		return nil, nil, err
	}
	dir := mesh.dir + "-istiod"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	config, err := writeKubeconfig(dir, address)
	if err != nil {
		return nil, nil, err
	}
	end, err := start(dir, istiodEnv(dir), b.istiod, "discovery", "--configDir", mesh.dir, "--kubeconfig", config, "--httpAddr", "127.0.0.1:8080",
		"--httpsAddr", "", "--ctrlz_port", "0", "--log_output_level", "default:error")
	if err != nil {
		return nil, nil, err
	}
	stop = func() { _ = end() }
	if _, err := awaitOK(ctx, "http://127.0.0.1:8080/ready"); err != nil {
		stop()
		return nil, nil, err
	}
	if roots, err = api.istiodRoots(); err != nil {
		stop()
	}
	return roots, stop, err
}

// istiodEnv returns the environment of an istiod for Envoys without Istio's own extensions.
func istiodEnv(dir string) []string {
	return []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "POD_NAME=istiod", "POD_NAMESPACE=istio-system",
		"ISTIO_KUBE_CLIENT_CONTENT_TYPE=json", "ENABLE_LEADER_ELECTION=false", "PILOT_ENABLE_GATEWAY_API=false",
		// Envoy without these extensions rejects their configuration.
		"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false"}
}

// istiodRoots returns the certificate that istiod signed for itself and stored in the Kubernetes API.
func (k *emptyKubernetes) istiodRoots() ([]byte, error) {
	var secret struct{ Data map[string]string }
	text := k.get("/api/v1/namespaces/istio-system/secrets/istio-ca-secret")
	if err := json.Unmarshal(text, &secret); err != nil {
		return nil, fmt.Errorf("reading the secret of istiod's CA: %w", err)
	}
	return base64.StdEncoding.DecodeString(secret.Data["ca-cert.pem"])
}
