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

// stopTimeout is the maximum duration of an orderly end.
const stopTimeout = 20 * time.Second

// show runs the shop interactively until ctx ends.
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
	go func() { failed <- s.superviseEnd(ctx) }()
	printer.Follow(events, nil, func(e mesh.Event) { s.welcome(out, printer, e.Took) })
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := errors.Join(s.stop(limited), <-failed); err != nil {
		return err
	}
	fmt.Fprintln(out, "The book shop is closed; nothing is left behind.")
	return nil
}

// superviseEnd stops the mesh when ctx ends, or when a workload will not become ready, and returns that error. A
// further signal kills remaining processes.
func (s *shop) superviseEnd(ctx context.Context) error {
	err := s.Mesh.WaitReady(ctx)
	if ctx.Err() != nil || errors.Is(err, mesh.ErrEnded) {
		err = nil // the user requested the end, or stop returns the cause
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

// welcome prints the shop's URL, and what to try.
func (s *shop) welcome(out io.Writer, p *console.Printer, took time.Duration) {
	fmt.Fprintf(out, `
The book shop is open after %[1]s:  %[2]s
Look at it in a browser, and reload: three versions of reviews alternate.

Three things to try:
  1. Sign in as ada, who always gets version 2:
       curl -H 'x-user: ada' %[3]s
  2. Change the weights, save, and reload: no restart.
       ${EDITOR:-vi} %[4]s
  3. See how every sidecar is:
       %[5]s status

Ctrl-C closes the shop. The output of its workloads:

`, console.Duration(took), p.Bold(s.url()), s.url(), shellWord(filepath.Join(s.configDir(), "reviews.yaml")), shellWord(os.Args[0]))
}

// plainWord matches text that a shell reads as one word without quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord quotes text as one word for a shell.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
