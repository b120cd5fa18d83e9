package history

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// historyCommand is the command "history".
type historyCommand struct {
	client
	limit                int
	since, until, output string
	patch                bool
}

func newHistoryCommand() *cobra.Command {
	h := &historyCommand{}
	cmd := &cobra.Command{
		Use:   "history RESOURCE[/NAME]",
		Short: "Tell who changed what in an object, or in all objects of a resource",
		Long: "History lists the changes of an object that the server's database still has, the newest " +
			"first: the revision, the time, what was done, by which user, if the server records users " +
			"(--history-users), by which field manager, and which fields have changed. Without a name, it lists the changes of all objects of the resource in the " +
			"namespace.\n\nThe server has to run with --enable-history. " +
			"The user needs get on RESOURCE/history, and get or list on RESOURCE. Objects that had the name " +
			"before need get on RESOURCE/earlierhistory.",
		Example: "  rowkeeper history pipeline/hello\n" +
			"  rowkeeper history pipeline/hello --patch\n" +
			"  rowkeeper history pipelines --all-namespaces --since 10m",
		Args: someArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return h.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	h.addFlags(cmd, true)
	f := cmd.Flags()
	f.IntVar(&h.limit, "limit", 20, "How many changes are listed, the newest ones. 0 means all.")
	f.StringVar(&h.since, "since", "", "List the changes of a resource after this moment: a revision, a "+
		"time, or such as \"10 minutes ago\".")
	f.StringVar(&h.until, "until", "", "List the changes of a resource up to this moment.")
	f.BoolVarP(&h.patch, "patch", "p", false, "Show how each change has changed the object.")
	f.StringVarP(&h.output, "output", "o", "", "yaml or json: with the objects.")
	return cmd
}

func (h *historyCommand) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	if err := checkFormat(h.output, "yaml", "json"); err != nil {
		return err
	}
	if err := h.connect(); err != nil {
		return err
	}
	t, err := h.resolve(args)
	if err != nil {
		return err
	}
	parameters := map[string]string{}
	if t.name != "" && (h.since != "" || h.until != "") {
		return usage("--since and --until are for all objects of a resource: leave the name out")
	}
	for name, text := range map[string]string{"since": h.since, "until": h.until} {
		if text == "" {
			continue
		}
		if parameters[name], err = moment(text); err != nil {
			return err
		}
	}
	if t.name == "" && (h.output != "" || h.patch) {
		parameters["objects"] = "true"
	}
	all, err := h.changes(ctx, t, parameters, h.limit)
	if err != nil {
		return err
	}
	shown := all.Items
	if h.limit > 0 && len(shown) > h.limit {
		shown = shown[:h.limit]
	}
	switch {
	case h.output != "":
		all.Items = shown
		return encode(out, h.output, all)
	case h.patch:
		err = h.patches(ctx, out, t, shown, all.Items)
	default:
		err = h.table(out, t, shown)
	}
	if err != nil {
		return err
	}
	h.notes(errOut, t, all, len(shown))
	return nil
}

// notes says what the list does not have.
func (h *historyCommand) notes(w io.Writer, t *target, all *v1alpha1.ObjectHistory, shown int) {
	switch {
	case shown == 0 && !all.Metadata.Omitted:
		fmt.Fprintf(w, "The database has no changes of %s.\n", t)
	case shown < len(all.Items) || all.Metadata.Continue != "":
		fmt.Fprintf(w, "There may be older changes: give --limit, or --limit=0 for all.\n")
	case h.since != "" && all.Metadata.Since == "":
		fmt.Fprintf(w, "The log is whole from revision %s on only, which is after %s: changes may be "+
			"missing.\n", all.Oldest, h.since)
	}
	if all.Metadata.Omitted {
		fmt.Fprintf(w, "Changes of earlier objects of the same name are left out: to see them you need "+
			"get on %s/earlierhistory.\n", t.gvr.GroupResource())
	}
}

func (h *historyCommand) table(out io.Writer, t *target, changes []v1alpha1.Change) error {
	if len(changes) == 0 {
		return nil
	}
	users := slices.ContainsFunc(changes, func(c v1alpha1.Change) bool { return c.User != "" })
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	row := func(c *v1alpha1.Change, revision, time, verb, user, manager, changed string) {
		var all []string
		if t.name == "" {
			if t.scoped && t.namespace == "" {
				all = append(all, c.Namespace)
			}
			all = append(all, c.Name)
		}
		all = append(all, revision, time, verb)
		if users {
			all = append(all, user)
		}
		fmt.Fprintln(w, strings.Join(append(all, manager, changed), "\t"))
	}
	row(&v1alpha1.Change{Namespace: "NAMESPACE", Name: "NAME"}, "REVISION", "TIME", "VERB", "USER",
		"MANAGER", "CHANGED")
	for i := range changes {
		c := &changes[i]
		verb := string(c.Verb)
		if c.Earlier && t.name != "" {
			verb += " (earlier object)"
		}
		row(c, c.Revision, c.Time.Local().Format("2006-01-02 15:04:05"), verb,
			printable(dash(c.User)), printable(dash(c.Manager)), printable(summary(c)))
	}
	return w.Flush()
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// summary tells the first of the fields that a change has changed.
func summary(c *v1alpha1.Change) string {
	const most = 3
	switch {
	case c.Error != "":
		return c.Error
	case len(c.Changed) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(c.Changed[:most], ", "), len(c.Changed)-most)
	}
	return dash(strings.Join(c.Changed, ", "))
}

// patches shows changes one by one. The state before a change is that of the next older one of the
// same object, if the page has it, and is asked for otherwise.
func (h *historyCommand) patches(ctx context.Context, out io.Writer, t *target, shown,
	all []v1alpha1.Change) error {
	for i := range shown {
		c := &shown[i]
		fmt.Fprintf(out, "revision %s, %s: %s %s by %s", c.Revision,
			c.Time.Local().Format("2006-01-02 15:04:05.000 -0700"), c.Verb, t.of(c.Namespace, c.Name),
			printable(dash(c.Manager)))
		if c.User != "" {
			fmt.Fprintf(out, ", user %s, audit ID %s", printable(c.User), printable(dash(c.AuditID)))
		}
		fmt.Fprintln(out)
		after := c.Object
		before, known, err := h.before(ctx, t, c, all[i+1:])
		if err != nil {
			return err
		}
		if c.Verb == v1alpha1.Delete {
			before, known, after = c.Object, true, nil
		}
		if !known {
			fmt.Fprintf(out, "The state before is gone.\n\n")
			continue
		}
		if _, err := writeDiff(out, "before", "after", before, after); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return nil
}

func (h *historyCommand) before(ctx context.Context, t *target, c *v1alpha1.Change,
	older []v1alpha1.Change) (object map[string]any, known bool, err error) {
	if c.Verb == v1alpha1.Create {
		return nil, true, nil
	}
	for i := range older {
		if o := &older[i]; o.Name == c.Name && o.Namespace == c.Namespace {
			return o.Object, o.UID == c.UID && o.Object != nil, nil
		}
	}
	revision, err := strconv.ParseInt(c.Revision, 10, 64)
	if err != nil || revision < 2 {
		return nil, false, err
	}
	o, err := h.at(ctx, t.of(c.Namespace, c.Name), strconv.FormatInt(revision-1, 10))
	switch {
	case apierrors.IsResourceExpired(err) || err == nil && (o == nil || o.UID != c.UID):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	return o.Object, o.Object != nil, nil
}

// usage is an error in the way that the command was called.
func usage(format string, args ...any) error {
	return server.UsageError{Err: fmt.Errorf(format, args...)}
}

// someArgs checks how many arguments there are.
func someArgs(least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("a resource has to be named, as RESOURCE or RESOURCE/NAME")
		case len(args) > most:
			return usage("unexpected argument %q", args[most])
		}
		return nil
	}
}
