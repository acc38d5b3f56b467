package disks

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// A directory that does not answer costs one patience, and nobody else anything.
func TestDirectoryThatDoesNotAnswerHoldsNobodyUp(t *testing.T) {
	resumed, stood := make(chan struct{}, 1), make(chan struct{}, 1)
	d := &Disks{Patience: time.Second, Resumed: func() { resumed <- struct{}{} }, Stood: func() { stood <- struct{}{} }}
	goOn, begun := make(chan struct{}), make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := d.Ask("/stands", func() { close(begun); <-goOn }); !errors.As(err, new(StandsError)) {
			t.Errorf("no answer: %v", err)
		}
	})
	<-begun
	for range 3 { // who waits for a turn is not held longer than who has it
		waiting.Go(func() {
			if err := d.Around("/stands/file", func() { t.Error("asked of a directory that does not answer") }); err == nil {
				t.Error("answered")
			}
		})
	}
	waiting.Wait()
	<-stood
	if err := d.Ask("/stands", func() { t.Error("asked again") }); err == nil {
		t.Error("answered")
	}
	answered := false
	if err := d.Ask("/other", func() { answered = true }); err != nil || !answered {
		t.Errorf("another directory: %v, %v", answered, err)
	}
	close(goOn)
	<-resumed
	if err := d.Ask("/stands", func() { answered = false }); err != nil || answered {
		t.Errorf("after it goes on: %v", err)
	}
	testenv.Eventually(t, "nothing is left over", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.slots)+len(d.directories) > 0 {
			return fmt.Errorf("%d, %v", len(d.slots), d.directories)
		}
		return nil
	})
}

// Many who ask of a busy directory all get their turn, however long that takes in all.
func TestBusyDirectoryAnswersAll(t *testing.T) {
	d := &Disks{Patience: 5 * time.Second}
	var asking sync.WaitGroup
	count := 0 // one at a time
	for range 1000 {
		asking.Go(func() {
			if err := d.Ask("/busy", func() { count++ }); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if count != 1000 {
		t.Errorf("%d answers", count)
	}
}

// No more threads are kept than there are slots, and those that find none are told.
func TestDirectoriesThatDoNotAnswerKeepFewThreads(t *testing.T) {
	d := &Disks{Patience: 20 * time.Millisecond}
	goOn := make(chan struct{})
	var asking, answering sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for i := range 3 * mostQuestions {
		asking.Go(func() {
			err := d.Ask(string(rune('a'+i)), func() {
				answering.Add(1)
				defer answering.Done()
				mu.Lock()
				begun++
				mu.Unlock()
				<-goOn
			})
			if err == nil {
				t.Error("answered")
			}
		})
	}
	asking.Wait()
	mu.Lock()
	if begun > mostQuestions {
		t.Errorf("%d questions at once", begun)
	}
	mu.Unlock()
	close(goOn)
	answering.Wait()
}
