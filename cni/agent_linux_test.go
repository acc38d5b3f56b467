package cni

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
	"github.com/pilotfish-mesh/pilotfish/cni/node"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// Other tests of this package use a fake node agent. This test uses package node's real servers.
func TestPluginAndNodeAgentUnderstandEachOther(t *testing.T) {
	pod := meshPod("web")
	pod.Spec.NodeName = "n1"
	api := kubetest.New(t)
	api.Put(*pod)
	h := newTestNode(t)
	log := &testenv.Buffer{}
	logger := slog.New(slog.NewJSONHandler(log, nil))
	cache := node.NewCache(node.CacheConfig{API: api.Client(t), Node: "n1", Logger: logger})
	metrics := node.NewMetrics(cache, nil)
	results := make(chan agentapi.Result, 10)
	server, err := node.NewServer(node.ServerConfig{RunDir: h.dir, Pod: cache.Pod, Metrics: metrics, Logger: logger,
		Health: func() health.Condition { return health.Condition{OK: true} }, OnResult: func(r agentapi.Result) { results <- r }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	for _, run := range []func(context.Context) error{cache.Run, server.Run} {
		go func() { _ = run(ctx); ended <- struct{}{} }()
	}
	defer func() {
		cancel()
		<-ended
		<-ended
	}()
	ns := testns.New(t)
	if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil || inForce(t, ns) == nil {
		t.Fatalf("%v: %s", answer.err, answer.out)
	}
	if r := <-results; r.Command != "ADD" || r.Outcome != agentapi.Captured || r.Source != "agent" || r.NetNS != netnsPath(ns) || r.UID != pod.Metadata.UID {
		t.Errorf("the agent received the result %+v", r)
	}
	if answer := h.call("ADD", withUID(pod, "other"), netnsPath(ns), h.withPrevious("1.0.0")); answer.err == nil {
		t.Errorf("ADD for a pod with another UID: %s", answer.out)
	}
	if n, err := testutil.GatherAndCount(metrics.Gatherer(), "pilotfish_cni_plugin_commands_total"); err != nil || n == 0 {
		t.Errorf("%d figures of commands (%v)", n, err)
	}
	if !strings.Contains(log.String(), "the CNI command failed") {
		t.Errorf("the agent's log does not contain the plugin's error:\n%s", log)
	}
}
