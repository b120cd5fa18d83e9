package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

const unknown = "unknown"

// Print writes the status for people, on one screen.
func (s *Status) Print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(out, name+"\t"+format+"\n", args...) }
	line("database", "%s, %s %s", s.Where, s.Kind, s.Version)
	line("time", "%s, by this machine's clock", s.Time.Format(time.RFC3339))
	line("schema", "version %d; this program knows %d", s.Schema, s.Newest)
	if s.Standby {
		line("", "the server is a standby: what follows may be late")
	}
	line("store", "%s, epoch %d, fences: %d", s.Store, s.Epoch, s.Epoch-1)
	line("head", "%d, written %s ago", s.Head, s.Time.Sub(s.Written).Round(time.Second).Abs())
	line("compacted", "%d; revisions that can be watched from: %d", s.Compacted, s.Head-s.Compacted)
	line("swept", "%d; revisions that are left to sweep: %d", s.Swept, s.SweepDebt)
	line("size", "%s, %s of it in use; on the disk are left: %s", size(s.Total), size(s.Live),
		size(s.Free))
	line("objects", "%d of %s; bytes allowed: %s", s.Objects, bound(s.MaxObjects, fmt.Sprint(s.MaxObjects)),
		bound(s.MaxBytes, Bytes(s.MaxBytes)))
	for _, r := range s.Resources {
		line("", "%d in %s", r.Objects, r.Directory)
	}
	if s.Others > 0 {
		line("", "and %d other directories", s.Others)
	}
	switch {
	case s.Servers == nil:
		line("servers", "%s to the database", unknown)
	case len(s.Servers) == 0:
		line("servers", "none")
	}
	for i, c := range s.Servers {
		processes := ""
		if c.Processes > 0 {
			processes = fmt.Sprintf(", processes that listen: %d", c.Processes)
		}
		line(first(i, "servers"), "%s from %s, connections: %d%s", c.User, c.Address, c.Connections,
			processes)
	}
	switch {
	case s.Replicas == nil:
		line("replication", "%s to the database", unknown)
	case len(s.Replicas) == 0:
		line("replication", "none")
	}
	for i, r := range s.Replicas {
		line(first(i, "replication"), "%s, %s, %s behind", r.Name, strings.Trim(r.State+" "+r.Sync, " "),
			Bytes(r.Behind))
	}
	if b := s.LastBackup; b != nil {
		line("last backup", "%s, %s ago, at revision %d", b.File, s.Time.Sub(b.Time).Round(time.Second),
			b.Revision)
	} else {
		line("last backup", "%s: name its file by --backup", unknown)
	}
	if len(s.Certificates) == 0 {
		line("certificates", "%s: name their files by --certificate", unknown)
	}
	for i, c := range s.Certificates {
		left := c.NotAfter.Sub(s.Time)
		state := fmt.Sprintf("ends in %d days", int(left.Hours()/24))
		if left < 0 {
			state = "HAS ENDED"
		}
		line(first(i, "certificates"), "%s (%s) %s, at %s", c.File, c.Subject, state,
			c.NotAfter.UTC().Format(time.RFC3339))
	}
	for i, u := range s.Unseen {
		line(first(i, "not seen"), "%s: %s", u.What, u.Why)
	}
	return out.Flush()
}

// first is the name of the first line of several.
func first(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

func size(n *int64) string {
	if n == nil {
		return unknown
	}
	return Bytes(*n)
}

func bound(n int64, text string) string {
	if n == 0 {
		return "any"
	}
	return text
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s, %s %s, store %s\nchecked: %s\n", r.Where, r.Kind, r.Version, r.Store,
		strings.Join(r.Checked, ", "))
	for _, statement := range r.Repaired {
		fmt.Fprintf(&out, "repaired: %s\n", statement)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&out, "\n%s %s: %s\n", strings.ToUpper(f.Severity.String()), f.Name, f.Says)
		if f.Who != "" {
			fmt.Fprintf(&out, "  who:   %s\n", f.Who)
		}
		fmt.Fprintf(&out, "  means: %s\n  mend:  %s\n", f.Means, f.Mend)
	}
	if len(r.Findings) == 0 {
		out.WriteString("\nnothing was found\n")
	}
	out.WriteString("\nwhat a crash can lose\n")
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, risk := range r.Durability {
		loses := risk.Loses
		if risk.When != "" {
			loses += ": " + risk.When
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\n", risk.Setting, valueOf(risk.Value), loses)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Unseen) > 0 {
		out.WriteString("\nnot seen\n")
	}
	for _, u := range r.Unseen {
		fmt.Fprintf(&out, "  %s: %s\n", u.What, u.Why)
	}
	_, err := io.WriteString(w, out.String())
	return err
}
