package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/console"
)

// stopTime is how long an ordered end may take.
const stopTime = 20 * time.Second

// show brings the shop up for a person, and ends it when ctx ends.
func (o options) show(ctx context.Context, out io.Writer) error {
	s, err := newShop(o)
	if err != nil {
		return err
	}
	printer := console.New(out, console.IsTerminal(out) && os.Getenv("NO_COLOR") == "", s.topology.InstanceNames()...)
	printer.Verbose = o.verbose
	events := s.Events()
	s.start(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	go func() { failed <- s.attend(ctx) }()
	printer.Follow(events, nil, func(e mesh.Event) { s.welcome(out, printer, e.Took) })
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := errors.Join(s.stop(limited), <-failed); err != nil {
		return err
	}
	fmt.Fprintln(out, "The book shop is closed; nothing is left behind.")
	return nil
}

// attend begins the end of the mesh: when ctx ends, or when a workload will not become ready, which is its error. A
// signal after that takes what is left of the processes' grace.
func (s *shop) attend(ctx context.Context) error {
	err := s.Mesh.WaitReady(ctx)
	if ctx.Err() != nil || errors.Is(err, mesh.ErrEnded) {
		err = nil // the end was asked for, or stop will say why it came
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-s.ended:
			return nil
		}
	}
	s.cancel(cmp.Or(err, errAsked))
	again := make(chan os.Signal, 1)
	signal.Notify(again, mesh.EndSignals()...)
	defer signal.Stop(again)
	select {
	case <-again:
		s.Kill()
	case <-s.ended:
	}
	return err
}

// welcome says where the shop is, and what to try.
func (s *shop) welcome(out io.Writer, p *console.Printer, took time.Duration) {
	fmt.Fprintf(out, `
The book shop is open after %[1]s:  %[2]s
Look at it in a browser, and reload: three versions of reviews take turns.

Three things to try:
  1. Sign in as ada, who always gets version 2:
       curl -H 'x-user: ada' %[3]s
  2. Change the weights, save, and reload: no restart.
       ${EDITOR:-vi} %[4]s
  3. See how every sidecar is:
       %[5]s status

Ctrl-C closes the shop. Here is what its workloads say:

`, console.Duration(took), p.Bold(s.url()), s.url(), shellWord(filepath.Join(s.configDir(), "reviews.yaml")), shellWord(os.Args[0]))
}

// plainWord is what a shell takes for one word as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord is text as one word for a shell, to be copied from the screen.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
