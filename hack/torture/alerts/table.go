package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const head = `# Which fault fires which alerts

A real Prometheus reads two servers, which a few clients use, with
[the alerts that are shipped](../../deploy/components/prometheus/rules.yaml). One fault after the
other is made, and mended. After each, all servers take writes again and no alert fires, before the
next one begins. An alert belongs to the fault from whose beginning to whose end it fired.

**Time runs sixty times as fast.** The times of the alerts, the interval in which Prometheus asks,
and that in which servers compact are divided by 60, so that a minute is a second here. Thresholds
are as they are, such as a second for a commit. Servers give the database four seconds for an
operation, in place of 30. What else takes seconds in truth takes minutes here: PostgreSQL's
notifications come back up to 15 s after it, and so NotificationsLost fires at the end of an outage.

    make alerts ALERTS='-results ALERTS.md'
    make alerts ALERTS='-databases postgres -faults network-cut,network-slow'

MariaDB and MySQL can be named, too. No table of them has been recorded.

A test compares this table with [the faults](alerts/faults.go), which say which alerts have to fire,
and with the alerts: none is without a fault. The names lack the word Rowkeeper. A dash: that
database cannot have the fault. Where nothing fires, nobody has to do anything: clients try again.
The full disk is that of a PostgreSQL of this machine, of another version than the others.

`

// kinds are the columns.
var kinds = []programs.Kind{programs.SQLite, programs.Postgres}

// rowOf is how the row of a fault begins.
func rowOf(f fault) string {
	return fmt.Sprintf("| %s: %s | %d |", f.name, f.about, f.minutes)
}

// table is what is written in a file.
type table struct {
	// versions are those of the databases, and fired the cells, by the fault and the database.
	versions map[programs.Kind]string
	fired    map[string]map[programs.Kind]string
}

// read reads a table. It is empty if there is no file.
func read(path string) (table, error) {
	t := table{map[programs.Kind]string{}, map[string]map[programs.Kind]string{}}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	for line := range strings.Lines(string(content)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2+len(kinds) {
			continue
		}
		for i, k := range kinds {
			cell := strings.TrimSpace(cells[2+i])
			name, _, _ := strings.Cut(strings.TrimSpace(cells[0]), ":")
			switch {
			case name == "fault":
				t.versions[k] = cell
			case cell != "" && !strings.HasPrefix(cell, "-"):
				if t.fired[name] == nil {
					t.fired[name] = map[programs.Kind]string{}
				}
				t.fired[name][k] = cell
			}
		}
	}
	return t, err
}

// nothing is the cell of a fault that fires nothing.
const nothing = "nothing"

// record puts an outcome into a file.
func record(path string, o outcome) error {
	t, err := read(path)
	if err != nil {
		return err
	}
	if !o.fault.small { // the others are most of them
		t.versions[o.kind] = o.version
	}
	if t.fired[o.fault.name] == nil {
		t.fired[o.fault.name] = map[programs.Kind]string{}
	}
	if t.fired[o.fault.name][o.kind] = short(o.fired); len(o.fired) == 0 {
		t.fired[o.fault.name][o.kind] = nothing
	}
	return os.WriteFile(path, []byte(head+t.text()), 0o644)
}

func (t table) text() string {
	var b strings.Builder
	b.WriteString("| fault | minutes |")
	for _, k := range kinds {
		version := t.versions[k]
		if version == "" {
			version = string(k)
		}
		fmt.Fprintf(&b, " %s |", version)
	}
	b.WriteString("\n| --- | ---: |" + strings.Repeat(" --- |", len(kinds)) + "\n")
	for _, f := range faults() {
		if !slices.ContainsFunc(kinds, func(k programs.Kind) bool {
			_, can := f.fires[k]
			return can
		}) {
			continue
		}
		b.WriteString(rowOf(f))
		for _, k := range kinds {
			cell := t.fired[f.name][k]
			if _, can := f.fires[k]; !can {
				cell = "-"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// has tells whether a cell names an alert.
func has(cell, alert string) bool {
	return slices.Contains(strings.Split(cell, ", "), alert)
}
