package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The head of the table of results. A row is known by the first two columns.
const tableHead = `| database | fault | runs | operations | without an answer | watches | events | told progress | compactions | seconds | seconds of the judge | refused |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`

// addResult adds a run to the row of its database and its fault. The text that people have written
// before the table stays.
func addResult(path, version, faultName string, v *verdict) error {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	before, after, found := strings.Cut(string(content), tableHead)
	if !found && strings.TrimSpace(before) != "" {
		before = strings.TrimRight(before, "\n") + "\n\n"
	}
	refused := 0
	if v.err != nil {
		refused = 1
	}
	sums := []int{1, v.operations, v.failed, v.watches, v.events, v.progress, v.compactions,
		int(v.took.Seconds() + 0.5), int(v.judged.Seconds() + 0.5), refused}
	name := "| " + version + " | " + faultName + " |"
	var lines []string
	for line := range strings.Lines(after) {
		cells, same := strings.CutPrefix(line, name)
		if !same {
			lines = append(lines, line)
			continue
		}
		numbers := strings.Split(strings.Trim(cells, "| \n"), " | ")
		if len(numbers) != len(sums) {
			return fmt.Errorf("%s: the row %q has another form", path, line)
		}
		for i, n := range numbers {
			old, err := strconv.Atoi(n)
			if err != nil {
				return fmt.Errorf("%s: the row %q: %w", path, line, err)
			}
			sums[i] += old
		}
	}
	var row strings.Builder
	row.WriteString(name)
	for _, n := range sums {
		fmt.Fprintf(&row, " %d |", n)
	}
	lines = append(lines, row.String()+"\n")
	slices.Sort(lines)
	return os.WriteFile(path, []byte(before+tableHead+strings.Join(lines, "")), 0o600)
}
