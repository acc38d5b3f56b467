package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// listCommands returns all commands of the programs pilotfish and pilotfish-agent.
func listCommands(t *testing.T) []*cobra.Command {
	t.Helper()
	var all []*cobra.Command
	rest := []*cobra.Command{newRoot(), command.NewRoot(newRedirectionCommand())}
	for len(rest) > 0 {
		c := rest[0]
		all = append(all, c)
		rest = append(rest[1:], c.Commands()...)
	}
	if len(all) < 60 {
		t.Fatalf("only %d commands were found", len(all))
	}
	return all
}

// pflag shows text in backquotes as the type of the flag's value.
func TestFlagLinesInHelpAreComplete(t *testing.T) {
	for _, c := range listCommands(t) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.ContainsAny(name, " -") {
				t.Errorf("%s --help shows the flag --%s with a value of type %q", c.CommandPath(), f.Name, name)
			}
		})
	}
}

// loggingCommands are the commands whose help contains the flags of the log.
var loggingCommands = []string{"proxy", "run", "control-plane"}

func TestOnlyLoggingCommandsShowLogFlags(t *testing.T) {
	flag := regexp.MustCompile(`(?m)^ +(?:-., )?--(log[_-](?:output_)?level|log_as_json|log_target|log_caller|log_stacktrace_level|vklog)\b`)
	for _, c := range listCommands(t) {
		found := flag.FindStringSubmatch(c.UsageString())
		if want := slices.Contains(loggingCommands, c.Name()); want != (found != nil) {
			t.Errorf("%s --help shows log flags: %q, want %v", c.CommandPath(), found, want)
		}
	}
}

func TestEveryOutputFlagIsCompleted(t *testing.T) {
	checked := 0
	for _, c := range listCommands(t) {
		f := c.Flags().Lookup("output")
		if f == nil || f.Shorthand == "" {
			continue // not a format
		}
		checked++
		complete, exists := c.GetFlagCompletionFunc("output")
		if !exists {
			t.Errorf("%s -o: no completion", c.CommandPath())
			continue
		}
		values, directive := complete(c, nil, "")
		if directive != cobra.ShellCompDirectiveNoFileComp || !slices.ContainsFunc(values, func(v string) bool { return v == "json" }) {
			t.Errorf("%s -o: completed with %q, %v", c.CommandPath(), values, directive)
		}
	}
	if checked < 30 {
		t.Errorf("only %d commands with -o were found", checked)
	}
}

func TestProxyTypesAreCompleted(t *testing.T) {
	checked := 0
	for _, c := range listCommands(t) {
		if !slices.Contains([]string{"proxy", "run", "config", "bootstrap"}, c.Name()) || c.Parent() == nil || c.Parent().HasParent() {
			continue
		}
		checked++
		values, directive := c.ValidArgsFunction(c, nil, "")
		if directive != cobra.ShellCompDirectiveNoFileComp || len(values) != 3 || !strings.HasPrefix(values[0], "sidecar\t") {
			t.Errorf("%s: completed with %q, %v", c.CommandPath(), values, directive)
		}
		if values, _ := c.ValidArgsFunction(c, []string{"sidecar"}, ""); values != nil {
			t.Errorf("%s sidecar: completed with %q", c.CommandPath(), values)
		}
	}
	if checked != 8 {
		t.Errorf("%d commands with a proxy type were found, want 8", checked)
	}
}

// libraryText matches messages of cobra, pflag and strconv.
var libraryText = regexp.MustCompile(`arg\(s\)|strconv\.|flag needs an argument|invalid argument|required flag|were all set|must all be set|unknown shorthand|parsing "`)

func TestErrorsAboutArgumentsNameTheUsage(t *testing.T) {
	many, refused := strings.Fields("a1 a2 a3 a4 a5 a6 a7 a8 a9"), 0
	for _, c := range listCommands(t) {
		if c.Hidden || c.DisableFlagParsing {
			continue
		}
		for _, args := range [][]string{nil, many} {
			err := c.ValidateArgs(args)
			if err == nil {
				continue
			}
			refused++
			if libraryText.MatchString(err.Error()) || !strings.Contains(err.Error(), c.CommandPath()) {
				t.Errorf("%s with %d arguments: %v", c.CommandPath(), len(args), err)
			}
		}
	}
	if refused < 50 {
		t.Errorf("only %d command lines were refused", refused)
	}
}

// Each command is called with an unknown flag and with an invalid value of each flag.
func TestErrorsOfAllCommandsNameTheFlagOrArgument(t *testing.T) {
	lines := 0
	for _, c := range listCommands(t) {
		if c.Hidden || c.DisableFlagParsing {
			continue
		}
		path := strings.Fields(c.CommandPath())
		calls := [][]string{{"--no-such-flag"}}
		if c.Args != nil && !c.FParseErrWhitelist.UnknownFlags {
			calls = append(calls, []string{"--help=perhaps"})
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if _, known := map[string]bool{"bool": true, "duration": true, "int": true, "uint16": true, "uint32": true}[f.Value.Type()]; known {
				calls = append(calls, []string{"--" + f.Name + "=no value"})
			}
		})
		for _, call := range calls {
			root := newRoot()
			if path[0] != root.Name() {
				root = command.NewRoot(newRedirectionCommand())
			}
			if call[0] == "--no-such-flag" && c.FParseErrWhitelist.UnknownFlags {
				continue
			}
			lines++
			root.SetArgs(append(slices.Clone(path[1:]), call...))
			root.SetOut(new(strings.Builder))
			root.SetErr(new(strings.Builder))
			_, err := usage.Execute(root)
			name, _, _ := strings.Cut(call[0], "=")
			if err == nil || libraryText.MatchString(err.Error()) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s %s: %v", c.CommandPath(), call[0], err)
			}
		}
	}
	if lines < 150 {
		t.Errorf("only %d command lines were checked", lines)
	}
}
