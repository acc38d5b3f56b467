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
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// fromAgent, fromAPI and fromPolicy are the values of agentapi.Result.Source. They specify where the plugin found the
// pod.
const (
	fromAgent  = "agent"
	fromAPI    = "api"
	fromPolicy = "policy"
)

// errNoPod reports that the API server does not have the pod. The plugin then does not retry the lookup.
var errNoPod = errors.New("no such pod")

// podSource looks up pods. It queries the node agent, which caches all pods of the node. If that fails, it queries the
// API server.
type podSource struct {
	agent      *agentClient
	kubeconfig string
	timeout    time.Duration // of a lookup, including all retries
	firstPause time.Duration // delay before the first retry; doubled after each retry
}

// pod looks up a pod. It retries until the timeout. It returns a CNI error if the lookup fails. A pod with the same
// name but another UID does not match.
func (s *podSource) pod(ctx context.Context, args *podArgs) (p *agentapi.Pod, from string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for pause := s.firstPause; ; pause *= 2 {
		p, from, err = s.round(ctx, args)
		if err == nil {
			return p, from, nil
		}
		if errors.Is(err, errNoPod) || !backoff.Sleep(ctx, pause) {
			return nil, "", sourceError(args, err)
		}
	}
}

// round queries the node agent and, if it fails, the API server.
func (s *podSource) round(ctx context.Context, args *podArgs) (*agentapi.Pod, string, error) {
	p, agentErr := s.agent.pod(ctx, args)
	if agentErr == nil {
		if agentErr = checkPod(p, args); agentErr == nil {
			return p, fromAgent, nil
		}
	}
	p, apiErr := s.fromAPI(ctx, args)
	if apiErr == nil {
		if apiErr = checkPod(p, args); apiErr == nil {
			return p, fromAPI, nil
		}
	}
	err := fmt.Errorf("%w; %w", agentErr, apiErr)
	if known := new(refusedError); errors.As(agentErr, &known) && known.code == http.StatusNotFound && errors.Is(apiErr, os.ErrNotExist) {
		// The plugin has no kubeconfig, but the node agent has already queried the API server.
		return nil, "", fmt.Errorf("%w: %w", errNoPod, agentErr)
	}
	return nil, "", err
}

func (s *podSource) fromAPI(ctx context.Context, args *podArgs) (*agentapi.Pod, error) {
	config, err := kube.Load(s.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot query the API server: %w", err)
	}
	client, err := kube.New(config)
	if err != nil {
		return nil, fmt.Errorf("cannot query the API server: %w", err)
	}
	defer client.Close()
	p, err := client.Pod(ctx, args.Namespace, args.Name)
	if kube.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", errNoPod, err)
	}
	return p, err
}

// checkPod returns an error if p is not the pod that CNI_ARGS specifies.
func checkPod(p *agentapi.Pod, args *podArgs) error {
	if p.Metadata.Name != args.Name || p.Metadata.Namespace != args.Namespace {
		return fmt.Errorf("requested %s, but received pod %s/%s", args, p.Metadata.Namespace, p.Metadata.Name)
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
		fmt.Sprintf("the mesh's CNI plugin cannot determine whether %s has a sidecar; the pod is not started, because its traffic might not be redirected", args),
		err.Error()+". Remedy: check that the node agent runs on this node, and that the API server responds")
}
