package usage

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// newProgram returns a program with a command for each kind of arguments and flags.
func newProgram() *cobra.Command {
	root := &cobra.Command{Use: "program", SilenceErrors: true, SilenceUsage: true}
	run := func(*cobra.Command, []string) error { return nil }
	restart := &cobra.Command{Use: "restart WORKLOAD", Args: Args("WORKLOAD"), RunE: run}
	restart.Flags().StringP("output", "o", "", "json or yaml")
	restart.Flags().Duration("timeout", 0, "maximum time")
	restart.Flags().Uint16("port", 0, "port of the server")
	restart.Flags().Bool("all", false, "all of them")
	restart.Flags().Func("network", "network of endpoints", func(string) error { return errors.New(`"x" is not a network`) })
	restart.Flags().String("secret", "", "not for users")
	_ = restart.Flags().MarkHidden("secret")
	exec := &cobra.Command{Use: "exec WORKLOAD COMMAND [ARGUMENT]...", Args: Args("WORKLOAD", "COMMAND", "[ARGUMENT]..."), RunE: run}
	list := &cobra.Command{Use: "list [NAME]", Args: Args("[NAME]"), Aliases: []string{"ls"}, RunE: run}
	for _, name := range []string{"name", "file", "cert", "key"} {
		list.Flags().String(name, "", "value of "+name)
	}
	SetExclusive(list, "name", "file")
	SetTogether(list, "cert", "key")
	serve := &cobra.Command{Use: "serve --dir DIR", Args: Args(), RunE: run}
	serve.Flags().String("dir", "", "directory of documents")
	serve.Flags().String("mesh", "", "mesh configuration")
	SetOneRequired(serve, "dir", "mesh")
	group := &cobra.Command{Use: "group", Short: "Group commands"}
	group.AddCommand(&cobra.Command{Use: "show", Args: Args(), RunE: run})
	root.AddCommand(restart, exec, list, serve, group)
	Install(root)
	return root
}

func TestInvalidCommandLinesAreExplained(t *testing.T) {
	for line, want := range map[string]string{
		"restart":                          "WORKLOAD is missing; usage: program restart WORKLOAD [flags] (see `program restart --help`)",
		"restart a b":                      `unexpected argument "b"; usage: program restart WORKLOAD [flags] (see ` + "`program restart --help`)",
		"exec a":                           "COMMAND is missing; usage: program exec WORKLOAD COMMAND [ARGUMENT]... [flags] (see `program exec --help`)",
		"list a b":                         `unexpected argument "b"; usage: program list [NAME] [flags] (see ` + "`program list --help`)",
		"serve x":                          `unexpected argument "x"; usage: program serve --dir DIR [flags] (see ` + "`program serve --help`)",
		"serve":                            "--dir or --mesh is missing; usage: program serve --dir DIR [flags] (see `program serve --help`)",
		"list --name a --file b":           "--name and --file cannot be combined; use one of them (see `program list --help`)",
		"list --cert a":                    "--cert requires --key (see `program list --help`)",
		"restart a --outptu x":             "unknown flag: --outptu; did you mean --output? (see `program restart --help`)",
		"restart a --secrte x":             "unknown flag: --secrte (see `program restart --help`)",
		"restart a -x":                     "unknown flag: -x (see `program restart --help`)",
		"restart a -timeout 3s":            "unknown flag: -t in -timeout; flags with a long name begin with two dashes; did you mean --timeout? (see `program restart --help`)",
		"restart a --timeout":              "--timeout requires a value: a duration, such as 500ms, 30s or 5m (see `program restart --help`)",
		"restart a -o":                     "--output requires a value: json or yaml (see `program restart --help`)",
		"restart a --timeout 3 ":           `--timeout "3": write a duration, such as 500ms, 30s or 5m (see ` + "`program restart --help`)",
		"restart a --port 70000":           `--port "70000": write a whole number from 0 to 65535 (see ` + "`program restart --help`)",
		"restart a --all=perhaps":          `--all "perhaps": write true or false (see ` + "`program restart --help`)",
		"restart a --network x":            `--network: "x" is not a network (see ` + "`program restart --help`)",
		"restrat a":                        `unknown command "restrat" for "program"; did you mean restart? (see ` + "`program --help`)",
		"nonsense --flag":                  `unknown command "nonsense" for "program" (see ` + "`program --help`)",
		"group shwo":                       `unknown command "shwo" for "program group"; did you mean show? (see ` + "`program group --help`)",
		"group shwo --flag":                `unknown command "shwo" for "program group"; did you mean show? (see ` + "`program group --help`)",
		"completion tcsh":                  `completion is not available for "tcsh"; supported shells: bash, fish, powershell, zsh`,
		"help restrat":                     `unknown command "restrat" for "program"; did you mean restart? (see ` + "`program --help`)",
		"help group shwo":                  `unknown command "shwo" for "program group"; did you mean show? (see ` + "`program group --help`)",
		"completion":                       "SHELL is missing; usage: program completion SHELL [flags]; supported shells: bash, fish, powershell, zsh",
		"completion bash --no-descritions": "unknown flag: --no-descritions; did you mean --no-descriptions? (see `program completion bash --help`)",
	} {
		root := newProgram()
		root.SetArgs(strings.Fields(line))
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&bytes.Buffer{})
		_, err := Execute(root)
		var wrong Error
		if !errors.As(err, &wrong) || wrong.ProcessExitCode() != 2 || err.Error() != want {
			t.Errorf("program %s: %v\nwant %s", line, err, want)
		}
	}
}

func TestValidCommandLinesAreAccepted(t *testing.T) {
	for _, line := range []string{
		"restart a -o json --timeout 3s --port 1 --all", "exec a b", "exec a b c d", "list", "list a --cert x --key y", "ls", "serve --dir x", "serve --mesh x", "group show", "group", "", "help", "help restart", "help group show",
	} {
		root := newProgram()
		root.SetArgs(strings.Fields(line))
		root.SetOut(&bytes.Buffer{})
		if _, err := Execute(root); err != nil {
			t.Errorf("program %s: %v", line, err)
		}
	}
}

func TestCompletionScriptsArePrinted(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		root := newProgram()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs([]string{"completion", shell})
		if _, err := Execute(root); err != nil || !strings.Contains(out.String(), "__complete") {
			t.Errorf("%s: %v\n%s", shell, err, out.String())
		}
	}
}
