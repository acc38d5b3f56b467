package demo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
)

// maxEvents is the number of newest events that an eventLog retains. It drops older events when it contains twice this
// number.
const maxEvents = 100_000

// eventLog stores the events of a mesh in memory, and writes them on demand.
type eventLog struct {
	events []mesh.Event
	// done is closed when the mesh has stopped and its last event is stored.
	done chan struct{}
}

// collectEvents starts to store the events of a subscription, until the mesh stops.
func collectEvents(s *mesh.Subscription) *eventLog {
	k := &eventLog{done: make(chan struct{})}
	go func() {
		defer close(k.done)
		for {
			batch, ok := s.Next(nil)
			if !ok {
				return
			}
			k.events = append(k.events, batch...)
			if len(k.events) > 2*maxEvents {
				k.events = append([]mesh.Event{}, k.events[len(k.events)-maxEvents:]...)
			}
		}
	}()
	return k
}

// write creates a directory, and writes the results and a log of all processes into it. If dir is empty, it creates a
// temporary directory. It returns the directory's path.
func (k *eventLog) write(dir string, results []check.Result) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", "pilotfish-demo-failed-")
	} else {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return "", err
	}
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return dir, err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), data, 0o600); err != nil {
		return dir, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "mesh.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return dir, err
	}
	for _, e := range k.events {
		fmt.Fprintln(f, logLine(e))
	}
	return dir, f.Close()
}

func logLine(e mesh.Event) string {
	text := e.Message
	switch {
	case e.Kind == mesh.Log:
		text = e.Line
	case e.Problem != nil:
		text = e.Problem.String()
	case e.Exit != nil:
		text = fmt.Sprintf("%s %v %q", e.Message, e.Exit, e.Exit.Tail)
	}
	return fmt.Sprintf("%s %-14s %-13s %-13s %s", e.Time.Format("15:04:05.000"), e.Instance, e.Origin, e.Kind, text)
}
