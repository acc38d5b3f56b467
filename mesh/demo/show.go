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

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/console"
)

// stopTimeout is the maximum duration of a graceful stop of the mesh.
const stopTimeout = 20 * time.Second

// show runs the shop interactively until ctx ends.
func (o options) show(ctx context.Context, out io.Writer) error {
	s, err := newShop(o)
	if err != nil {
		return err
	}
	printer := console.New(out, terminal.Detect(out).Colours, s.topology.InstanceNames()...)
	printer.Verbose = o.verbose
	events := s.Events()
	s.start(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	go func() { failed <- s.superviseEnd(ctx) }()
	printer.Follow(events, nil, func(e mesh.Event) { s.welcome(out, printer, e.Took) })
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := errors.Join(s.stop(limited), <-failed); err != nil {
		return err
	}
	fmt.Fprintln(out, "The book shop has stopped; none of its processes or temporary files remain.")
	return nil
}

// superviseEnd waits until ctx ends or a workload cannot become ready, and then stops the mesh. In the second case, it
// returns the workload's error. During the stop, another signal kills the remaining processes.
func (s *shop) superviseEnd(ctx context.Context) error {
	err := s.Mesh.WaitReady(ctx)
	if ctx.Err() != nil || errors.Is(err, mesh.ErrEnded) {
		err = nil // not a failure here: the user stopped the demo, or stop returns the error of the mesh
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-s.done:
			return nil
		}
	}
	s.cancel(cmp.Or(err, errRequested))
	again := make(chan os.Signal, 1)
	signal.Notify(again, mesh.EndSignals()...)
	defer signal.Stop(again)
	select {
	case <-again:
		s.Kill()
	case <-s.done:
	}
	return err
}

// welcome prints the shop's URL, and examples of what the user can do.
func (s *shop) welcome(out io.Writer, p *console.Printer, took time.Duration) {
	fmt.Fprintf(out, `
The book shop is ready after %[1]s:  %[2]s
Open the page in a browser and reload it: it shows three versions of the reviews service in turn.

Three things to try:
  1. Send a request as the user ada, whose reviews are always of version 2:
       curl -H 'x-user: ada' %[3]s
  2. Change the weights of the versions, save the file, and reload the page. No process restarts:
       ${EDITOR:-vi} %[4]s
  3. Show the state of all sidecars:
       %[5]s status

Ctrl-C stops the book shop. The output of its workloads follows.

`, console.Duration(took), p.Bold(s.url()), s.url(), shellWord(filepath.Join(s.configDir(), "reviews.yaml")), shellWord(os.Args[0]))
}

// plainWord matches text that does not need quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord returns text as one word for a shell, quoted if necessary.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
