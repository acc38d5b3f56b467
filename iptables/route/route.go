// Package route manages the policy routing of a network namespace for TPROXY: policy rules and routes that deliver
// marked packets to the local host, and addresses of lo. It identifies its own objects by a protocol number that other
// programs do not use, and does not change other objects.
package route

import (
	"errors"
	"fmt"
)

// Protocol is the protocol number of our rules, routes and addresses. "ip rule show" prints it as "proto 80". The number is
// not in /etc/iproute2/rt_protos.
const Protocol = 80

// Config configures Routes.
type Config struct {
	// NetNS is a file descriptor of the network namespace. It must remain open while Routes is used. 0 or less selects the
	// calling thread's namespace.
	NetNS int
	// Disabled makes all methods return without any effect.
	Disabled bool
	// Inject is for tests. It is called before each change; if it returns an error, the change fails.
	Inject func(step string) error
}

// Undo reverts changes. The methods of Routes never return a nil Undo. It must be called at most once.
type Undo func() error

// change is one change of the kernel's state. It contains the function that reverts it.
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
				errs = append(errs, fmt.Errorf("reverting %q: %w", changes[i].what, err))
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
