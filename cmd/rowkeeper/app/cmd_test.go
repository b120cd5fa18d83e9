package app

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server/commands"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

const exitOK, exitFailure, exitUsage = commands.ExitOK, commands.ExitFailure, commands.ExitUsage

// words are those of a line of the shell: something in quotes is one.
var words = regexp.MustCompile(`'[^']*'|\S+`)

// TestExamples: every command has an example, which names the command and flags that it has.
func TestExamples(t *testing.T) {
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() && below.Name() != "completion" {
				check(below)
			}
		}
		if c.Example == "" && c.HasAvailableSubCommands() {
			return
		}
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(c.Example, "\\\n", " "), "\n") {
			args := words.FindAllString(line, -1)
			if len(args) == 0 {
				continue
			}
			for i := range args {
				args[i] = strings.Trim(args[i], "'")
			}
			root := NewCommand()
			found, rest, err := root.Find(args[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || args[0] != root.Name() || found.CommandPath() != c.CommandPath() {
				t.Errorf("the example of %s, %q: %v", c.CommandPath(), line, err)
			}
		}
	}
	check(NewCommand())
}

// TestHabits: what users try on every program works on this one.
func TestHabits(t *testing.T) {
	for args, want := range map[string]string{
		"--version":       version.Get().String(),
		"--help":          "Available Commands",
		"completion bash": "__start_rowkeeper",
		"completion fish": "complete -c rowkeeper",
		"help stores":     "rowkeeper stores",
	} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), strings.Fields(args), &out, &errs); code != exitOK ||
			!strings.Contains(out.String(), want) || errs.Len() != 0 {
			t.Errorf("rowkeeper %s: exit code %d, %q", args, code, errs.String())
		}
	}
}
