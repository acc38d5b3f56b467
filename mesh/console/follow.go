package console

import "github.com/pilotfish-mesh/pilotfish/mesh"

// maxHeld bounds the lines that wait for the workloads to be ready.
const maxHeld = 2000

// Follow prints until the mesh has ended or done is closed. Output of processes is held back until all workloads are
// ready, so that their readiness can be seen at a glance; when something goes wrong before, it is shown at once, for it
// mostly says why. ready, if not nil, is called when all are ready, before the output is shown.
func (p *Printer) Follow(events *mesh.Subscription, done <-chan struct{}, ready func(mesh.Event)) {
	var held []mesh.Event
	holding := true
	release := func() {
		for _, e := range held {
			p.Print(e, true)
		}
		held, holding = nil, false
	}
	for {
		batch, ok := events.Next(done)
		if !ok {
			release()
			return
		}
		for _, e := range batch {
			if holding && e.Kind == mesh.Log && e.Origin != mesh.OriginMesh {
				if len(held) < maxHeld {
					held = append(held, e)
				}
				continue
			}
			switch e.Kind {
			case mesh.NotReady, mesh.Exited, mesh.Failed:
				release()
			}
			p.Print(e, true)
			if e.Kind == mesh.MeshReady {
				if ready != nil {
					ready(e)
				}
				release()
			}
		}
	}
}
