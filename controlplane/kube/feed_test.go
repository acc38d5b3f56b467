package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// serviceFeed is a running feed of Services, and the changes of its store.
type serviceFeed struct {
	*feed
	store config.Store

	mu      sync.Mutex
	changes []string
}

// startServiceFeed reads the Services of an API server until the test ends.
func startServiceFeed(t *testing.T, server *fakeAPIServer) *serviceFeed {
	t.Helper()
	store, apply := config.NewFileStore()
	f := &serviceFeed{store: store}
	store.Subscribe(func(changed []config.Key) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, key := range changed {
			change := "-" + key.Name
			if store.Get(key) != nil {
				change = "+" + key.Name
			}
			f.changes = append(f.changes, change)
		}
	})
	i := slices.IndexFunc(clusterKinds, func(k clusterKind) bool { return k.kind == config.Service })
	kind, converter := clusterKinds[i], newConverter()
	client, err := server.client.REST(schema.GroupVersion{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	list := &listWatch{client: client, resource: resource{name: kind.plural, newList: kind.newList, convert: func(o runtime.Object) any { return converter.convert(kind, o) }}}
	f.feed = newFeed("Service", list, &resourceTable{kind: config.Service, store: store, apply: apply}, nil, func() {})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

// takeChanges returns the changes since the last call, in the order of their names.
func (f *serviceFeed) takeChanges() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	changes := strings.Join(slices.Sorted(slices.Values(f.changes)), " ")
	f.changes = nil
	return changes
}

func (f *serviceFeed) awaitLists(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("the feed has received %d lists", n), func() error {
		if status, _ := f.readStatus(); status.lists < n {
			return fmt.Errorf("it has received %d; failure: %s", status.lists, status.failure)
		}
		return nil
	})
}

func TestListsWithoutStreamingArePaginated(t *testing.T) {
	server := newFakeAPIServer(t)
	for i := range pageSize + 10 {
		server.put(fmt.Sprintf("s%d", i), 80)
	}
	f := startServiceFeed(t, server)
	f.awaitLists(t, 1)
	if n := len(f.store.List(config.Service)); n != pageSize+10 {
		t.Errorf("the store has %d Services, want %d", n, pageSize+10)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if want := []string{"500", "500"}; !slices.Equal(server.pages, want) {
		t.Errorf("the limits of the list requests are %v, want %v", server.pages, want)
	}
}

func TestExpiredWatchPublishesOnlyDifferences(t *testing.T) {
	server := newFakeAPIServer(t)
	server.put("unchanged", 80)
	server.put("edited", 80)
	server.put("removed", 80)
	f := startServiceFeed(t, server)
	f.awaitLists(t, 1)
	if got, want := f.takeChanges(), "+edited +removed +unchanged"; got != want {
		t.Fatalf("the first list published %q, want %q", got, want)
	}
	server.put("edited", 81)
	server.remove("removed")
	server.put("added", 80)
	testenv.Eventually(t, "the feed watches", func() error {
		server.mu.Lock()
		defer server.mu.Unlock()
		if len(server.watches) == 0 {
			return fmt.Errorf("there is no watch")
		}
		return nil
	})
	server.expire()
	f.awaitLists(t, 2)
	if got, want := f.takeChanges(), "+added +edited -removed"; got != want {
		t.Errorf("the relist published %q, want %q", got, want)
	}
	if status, _ := f.readStatus(); status.failure != "" || len(status.failures) != 0 {
		t.Errorf("an expired watch counts as a failure: %+v", status)
	}
}

func TestUnavailableAPIServerRemovesNothing(t *testing.T) {
	server := newFakeAPIServer(t)
	server.put("a", 80)
	server.put("b", 80)
	f := startServiceFeed(t, server)
	f.awaitLists(t, 1)
	f.takeChanges()

	server.setRefusal(http.StatusInternalServerError)
	testenv.Eventually(t, "the feed reports the failure", func() error {
		if status, missing := f.readStatus(); missing || !strings.Contains(status.failure, "refused by the test") || status.since.IsZero() {
			return fmt.Errorf("status %+v, missing %v", status, missing)
		}
		return nil
	})
	if n := len(f.store.List(config.Service)); n != 2 || f.takeChanges() != "" {
		t.Errorf("while the API server fails, the store has %d Services, want 2 and no change", n)
	}

	server.put("c", 80)
	server.setRefusal(0)
	f.relist()
	f.awaitLists(t, 2)
	if got, want := f.takeChanges(), "+c"; got != want {
		t.Errorf("after the failure, the feed published %q, want %q", got, want)
	}
	if status, _ := f.readStatus(); status.failure != "" || !status.since.IsZero() {
		t.Errorf("the failure is still reported: %+v", status)
	}
}
