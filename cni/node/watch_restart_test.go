package node

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// stuckAPI returns lists with increasing versions. Each watch that starts at the first version fails.
type stuckAPI struct{ lists, watches atomic.Int32 }

func (a *stuckAPI) Pod(context.Context, string, string) (*agentapi.Pod, error) {
	return nil, errors.New("unexpected request")
}

func (a *stuckAPI) Pods(context.Context, string) ([]agentapi.Pod, string, error) {
	return nil, strconv.Itoa(int(a.lists.Add(1))), nil
}

func (a *stuckAPI) Watch(ctx context.Context, _, version string, _ time.Duration, _ func(kube.Event)) (string, error) {
	a.watches.Add(1)
	if version == "1" {
		return version, errors.New("the event cannot be decoded")
	}
	<-ctx.Done()
	return version, ctx.Err()
}

func TestWatchThatFailsRepeatedlyAtOneEventIsRestarted(t *testing.T) {
	api := &stuckAPI{}
	c := NewCache(CacheConfig{API: api, Node: "n1", MinWait: time.Millisecond, MaxWait: time.Millisecond, Logger: quiet})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	testenv.Eventually(t, "a second list", func() error {
		if api.lists.Load() < 2 {
			return errors.New("the cache repeats the failing watch")
		}
		return nil
	})
	if failed := api.watches.Load(); failed < maxStuck {
		t.Errorf("the cache listed all pods again after %d failures", failed)
	}
}
