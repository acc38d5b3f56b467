package fstimeout

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// A hung directory delays its first caller by one timeout, and does not delay other callers.
func TestHungDirectoryDelaysNoOtherCaller(t *testing.T) {
	resumed, stood := make(chan struct{}, 1), make(chan struct{}, 1)
	d := &TimeoutFS{Timeout: time.Second, OnResume: func() { resumed <- struct{}{} }, OnHang: func() { stood <- struct{}{} }}
	goOn, begun := make(chan struct{}), make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := d.Do("/stands", func() { close(begun); <-goOn }); !errors.As(err, new(HungError)) {
			t.Errorf("the call did not return an error: %v", err)
		}
	})
	<-begun
	for range 3 { // waiting callers return at the same time as the first one
		waiting.Go(func() {
			if err := d.DoFile("/stands/file", func() { t.Error("the function ran for a hung directory") }); err == nil {
				t.Error("answered")
			}
		})
	}
	waiting.Wait()
	<-stood
	if err := d.Do("/stands", func() { t.Error("the function ran although an earlier call hangs") }); err == nil {
		t.Error("answered")
	}
	answered := false
	if err := d.Do("/other", func() { answered = true }); err != nil || !answered {
		t.Errorf("another directory: %v, %v", answered, err)
	}
	close(goOn)
	<-resumed
	if err := d.Do("/stands", func() { answered = false }); err != nil || answered {
		t.Errorf("after the hung call returned: %v", err)
	}
	testenv.Eventually(t, "all entries and slots are released", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.slots)+len(d.directories) > 0 {
			return fmt.Errorf("%d, %v", len(d.slots), d.directories)
		}
		return nil
	})
}

// All calls for a slow directory are executed, even if a caller waits for longer than one timeout.
func TestBusyDirectoryServesAllCallers(t *testing.T) {
	d := &TimeoutFS{Timeout: 5 * time.Second}
	var asking sync.WaitGroup
	count := 0 // calls are serialized
	for range 1000 {
		asking.Go(func() {
			if err := d.Do("/busy", func() { count++ }); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if count != 1000 {
		t.Errorf("%d calls were executed", count)
	}
}

// Hung calls occupy at most one thread per slot; further calls return an error.
func TestHungDirectoriesOccupyFewThreads(t *testing.T) {
	d := &TimeoutFS{Timeout: 20 * time.Millisecond}
	goOn := make(chan struct{})
	var asking, answering sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for i := range 3 * maxCalls {
		asking.Go(func() {
			err := d.Do(string(rune('a'+i)), func() {
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
	if begun > maxCalls {
		t.Errorf("%d concurrent calls", begun)
	}
	mu.Unlock()
	close(goOn)
	answering.Wait()
}
