package mesh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrEnded is the error of functions that wait, if the mesh ends before the condition is met. Run returns the reason.
var ErrEnded = errors.New("the mesh has ended")

// announceReady publishes MeshReady when all instances are ready for the first time.
func (m *Mesh) announceReady(ctx context.Context) {
	if m.waitUntil(ctx, func() (bool, error) { return m.allReady(), nil }) == nil && m.waitSynced(ctx) == nil {
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

// waitUntil calls check after every change of readiness. It returns when check returns true or an error.
func (m *Mesh) waitUntil(ctx context.Context, check func() (bool, error)) error {
	for {
		changed := m.readiness.wait()
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.done:
			return ErrEnded
		}
	}
}

// WaitReady waits until every instance is ready and all proxies are synchronized. It returns an error with all reasons
// when the mesh has ended, or when no unready instance can become ready soon. An instance cannot become ready soon if
// one of its processes failed and is not restarted, or if its startupTimeout has passed.
func (m *Mesh) WaitReady(ctx context.Context) error {
	err := m.waitUntil(ctx, func() (bool, error) {
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
	return m.waitSynced(ctx)
}
