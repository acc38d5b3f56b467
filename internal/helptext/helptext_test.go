package helptext

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestFlagDescriptionsAreWrappedInEachCommand(t *testing.T) {
	root := &cobra.Command{Use: "program"}
	sub := &cobra.Command{Use: "sub", Short: "Do it", Run: func(*cobra.Command, []string) {}}
	sub.Flags().String("own", "", strings.Repeat("word ", 40))
	root.PersistentFlags().String("inherited", "", strings.Repeat("word ", 40))
	root.AddCommand(sub)
	WrapFlags(root)

	var out strings.Builder
	root.SetOut(&out)
	root.SetArgs([]string{"sub", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for line := range strings.Lines(text) {
		if len(strings.TrimRight(line, "\n")) > columns {
			t.Errorf("line longer than %d columns: %q", columns, line)
		}
	}
	for _, want := range []string{"Do it\n\nUsage:\n  program sub [flags]\n", "      --own string", "Global Flags:\n      --inherited string"} {
		if !strings.Contains(text, want) {
			t.Errorf("the help text does not contain %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "word"); n != 80 {
		t.Errorf("the help text contains %d words of the descriptions, want 80", n)
	}
}
