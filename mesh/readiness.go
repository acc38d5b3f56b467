package mesh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrEnded is the error of those who wait for something of a mesh that has ended; Run's own error says why it did.
var ErrEnded = errors.New("the mesh has ended")

// announceReady tells when all are ready for the first time.
func (m *Mesh) announceReady(ctx context.Context) {
	if m.await(ctx, func() (bool, error) { return m.allReady(), nil }) == nil && m.awaitSpread(ctx) == nil {
		m.events.publish(Event{Kind: MeshReady, Origin: OriginMesh, Took: time.Since(m.started)})
	}
}

func (m *Mesh) allReady() bool {
	for _, r := range m.snapshotRunners() {
		if ready, _, _ := r.state(); !ready {
			return false
		}
	}
	return m.snapshotRunners() != nil
}

// await waits until check says that it is done.
func (m *Mesh) await(ctx context.Context, check func() (bool, error)) error {
	for {
		changed := m.readiness.wait()
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.ended:
			return ErrEnded
		}
	}
}

// WaitReady waits until every instance is ready and all proxies know of all. It returns an error, with all the reasons, as soon as what is not ready
// yet will not be soon: a process failed for good, or is late (startupTimeout), or the mesh ended.
func (m *Mesh) WaitReady(ctx context.Context) error {
	err := m.await(ctx, func() (bool, error) {
		var pending []string
		hopeless := true
		runners := m.snapshotRunners()
		for _, r := range runners {
			ready, reasons, lost := r.state()
			if ready {
				continue
			}
			hopeless = hopeless && lost
			pending = append(pending, fmt.Sprintf("%s: %s", r.instance.Name, strings.Join(reasons, "; ")))
		}
		switch {
		case runners == nil:
			return false, nil
		case len(pending) == 0:
			return true, nil
		case hopeless:
			return true, fmt.Errorf("not ready: %s", strings.Join(pending, "\n"))
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	return m.awaitSpread(ctx)
}
