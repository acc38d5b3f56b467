package mesh

import (
	"errors"
	"sync"
)

// releaseList contains the functions that release a placement's resources.
type releaseList struct {
	mu       sync.Mutex
	releases []func() error
}

// onRelease adds a function to the list.
func (r *releaseList) onRelease(f func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releases = append(r.releases, f)
}

// Release releases all resources in reverse order.
func (r *releaseList) Release() error {
	r.mu.Lock()
	releases := r.releases
	r.releases = nil
	r.mu.Unlock()
	var errs []error
	for n := len(releases) - 1; n >= 0; n-- {
		errs = append(errs, releases[n]())
	}
	return errors.Join(errs...)
}
