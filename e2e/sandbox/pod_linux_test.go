package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// sandbox is a pod that the runtime has started.
type sandbox struct {
	node      *node
	id        string
	config    *cri.PodSandboxConfig
	addresses []netip.Addr
}

func (n *node) sandboxConfig(p *agentapi.Pod) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Metadata.Name, Namespace: p.Metadata.Namespace, Uid: p.Metadata.UID},
		Hostname:     p.Metadata.Name,
		LogDirectory: filepath.Join(n.dir, "log"),
		// The kubelet's naming scheme.
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: "/" + n.cgroup + "/kubepods/pod" + p.Metadata.UID},
	}
}

// run starts a pod's sandbox; the runtime calls the CNI plugins.
func (n *node) run(ctx context.Context, p *agentapi.Pod) (*sandbox, error) {
	return n.runConfig(ctx, n.sandboxConfig(p))
}

func (n *node) runConfig(ctx context.Context, config *cri.PodSandboxConfig) (*sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s := &sandbox{node: n, config: config}
	started, err := n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: s.config})
	if err != nil {
		return nil, err
	}
	s.id = started.PodSandboxId
	status, err := n.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.id})
	if err != nil {
		return nil, err
	}
	if config.Linux.SecurityContext.GetNamespaceOptions().GetNetwork() == cri.NamespaceMode_NODE {
		return s, nil
	}
	texts := []string{status.Status.Network.Ip}
	for _, ip := range status.Status.Network.AdditionalIps {
		texts = append(texts, ip.Ip)
	}
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("the sandbox's address: %w", err)
		}
		s.addresses = append(s.addresses, address)
	}
	return s, nil
}

func (n *node) mustRun(t *testing.T, p *agentapi.Pod) *sandbox {
	t.Helper()
	s, err := n.run(t.Context(), p)
	if err != nil {
		t.Fatalf("starting pod %s: %v", p.Metadata.Name, err)
	}
	return s
}

// container is one container of a pod.
type container struct {
	name       string
	args       []string
	user       int64
	group      int64 // 0: the same as user
	privileges []string
	mounts     []*cri.Mount
}

func (s *sandbox) start(t *testing.T, c container) (id string) {
	t.Helper()
	return s.startConfig(t, &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.name},
		Image:    &cri.ImageSpec{Image: image},
		Command:  c.args,
		Mounts:   c.mounts,
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			RunAsUser:    &cri.Int64Value{Value: c.user},
			RunAsGroup:   &cri.Int64Value{Value: cmp.Or(c.group, c.user)},
			Capabilities: &cri.Capability{AddCapabilities: c.privileges},
		}},
	})
}

func (s *sandbox) startConfig(t *testing.T, config *cri.ContainerConfig) (id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	config.LogPath = s.config.Metadata.Name + "-" + config.Metadata.Name + ".log"
	created, err := s.node.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.id, SandboxConfig: s.config, Config: config})
	if err == nil {
		_, err = s.node.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	}
	if err != nil {
		t.Fatalf("container %s of %s: %v", config.Metadata.Name, s.config.Metadata.Name, err)
	}
	return created.ContainerId
}

// exec runs a program in a container and returns its output.
func (s *sandbox) exec(ctx context.Context, container string, args ...string) (string, error) {
	answer, err := s.node.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container, Cmd: args, Timeout: 10})
	if err != nil {
		return "", err
	}
	if answer.ExitCode != 0 {
		return string(answer.Stdout), fmt.Errorf("%v: exit code %d: %s", args, answer.ExitCode, answer.Stderr)
	}
	return string(answer.Stdout), nil
}

// remove stops and removes the pod, as the kubelet does.
func (s *sandbox) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := s.node.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.id}); err != nil {
		return err
	}
	_, err := s.node.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.id})
	return err
}
