package ca

import (
	"sync"
	"testing"
)

// When several control planes and a command share one directory, each step is executed exactly once.
func TestConcurrentRotationsExecuteEachStepOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	const processes, steps = 3, 8 // 8 steps in each of 3 processes: 24 steps are 8 rotations of 3 steps
	for range processes {
		a, err := Load(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for range steps {
				if _, err := a.Rotate(true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	a, err := Load(dir, Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.store.(dirStore).readGenerations()
	if err != nil || g.Active != processes*steps/3 || g.Announced != 0 || g.Previous != 0 {
		t.Errorf("after %d steps the state is %+v, %v", processes*steps, g, err)
	}
}
