package cni

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

// The sources of pods, as reported to the node agent.
const (
	fromAgent  = "agent"
	fromAPI    = "api"
	fromPolicy = "policy"
)

// errNoPod is final: neither the node agent nor the API server knows the pod. A retry cannot succeed.
var errNoPod = errors.New("no such pod")

// podSource looks up pods in Kubernetes. It queries the node agent, which caches all pods of the node, and on failure
// the API server.
type podSource struct {
	agent      *agentClient
	kubeconfig string
	timeout    time.Duration // limit for both together, including retries
	firstPause time.Duration // between the first two rounds; doubled after each round
}

// pod returns a pod, or a CNI error. A pod of the same name with another UID does not match.
func (s *podSource) pod(ctx context.Context, args *podArgs) (p *agentapi.Pod, from string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for pause := s.firstPause; ; pause *= 2 {
		p, from, err = s.round(ctx, args)
		if err == nil {
			return p, from, nil
		}
		if errors.Is(err, errNoPod) || !wait(ctx, pause) {
			return nil, "", sourceError(args, err)
		}
	}
}

func wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// round queries the node agent and, if it fails, the API server.
func (s *podSource) round(ctx context.Context, args *podArgs) (*agentapi.Pod, string, error) {
	p, agentErr := s.agent.pod(ctx, args)
	if agentErr == nil {
		if agentErr = samePod(p, args); agentErr == nil {
			return p, fromAgent, nil
		}
	}
	p, apiErr := s.fromAPI(ctx, args)
	if apiErr == nil {
		if apiErr = samePod(p, args); apiErr == nil {
			return p, fromAPI, nil
		}
	}
	err := fmt.Errorf("%w; %w", agentErr, apiErr)
	if known := new(refusedError); errors.As(agentErr, &known) && known.code == http.StatusNotFound && errors.Is(apiErr, os.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: %w", errNoPod, agentErr) // the agent has already queried the API server
	}
	return nil, "", err
}

func (s *podSource) fromAPI(ctx context.Context, args *podArgs) (*agentapi.Pod, error) {
	config, err := kube.Load(s.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("the API server cannot be queried: %w", err)
	}
	client, err := kube.New(config)
	if err != nil {
		return nil, fmt.Errorf("the API server cannot be queried: %w", err)
	}
	defer client.Close()
	p, err := client.Pod(ctx, args.Namespace, args.Name)
	if kube.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", errNoPod, err)
	}
	return p, err
}

func samePod(p *agentapi.Pod, args *podArgs) error {
	if p.Metadata.Name != args.Name || p.Metadata.Namespace != args.Namespace {
		return fmt.Errorf("requested %s, received %s/%s", args, p.Metadata.Namespace, p.Metadata.Name)
	}
	if !capture.HasUID(p, args.UID) {
		return fmt.Errorf("requested %s with UID %s, but the existing pod has UID %s: was it replaced?", args, args.UID, p.Metadata.UID)
	}
	return nil
}

func sourceError(args *podArgs, err error) error {
	if errors.Is(err, errNoPod) {
		return types.NewError(types.ErrUnknownContainer, "the mesh's CNI plugin did not find "+args.String(), err.Error())
	}
	return types.NewError(types.ErrTryAgainLater,
		fmt.Sprintf("the mesh's CNI plugin cannot determine whether %s has a sidecar; the pod is not started, because it might be unprotected", args),
		err.Error()+". Remedy: check that the node agent runs on this node, or that the API server responds")
}
