package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// agentSocketAttacks are attempts to use the agent's SDS and xDS sockets without the bootstrap's secret.
var agentSocketAttacks = []attack{
	{
		name:     "reading a gateway's key by SDS through its own Envoy",
		position: outsider,
		limit:    "PERMISSION_DENIED without a resource, and a warning in the log",
		service:  "the gateway's Envoy gets each renewed certificate",
		run:      func(t *testing.T) { callThroughEnvoy(t, "own-sds", fetchSecret) },
	},
	{
		name:     "reading a gateway's configuration by xDS through its own Envoy",
		position: outsider,
		limit:    "PERMISSION_DENIED without a resource, and a warning in the log",
		service:  "the gateway's Envoy stays connected to the control plane",
		run:      func(t *testing.T) { callThroughEnvoy(t, "own-xds", streamConfiguration) },
	},
	{
		name:     "reading another workload's key through a gateway's Envoy",
		position: outsider,
		limit:    "PERMISSION_DENIED without a resource, and a warning in the other agent's log",
		service:  "the gateway's Envoy gets each renewed certificate",
		run:      func(t *testing.T) { callThroughEnvoy(t, "other-sds", fetchSecret) },
	},
	{
		name:     "reading another workload's configuration through a gateway's Envoy",
		position: outsider,
		limit:    "PERMISSION_DENIED without a resource, and a warning in the other agent's log",
		service:  "the gateway's Envoy stays connected to the control plane",
		run:      func(t *testing.T) { callThroughEnvoy(t, "other-xds", streamConfiguration) },
	},
	{
		name:     "reading the agent's memory as Envoy's user",
		position: application,
		limit:    "no access to memory, environment and open files, and no core file",
		service:  "the application's own processes are debugged as before",
		run:      readAgentMemory,
	},
}

// unansweredTimeout limits an outsider's call that is neither answered nor refused.
const unansweredTimeout = 20 * time.Second

// callThroughEnvoy calls a socket of an agent through a gateway's Envoy, with and without a guessed secret.
func callThroughEnvoy(t *testing.T, way string, call func(context.Context, *grpc.ClientConn) error) {
	socketMesh.use(t)
	conn, err := grpc.NewClient(socketGateway+":8000", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(way))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, secret := range []string{"", strings.Repeat("0", 64)} {
		ctx, cancel := context.WithTimeout(t.Context(), unansweredTimeout)
		defer cancel()
		if secret != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-pilotfish-agent-secret", secret)
		}
		// The mesh is ready before a gateway's listener of the bootstrap is.
		testenv.Eventually(t, "the outsider reaches the socket", func() error {
			if err = call(ctx, conn); status.Code(err) == codes.Unavailable {
				return err
			}
			return nil
		})
		if status.Code(err) != codes.PermissionDenied {
			t.Fatalf("an outsider's call with %d bytes of a secret: %v", len(secret), err)
		}
	}
	testenv.Eventually(t, "the refusal is logged", func() error {
		if log := socketMesh.log.String(); !strings.Contains(log, "lacks the secret of the agent's Envoy") {
			return fmt.Errorf("it is not in the log")
		}
		return nil
	})
	testenv.Eventually(t, "Envoy is connected to the control plane", func() error {
		code, body := send(t, "GET", "http://"+socketGateway+":15020/debug/xdsz")
		if code != 200 || !strings.Contains(body, `"envoyConnected":true`) && !strings.Contains(body, `"envoyConnected": true`) {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	first := gatewaySerial(t)
	testenv.Eventually(t, "Envoy gets a renewed certificate", func() error {
		if gatewaySerial(t) == first {
			return fmt.Errorf("it serves with the first one, %s", first)
		}
		return nil
	})
}

// fetchSecret requests the workload's certificate and key.
func fetchSecret(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"default"}})
	if err == nil && len(answer.GetResources()) > 0 {
		return fmt.Errorf("the answer has %d secrets", len(answer.GetResources()))
	}
	return err
}

// streamConfiguration requests clusters.
func streamConfiguration(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
	answer, err := stream.Recv()
	if err == nil {
		return fmt.Errorf("the answer has %d clusters", len(answer.GetResources()))
	}
	return err
}

// gatewaySerial returns the serial number of the certificate with which the gateway serves.
func gatewaySerial(t *testing.T) (serial string) {
	t.Helper()
	testenv.Eventually(t, "the gateway serves with its certificate", func() error {
		conn, err := tls.Dial("tcp", socketGateway+":8443", &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		serial = conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
		return conn.Close()
	})
	return serial
}

// readAgentMemory reads an agent's files in /proc as its own user, who is not root.
func readAgentMemory(t *testing.T) {
	pid, dir := startAgentAs(t, anotherUser)
	for _, file := range []string{"mem", "environ", "maps", "auxv"} {
		if out, err := runAs(t, anotherUser, "sh", "-c", fmt.Sprintf("exec 3</proc/%d/%s", pid, file)); err == nil {
			t.Errorf("/proc/<agent>/%s can be opened: %s", file, out)
		}
	}
	if out, err := runAs(t, anotherUser, "ls", fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		t.Errorf("the agent's open files are visible: %s", out)
	}
	if out, err := runAs(t, anotherUser, "sh", "-c", "exec 3</proc/$$/mem"); err != nil {
		t.Errorf("a process cannot open its own memory: %v: %s", err, out)
	}
	if out, err := runAs(t, anotherUser, "sh", "-c", fmt.Sprintf("kill -ABRT %d", pid)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	testenv.Eventually(t, "the agent ends", func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
	if cores, _ := filepath.Glob(filepath.Join(dir, "*core*")); len(cores) > 0 {
		t.Errorf("core files: %v", cores)
	}
}

// startAgentAs starts an agent without Envoy as a user, with unlimited core files. It returns when the agent serves.
func startAgentAs(t *testing.T, uid uint32) (pid int, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	dir, err := os.MkdirTemp("", "hostile-memory-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "pilotfish-agent") // where the user can run it
	if out, err := exec.Command("cp", testenv.Bin(t, "pilotfish-agent"), program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("sh", "-c", "ulimit -c unlimited; exec "+program+" proxy sidecar")
	cmd.Dir = dir
	cmd.Env = []string{"DISABLE_ENVOY=true", "INSTANCE_IP=127.198.9.1", "PROXY_BIND_ADDRESS=127.198.9.1", "POD_NAME=app", "POD_NAMESPACE=books"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out testenv.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the agent logged:\n%s", out.String())
		}
	})
	testenv.Eventually(t, "the agent serves its sockets", func() error {
		_, err := os.Stat(filepath.Join(dir, "etc/istio/proxy/XDS"))
		return err
	})
	return cmd.Process.Pid, dir
}
