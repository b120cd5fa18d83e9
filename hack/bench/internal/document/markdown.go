package document

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// Markdown writes the results as a document.
func Markdown(results *runner.Results, plots []Plot) string {
	var b strings.Builder
	f := newFigures(results.Results)
	run := results.Last()
	fmt.Fprintln(&b, "# Rowkeeper beside etcd and kine")
	fmt.Fprintln(&b,
		"\n<!-- Written by the bench: see the command below. -->")
	fmt.Fprintln(&b,
		"\nThe same work through `storage.Interface`, on the same machine in the same run, with equal durability. [README.md](README.md) says how it is measured, and [FINDINGS.md](FINDINGS.md) what the figures come from.")
	writeRun(&b, run, results.Runs, f)
	for _, p := range plots {
		fmt.Fprintf(&b, "\n![%s](%s)\n", p.Chart.Title, p.File)
	}
	writeAims(&b, f)
	writeSettings(&b, results.Results, f)
	writeFigures(&b, f)
	return b.String()
}

func writeRun(b *strings.Builder, run runner.Run, all []runner.Run, f figures) {
	m := run.Machine
	fmt.Fprintf(b, "\n- Rowkeeper %s, %s\n", run.Commit, run.Date.Format("2006-01-02"))
	fmt.Fprintf(b, "- %s, %d cores, %s memory, %s, %s, %s\n", m.CPU, m.Cores, m.Memory, m.Kernel,
		m.FileSystem, m.Go)
	fmt.Fprintf(b, "- appending 4 KiB and making it durable (fdatasync): p50 %s ms, p99 %s ms\n",
		number(m.SyncP50), number(m.SyncP99))
	fmt.Fprintf(b,
		"- %s; measured phases of %s; medians over the rounds; ratios are medians of the ratios to "+
			"etcd in the same round\n", run.Object, run.Duration)
	if run.Scale != 1 {
		fmt.Fprintf(b,
			"- **sizes are scaled by %g: this is no result, only a look at the bench**\n",
			run.Scale)
	}
	for _, command := range commands(all) {
		fmt.Fprintf(b, "- command: `%s`\n", command)
	}
	var names []string
	for _, t := range f.targets {
		names = append(names, t.Name())
	}
	fmt.Fprintf(b, "- targets: %s\n", strings.Join(names, ", "))
}

// whereabouts are flags that say where a machine has its programs and its data.
var whereabouts = regexp.MustCompile(
	`(^|[ "])--?(?:bin|dir|mysqld|out|profile|results|root|tidb)[ =][^ "]+`)

// commands are those of all runs, each once, as they are the same on every machine.
func commands(runs []runner.Run) (all []string) {
	for _, r := range runs {
		command := whereabouts.ReplaceAllString(r.Command, "$1")
		command = strings.NewReplacer("   ", " ", "  ", " ", ` "`, `"`).Replace(command)
		command = strings.ReplaceAll(command, `BENCH=" `, `BENCH="`)
		if !slices.Contains(all, command) {
			all = append(all, command)
		}
	}
	return all
}

// writeAims writes a row for each aim, which are those of the library.
func writeAims(b *strings.Builder, f figures) {
	fmt.Fprintln(b, "\n## Aims")
	met, all := f.score()
	fmt.Fprintf(b, "\nOf %d aims that this project set itself for the library, %d are met. Where "+
		"the aim is a ratio to etcd, it stands in parentheses.\n\n", all, met)
	header := []string{"work", "figure", "aim"}
	judged := slices.DeleteFunc(slices.Clone(f.targets), func(t target.Target) bool {
		return t.Name() != target.Baseline && t.Product != "rowkeeper"
	})
	for _, t := range judged {
		header = append(header, t.Name())
	}
	writeRow(b, header)
	writeRow(b, slices.Repeat([]string{"---"}, len(header)))
	for _, line := range workload.Lines() {
		for _, m := range line.Measures {
			if m.Aim == nil || len(f.values[line.Name]) == 0 {
				continue
			}
			row := []string{line.Work, m.Title, aimText(m)}
			for _, t := range judged {
				row = append(row, f.cell(line, m, t))
			}
			writeRow(b, row)
		}
	}
}

// score counts the aims that are met, and all that there are figures for.
func (f figures) score() (met, judged int) {
	for _, line := range workload.Lines() {
		for _, m := range line.Measures {
			for _, t := range f.targets {
				ok, has := f.verdict(line, m, t)
				if has {
					judged++
				}
				if has && ok {
					met++
				}
			}
		}
	}
	return met, judged
}

func aimText(m workload.Measure) string {
	sign := "≥"
	if m.Lower {
		sign = "≤"
	}
	text := func(bound float64) string {
		if bound == 0 {
			return "–"
		}
		if bound < 1e-6 {
			bound = 0
		}
		if m.Aim.Absolute {
			return sign + " " + quantity(bound, m.Unit)
		}
		return sign + " " + number(bound) + " × etcd"
	}
	fast, mysql := text(m.Aim.Fast), text(m.Aim.MySQL)
	if fast == mysql {
		return fast
	}
	return fast + "; MySQL family " + mysql
}

// cell is a target's figure, with its ratio to etcd, and a mark whether it is good enough.
func (f figures) cell(line workload.Line, m workload.Measure, t target.Target) string {
	value, ok := f.median(line.Name, t.Name(), m.Key)
	if !ok {
		return "–"
	}
	text := quantity(value, m.Unit)
	if ratio, ok := f.ratio(line.Name, t.Name(), m.Key); ok && t.Name() != target.Baseline &&
		(m.Aim == nil || !m.Aim.Absolute) {
		text += fmt.Sprintf(" (%s)", number(ratio))
	}
	if met, judged := f.verdict(line, m, t); judged && met {
		text += " ✓"
	} else if judged {
		text += " ✗"
	}
	return text
}

// writeSettings writes what the servers said about durability.
func writeSettings(b *strings.Builder, results []runner.Result, f figures) {
	fmt.Fprintln(b, "\n## Durability")
	fmt.Fprintln(b, "\nAs each server says it, asked in each run:")
	fmt.Fprintln(b)
	for _, t := range f.targets {
		var all []string
		for _, r := range results {
			if text := strings.Join(r.Settings, "; "); r.Target == t.Name() &&
				!slices.Contains(all, text) {
				all = append(all, text)
			}
		}
		fmt.Fprintf(b, "- %s: %s\n", t.Name(), strings.Join(all, " / "))
	}
}

// writeFigures writes a table for each line.
func writeFigures(b *strings.Builder, f figures) {
	fmt.Fprintln(b, "\n## All figures")
	for _, line := range workload.Lines() {
		if len(f.values[line.Name]) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n### %s\n\n`%s`\n\n", line.Work, line.Name)
		header := []string{"target", "rounds"}
		for _, m := range line.Measures {
			header = append(header, m.Title)
		}
		writeRow(b, header)
		writeRow(b, slices.Repeat([]string{"---"}, len(header)))
		for _, t := range f.targets {
			rounds := f.rounds(line.Name, t.Name())
			if rounds == 0 {
				continue
			}
			row := []string{t.Name(), fmt.Sprint(rounds)}
			for _, m := range line.Measures {
				row = append(row, f.cell(line, m, t))
			}
			writeRow(b, row)
		}
	}
}

func writeRow(b *strings.Builder, cells []string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}
