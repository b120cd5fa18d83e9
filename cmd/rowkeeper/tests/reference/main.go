// Command cli prints docs/reference/cli.md: every command of rowkeeper and its flags, as the
// program describes them itself.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/app"
)

func main() {
	root := app.NewCommand()
	fmt.Print("# The commands of rowkeeper\n\n" +
		"`rowkeeper COMMAND --help` says the same. The program exits with 0, with 1 if the command " +
		"failed,\nand with 2 if it was not called as it should be. `rowkeeper completion SHELL` " +
		"prints a script that\ncompletes command lines.\n")
	shared := map[string]int{}
	count(shared, root)
	fmt.Print("\n## Flags of many commands\n\nMost commands have these flags, which name the " +
		"database and say how to reach it. Each command lists\nthem by name.\n\n")
	byName := func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "`", ""), strings.ReplaceAll(b, "`", ""))
	}
	for _, text := range slices.SortedFunc(maps.Keys(shared), byName) {
		if shared[text] >= many {
			fmt.Print(wrap("- "+text, "  "))
		}
	}
	describe(os.Stdout, root, shared)
}

// many is the number of commands from which on a flag that is the same in all of them is described
// once.
const many = 10

// count counts the commands, from c on, that have a flag with the same description. Commands that
// list their flags below headings describe all of them by themselves.
func count(shared map[string]int, c *cobra.Command) {
	if chapters, _ := groups(c); len(chapters) == 1 {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				shared[flag(f)]++
			}
		})
	}
	for _, below := range c.Commands() {
		count(shared, below)
	}
}

// describe writes of a command and of those below it. Those of its flags that are shared by many
// commands are only named.
func describe(w io.Writer, c *cobra.Command, shared map[string]int) {
	if c.HasParent() {
		fmt.Fprintf(w, "\n## %s\n", c.CommandPath())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			fmt.Fprint(w, "\n", wrap(paragraph, ""))
		}
		if c.Example != "" || !c.HasAvailableSubCommands() { // it does something itself
			fmt.Fprintf(w, "\n```text\n%s\n```\n", c.UseLine())
		}
		if c.Example != "" {
			fmt.Fprintf(w, "\nFor example:\n\n```text\n%s\n```\n", outdent(c.Example))
		}
	}
	chapters, of := groups(c)
	var elsewhere []string
	for _, chapter := range chapters {
		first := true
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || of[f.Name] != chapter {
				return
			}
			if len(chapters) == 1 && shared[flag(f)] >= many {
				elsewhere = append(elsewhere, "`--"+f.Name+"`")
				return
			}
			if first && chapter != "" {
				fmt.Fprintf(w, "\n### %s\n", chapter)
			}
			if first {
				fmt.Fprintln(w)
			}
			first = false
			fmt.Fprint(w, wrap("- "+flag(f), "  "))
		})
	}
	if len(elsewhere) > 0 {
		fmt.Fprint(w, "\n", wrap("[Flags of many commands](#flags-of-many-commands): "+
			strings.Join(elsewhere, ", ")+".", ""))
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			describe(w, below, shared)
		}
	}
}

// groups are the headings under which a command's usage lists its flags, in their order, and which
// flag stands below which. A usage with one list of flags has the group "" alone.
func groups(c *cobra.Command) (chapters []string, of map[string]string) {
	heading := regexp.MustCompile(`^([A-Z].* flags):$`)
	name := regexp.MustCompile(`^ +(?:-\w, )?--([\w-]+)`)
	of = map[string]string{}
	chapter := ""
	for line := range strings.Lines(c.UsageString()) {
		line = strings.TrimRight(line, "\n")
		if h := heading.FindStringSubmatch(line); h != nil {
			chapter = h[1]
			chapters = append(chapters, chapter)
		} else if n := name.FindStringSubmatch(line); n != nil {
			of[n[1]] = chapter
		}
	}
	if len(chapters) == 0 || chapters[0] == "Global flags" {
		return []string{""}, map[string]string{}
	}
	return append([]string{""}, chapters...), of
}

// flag is the text of one flag.
func flag(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	if kind != "" {
		name += " " + kind
	}
	usage = strings.TrimSuffix(usage, ".")
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
		return name + ": " + usage + "."
	}
	return fmt.Sprintf("%s: %s. Default: `%s`.", name, usage, f.DefValue)
}

// outdent takes away what begins every line of an example.
func outdent(text string) string {
	return strings.TrimPrefix(strings.ReplaceAll(text, "\n  ", "\n"), "  ")
}

// wrap breaks a text into lines of at most 100 bytes. Those after the first begin with indent.
func wrap(text, indent string) string {
	text = strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(text)
	var all, line strings.Builder
	for word := range strings.FieldsSeq(text) {
		if line.Len() > len(indent) && line.Len()+1+len(word) > 100 {
			fmt.Fprintln(&all, line.String())
			line.Reset()
			line.WriteString(indent)
		} else if line.Len() > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(word)
	}
	fmt.Fprintln(&all, line.String())
	return all.String()
}
