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
	// maxWriteQueue limits the queued writes. writeTimeout limits the wait for space in the queue: a hung disk must not
	// delay Envoy's configuration for long.
	maxWriteQueue = 64
	writeTimeout  = 5 * time.Second
	// minRecordRetry is the delay after a failure until all resources are requested again, in order to store them. It
	// doubles up to maxRecordRetry.
	minRecordRetry, maxRecordRetry = time.Minute, time.Hour
	// maxScratch limits the buffer that is reused for the next resource.
	maxScratch = 1 << 20
)

// lastGoodWriter writes accepted resources in its own goroutine. A nil writer stores nothing.
type lastGoodWriter struct {
	store *lastgood.Store // set before the writer becomes active
	log   *slog.Logger
	queue chan func()
	stage atomic.Uint64
	// The following fields are used only by the writer's goroutine. scratch is the buffer of a resource.
	scratch []byte
	// stopWatch ends watchOperation. batchBytes is the number of bytes written since it started.
	stopWatch  func()
	batchBytes int

	hang diskHang

	mu           sync.Mutex
	onFailure    func() // called when a write fails
	isSlowLogged bool   // a slow disk was logged
}

// newLastGoodWriter returns a writer without a store; the caller sets it.
func newLastGoodWriter(log *slog.Logger) *lastGoodWriter {
	return &lastGoodWriter{log: log, queue: make(chan func(), maxWriteQueue), hang: diskHang{timeout: writeTimeout, hung: make(chan struct{})}}
}

// runAndClose runs the writer and closes written at the end.
func (k *lastGoodWriter) runAndClose(ctx context.Context, written chan<- struct{}) {
	defer close(written)
	k.run(ctx)
}

// run executes queued writes until ctx ends, and then the rest of the queue.
func (k *lastGoodWriter) run(ctx context.Context) {
	for {
		select {
		case do := <-k.queue:
			k.write(do)
		case <-ctx.Done():
			for {
				select {
				case do := <-k.queue:
					k.write(do)
				default:
					k.store.Flush()
					return
				}
			}
		}
	}
}

func (k *lastGoodWriter) write(do func()) {
	before := k.store.Status().Failures
	k.stopWatch, k.batchBytes = k.watchOperation(), 0
	do()
	if len(k.queue) == 0 {
		k.store.Flush()
	}
	k.stopWatch()
	if k.store.Status().Failures != before {
		k.reportFailure()
	}
}

// addProgress counts written bytes. After each batch the timeout restarts: a disk that is slow with a large resource
// does not hang.
func (k *lastGoodWriter) addProgress(bytes int) {
	if k.batchBytes += bytes; k.batchBytes < writeBatchSize {
		return
	}
	k.stopWatch()
	k.stopWatch, k.batchBytes = k.watchOperation(), 0
}

// reportFailure notifies the session that its configuration cannot be stored.
func (k *lastGoodWriter) reportFailure() {
	k.mu.Lock()
	failed := k.onFailure
	k.onFailure = nil
	k.mu.Unlock()
	if failed != nil {
		failed()
	}
}

// enqueue queues a write. It returns false if the disk hangs, or if the queue stays full for writeTimeout.
func (k *lastGoodWriter) enqueue(do func()) bool {
	halted := k.hung()
	select {
	case <-halted:
		return false
	default:
	}
	select {
	case k.queue <- do:
		return true
	default:
	}
	timer := time.NewTimer(writeTimeout)
	defer timer.Stop()
	select {
	case k.queue <- do:
		return true
	case <-halted:
		return false
	case <-timer.C:
	}
	k.mu.Lock()
	first := !k.isSlowLogged
	k.isSlowLogged = true
	k.mu.Unlock()
	if first {
		k.log.Warn("the disk is too slow to store the last good configuration; Envoy still receives its configuration")
	}
	return false
}

var errSlowDisk = errors.New("the disk does not answer")

// load loads the stored configuration after all queued writes. It does not wait for a hung disk, because a control
// plane may answer first.
func (k *lastGoodWriter) load(ctx context.Context, id lastgood.Identity, timeout time.Duration) (snapshot *lastgood.Snapshot, err error) {
	var over atomic.Bool // set by the writer after loading, or by the caller after the timeout
	read := make(chan struct{})
	ok := k.enqueue(func() {
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
	timer := time.NewTimer(timeout)
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

// nodeIdentity returns the identity of a node. It returns false for clients whose configuration is not stored.
func nodeIdentity(v variant, node []byte) (id lastgood.Identity, ok bool) {
	var n corev3.Node
	if err := proto.Unmarshal(node, &n); err != nil || n.Id == "" {
		return id, false
	}
	// Clients other than Envoy may use the same node.
	if agent := n.UserAgentName; agent != "" && agent != "envoy" {
		return id, false
	}
	return lastgood.Identity{Node: n.Id, Cluster: n.Cluster, Protocol: v.String()}, true
}

// tryEnqueue queues a write if there is space, and reports whether it did.
func (k *lastGoodWriter) tryEnqueue(do func()) bool {
	select {
	case k.queue <- do:
		return true
	default:
		return false
	}
}

// writeResponse writes a response that is sent to Envoy.
func (k *lastGoodWriter) writeResponse(v variant, stage uint64, r response, f *frame) {
	k.writeResources(stage, r, f)
	k.writeResponseEnd(v, stage, r)
}

// writeResources writes the resources of a response or of a part of it.
func (k *lastGoodWriter) writeResources(stage uint64, r response, f *frame) {
	i := 0
	err := walk(f.data, func(number protowire.Number, c *cursor, length int) error {
		if number != 2 {
			return c.skip(length)
		}
		content, err := c.bytesInto(k.scratch[:0], length)
		if err != nil {
			return err
		}
		k.scratch = content
		if i < len(r.resources) && r.resources[i].name != "" {
			k.store.WriteResource(stage, r.typeURL, r.resources[i].name, r.resources[i].version, content)
		}
		i++
		k.addProgress(length)
		return nil
	})
	if err != nil {
		k.log.Warn("a response could not be stored", "type", r.typeURL, "error", err)
	}
	if cap(k.scratch) > maxScratch {
		k.scratch = nil
	}
}

// writeResponseEnd writes the removals and the end of a response.
func (k *lastGoodWriter) writeResponseEnd(v variant, stage uint64, r response) {
	for _, name := range r.removed {
		k.store.WriteRemoval(stage, r.typeURL, name)
	}
	k.store.WriteResponse(stage, r.typeURL, r.version, v == sotw && isFullState(r.typeURL))
}

// isFullState reports whether a SotW response of the type contains all resources. For other types a server may send
// only changes.
func isFullState(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }
