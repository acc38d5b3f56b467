package xdsproxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	// maxKeeping bounds what waits to be written, and keepPatience how long room for more is waited for: a disk that has
	// come to a stand must not stop Envoy's configuration for long.
	maxKeeping   = 64
	keepPatience = 5 * time.Second
	// retryKeeping is how long after a failure everything is asked for anew, to be kept; it doubles up to maxRetryKeeping.
	retryKeeping, maxRetryKeeping = time.Minute, time.Hour
	// keptScratch bounds the buffer that is kept from resource to resource.
	keptScratch = 1 << 20
)

// keeper writes what Envoy accepts, beside the streams. A nil keeper keeps nothing.
type keeper struct {
	store *lastgood.Store // set before it is in force
	log   *slog.Logger
	todo  chan func()
	stage atomic.Uint64
	// Only the writer uses what follows. scratch is where resources are put together.
	scratch []byte
	// over ends the watch over what is done, and written is how many bytes of resources were written under that watch.
	over    func()
	written int

	standing standing

	mu     sync.Mutex
	failed func() // what to do when keeping has failed
	behind bool   // something was not written because of the disk's slowness
}

// newKeeper makes one that is to be given a store.
func newKeeper(log *slog.Logger) *keeper {
	return &keeper{log: log, todo: make(chan func(), maxKeeping), standing: standing{patience: keepPatience, halted: make(chan struct{})}}
}

// runUntil closes written when all is.
func (k *keeper) runUntil(ctx context.Context, written chan<- struct{}) {
	defer close(written)
	k.run(ctx)
}

// run writes until the context ends, and then what is still waiting.
func (k *keeper) run(ctx context.Context) {
	for {
		select {
		case do := <-k.todo:
			k.write(do)
		case <-ctx.Done():
			for {
				select {
				case do := <-k.todo:
					k.write(do)
				default:
					k.store.Flush()
					return
				}
			}
		}
	}
}

func (k *keeper) write(do func()) {
	before := k.store.Status().Failures
	k.over, k.written = k.watch(), 0
	do()
	if len(k.todo) == 0 {
		k.store.Flush()
	}
	k.over()
	if k.store.Status().Failures != before {
		k.fail()
	}
}

// progress notes that bytes of a resource were written. With every batch of them the patience with the disk begins anew: one
// that takes long over what is large does not stand still.
func (k *keeper) progress(bytes int) {
	if k.written += bytes; k.written < keepBatch {
		return
	}
	k.over()
	k.over, k.written = k.watch(), 0
}

// fail tells the session in force that what it has cannot be kept.
func (k *keeper) fail() {
	k.mu.Lock()
	failed := k.failed
	k.failed = nil
	k.mu.Unlock()
	if failed != nil {
		failed()
	}
}

// put queues something to do, unless too much has been waiting for long, or the disk stands still.
func (k *keeper) put(do func()) bool {
	halted := k.halted()
	select {
	case <-halted:
		return false
	default:
	}
	select {
	case k.todo <- do:
		return true
	default:
	}
	timer := time.NewTimer(keepPatience)
	defer timer.Stop()
	select {
	case k.todo <- do:
		return true
	case <-halted:
		return false
	case <-timer.C:
	}
	k.mu.Lock()
	first := !k.behind
	k.behind = true
	k.mu.Unlock()
	if first {
		k.log.Warn("the disk is too slow to keep the last good configuration; Envoy gets its configuration as before")
	}
	return false
}

var errSlowDisk = errors.New("the disk does not answer")

// load reads what is kept, after all that an Envoy before this one accepted. It does not wait for a disk that has come to a
// stand: a control plane may be back before.
func (k *keeper) load(ctx context.Context, id lastgood.Identity, patience time.Duration) (snapshot *lastgood.Snapshot, err error) {
	var over atomic.Bool // set by whoever is first: the writer that has read, or who waits no longer
	read := make(chan struct{})
	ok := k.put(func() {
		s, failed := k.store.Load(id)
		switch {
		case over.CompareAndSwap(false, true):
			snapshot, err = s, failed
			close(read)
		case s != nil:
			_ = s.Close()
		}
	})
	if !ok {
		return nil, errSlowDisk
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-read:
		return snapshot, err
	case <-timer.C:
	case <-ctx.Done():
	}
	if over.CompareAndSwap(false, true) {
		return nil, errSlowDisk
	}
	<-read
	return snapshot, err
}

// identify is who a node is; ok is false for a client whose configuration is not kept.
func identify(v variant, node []byte) (id lastgood.Identity, ok bool) {
	var n corev3.Node
	if err := proto.Unmarshal(node, &n); err != nil || n.Id == "" {
		return id, false
	}
	// Clients that are no Envoy may run beside one, with its node.
	if agent := n.UserAgentName; agent != "" && agent != "envoy" {
		return id, false
	}
	return lastgood.Identity{Node: n.Id, Cluster: n.Cluster, Protocol: v.String()}, true
}

// tryPut queues something to do, if there is room for it.
func (k *keeper) tryPut(do func()) bool {
	select {
	case k.todo <- do:
		return true
	default:
		return false
	}
}

// writeResponse writes what Envoy is sent.
func (k *keeper) writeResponse(v variant, stage uint64, r response, f *frame) {
	k.writeResources(stage, r, f)
	k.writeEnd(v, stage, r)
}

// writeResources writes the resources of a response, or of a part of it.
func (k *keeper) writeResources(stage uint64, r response, f *frame) {
	i := 0
	err := walk(f.data, func(number protowire.Number, c *cursor, length int) error {
		if number != 2 {
			return c.skip(length)
		}
		content, err := c.into(k.scratch[:0], length)
		if err != nil {
			return err
		}
		k.scratch = content
		if i < len(r.resources) && r.resources[i].name != "" {
			k.store.Resource(stage, r.typeURL, r.resources[i].name, r.resources[i].version, content)
		}
		i++
		k.progress(length)
		return nil
	})
	if err != nil {
		k.log.Warn("a response could not be kept", "type", r.typeURL, "error", err)
	}
	if cap(k.scratch) > keptScratch {
		k.scratch = nil
	}
}

// writeEnd writes what there is to a response beside its resources.
func (k *keeper) writeEnd(v variant, stage uint64, r response) {
	for _, name := range r.removed {
		k.store.Removed(stage, r.typeURL, name)
	}
	k.store.Response(stage, r.typeURL, r.version, v == sotw && isWhole(r.typeURL))
}

// isWhole says whether a SotW response of a type has all there is. Of the other types, a server may send what changed.
func isWhole(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }
