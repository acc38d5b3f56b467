// Package route adds to a network namespace what transparent proxying needs in addition to rules: policy rules and
// routes that deliver marked packets to the local host, and loopback addresses. Its objects are identified by a
// protocol number of their own. Equal objects that existed before are not touched.
package route

import (
	"errors"
	"fmt"
)

// Protocol marks our rules, routes and addresses: "ip rule show" prints "proto 80". The number is not in
// /etc/iproute2/rt_protos, and no other program is known to use it.
const Protocol = 80

// Config configures Routes.
type Config struct {
	// NetNS is a descriptor of the network namespace, which must stay open as long as Routes are used; 0 or less
	// selects the calling thread's.
	NetNS int
	// Disabled disables all changes and reads.
	Disabled bool
	// Inject is for tests. It is called before each step; an error makes the step fail.
	Inject func(step string) error
}

// Undo reverts the changes. It is never nil and must be called at most once.
type Undo func() error

// change is a step with its inverse.
type change struct {
	what     string
	do, undo func() error
}

// run makes the changes in order. After a failure it reverts the completed ones.
func run(changes []change, inject func(string) error) (Undo, error) {
	done := 0
	undo := func() error {
		var errs []error
		for i := done - 1; i >= 0; i-- {
			if err := changes[i].undo(); err != nil {
				errs = append(errs, fmt.Errorf("take back: %s: %w", changes[i].what, err))
			}
		}
		return errors.Join(errs...)
	}
	for _, c := range changes {
		err := error(nil)
		if inject != nil {
			err = inject(c.what)
		}
		if err == nil {
			err = c.do()
		}
		if err != nil {
			return func() error { return nil }, errors.Join(fmt.Errorf("%s: %w", c.what, err), undo())
		}
		done++
	}
	return undo, nil
}
