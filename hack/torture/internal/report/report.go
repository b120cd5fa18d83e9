// Package report keeps the table of results.
package report

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Row is a line of the table.
type Row struct {
	Scenario, Database                                           string
	Operations, Events, Lists, Faults, Violations, Unknown, Lost int
	Recovery                                                     time.Duration
	Notes                                                        []string
	Command                                                      string
}

// columns are the table's head. A row is known by the first two.
const (
	columns = "| scenario | database | operations | events checked | lists checked | faults | " +
		"violations | recovered within | unknown outcomes | repeat with |"
	alignment = "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)

const head = `# What the torture test has found

Each row is one run: what it does is told by ` + "`make torture TORTURE=-list`" + `, how it is judged by the documentation of package
[check](internal/check/check.go). Operations are requests that were answered; events are those of watches, bookmarks included; "recovered within" is the longest time from the
end of a fault until every server was ready and took a write. Outcomes are unknown where a server or its database was taken away from under a request; each was
found in the log, or found to be absent, afterwards.

`

func (r Row) line() string {
	recovery := "-"
	if r.Faults > 0 {
		recovery = fmt.Sprintf("%.1f s", r.Recovery.Seconds())
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %d | %s | %d | `%s` |", r.Scenario,
		r.Database, r.Operations, r.Events, r.Lists, r.Faults, r.Violations, recovery,
		r.Unknown, r.Command)
}

func (r Row) note() string {
	if r.Lost > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d acknowledged writes were in the lost part of "+
			"the history, which is what the scenario loses", r.Lost))
	}
	if len(r.Notes) == 0 {
		return ""
	}
	return fmt.Sprintf("- %s, %s: %s.", r.Scenario, r.Database, strings.Join(r.Notes, "; "))
}

// Add puts a row into the file, in the place of an older one of the same scenario and database. The
// text that people have written before the table stays.
func Add(path string, row Row) error {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	before, table, found := strings.Cut(string(content), columns+"\n")
	if !found {
		before, table = head, ""
	}
	var lines, notes []string
	kind, _, _ := strings.Cut(row.Database, " ")
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		same := strings.HasPrefix(line, fmt.Sprintf("| %s | %s ", row.Scenario, kind)) ||
			strings.HasPrefix(line, fmt.Sprintf("- %s, %s", row.Scenario, kind))
		switch {
		case same || line == alignment:
		case strings.HasPrefix(line, "| "):
			lines = append(lines, line)
		case strings.HasPrefix(line, "- "):
			notes = append(notes, line)
		}
	}
	lines = append(lines, row.line())
	if note := row.note(); note != "" {
		notes = append(notes, note)
	}
	slices.Sort(lines)
	slices.Sort(notes)
	text := before + columns + "\n" + alignment + "\n" + strings.Join(lines, "\n") + "\n"
	if len(notes) > 0 {
		text += "\n" + strings.Join(notes, "\n") + "\n"
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
