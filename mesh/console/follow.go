package console

import "github.com/pilotfish-mesh/pilotfish/mesh"

// maxBuffered is the maximum number of lines that are buffered until the workloads are ready.
const maxBuffered = 2000

// Follow prints events until the mesh has ended or done is closed. It buffers the output of the processes until all
// workloads are ready, so that the user first sees the list of ready workloads. On a failure it prints the buffered
// output immediately, because that output usually contains the cause. If ready is not nil, Follow calls it when all
// workloads are ready, before it prints the buffered output.
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
				if len(held) < maxBuffered {
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
