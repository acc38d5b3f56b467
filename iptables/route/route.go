// Package route gives a network namespace what transparent proxying needs beside rules: policy rules and routes that
// take marked packets to the local host, and addresses of loopback. What it adds carries a protocol number of its own in
// the kernel, by which it is found again; what was there before it, and happens to be the same, is left alone.
package route

import (
	"errors"
	"fmt"
)

// Protocol marks rules, routes and addresses as ours: "ip rule show" prints it as "proto 80". It is not in
// /etc/iproute2/rt_protos, nor does another program use it that is known to us.
const Protocol = 80

// Config is what Routes need to know.
type Config struct {
	// NetNS is a descriptor of the network namespace, which stays open as long as Routes are used; 0 or less is that of the
	// calling thread.
	NetNS int
	// Leave has nothing done, and nothing found.
	Leave bool
	// Inject is for tests: it is called before each step, which fails where it returns an error.
	Inject func(step string) error
}

// Undo takes back what was done; it is never nil, and is called once at most.
type Undo func() error

// change is a step with its reverse.
type change struct {
	what     string
	do, undo func() error
}

// run makes the changes in order. After a failure it takes back those that were made.
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
