package history

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
)

// diffCommand is the command "diff".
type diffCommand struct {
	client
	from, to string
}

func newDiffCommand() *cobra.Command {
	d := &diffCommand{}
	cmd := &cobra.Command{
		Use:   "diff [RESOURCE[/NAME]] --from MOMENT [--to MOMENT]",
		Short: "Compare objects at two moments",
		Long: "Diff shows what has changed between two moments: in an object, in all objects of a " +
			"resource, or without arguments in all objects of the namespace, or of all namespaces and " +
			"those that are in none. It asks for the changes in between, so it takes long only if there " +
			"were many. A moment is a revision, a time, or such as \"10 minutes ago\". A revision counts " +
			"the writes of one store: do not give one for resources that are in several.\n\nResources " +
			"without a history, or whose history the user may not see, are named and left out.",
		Example: "  rowkeeper diff pipeline/hello --from 1h\n" +
			"  rowkeeper diff --namespace team-a --from 2026-12-01T09:00:00Z --to 2026-12-01T10:00:00Z\n" +
			"  rowkeeper diff --all-namespaces --from 10m",
		Args: someArgs(0, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	d.addFlags(cmd, true)
	f := cmd.Flags()
	f.StringVar(&d.from, "from", "", "The moment from which on changes are shown.")
	f.StringVar(&d.to, "to", "now", "The moment up to which changes are shown.")
	return cmd
}

func (d *diffCommand) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	if d.from == "" {
		return usage("--from has to name a moment")
	}
	from, err := moment(d.from)
	if err != nil {
		return err
	}
	to, err := moment(d.to)
	if err != nil {
		return err
	}
	if err := d.connect(); err != nil {
		return err
	}
	if len(args) == 0 {
		return d.everything(ctx, out, errOut, from, to)
	}
	t, err := d.resolve(args)
	if err != nil {
		return err
	}
	if t.name == "" {
		return d.resource(ctx, out, errOut, t, from, to)
	}
	if from, err = d.revisionAt(ctx, t, from); err == nil {
		to, err = d.revisionAt(ctx, t, to)
	}
	if apierrors.IsForbidden(err) { // whoever may see one object need not see what else there was
		err = nil
	}
	if err != nil {
		return err
	}
	return d.object(ctx, out, t, from, to)
}

func (d *diffCommand) everything(ctx context.Context, out, errOut io.Writer, from, to string) error {
	resources, err := d.resources()
	if err != nil {
		return err
	}
	for _, t := range resources {
		err := d.resource(ctx, out, errOut, t, from, to)
		if err != nil && unavailable(err) {
			fmt.Fprintf(errOut, "%s is left out: %v\n", t, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// resource compares the objects that have changed in between.
func (d *diffCommand) resource(ctx context.Context, out, errOut io.Writer, t *target, from,
	to string) error {
	all, err := d.changes(ctx, t, map[string]string{"since": from, "until": to}, 0)
	if err != nil {
		return err
	}
	if all.Metadata.Since == "" {
		return fmt.Errorf("the server's log of %s is whole from revision %s on only, which is after %s: "+
			"changes may be missing", t, all.Oldest, d.from)
	}
	if all.Metadata.Omitted {
		fmt.Fprintf(errOut, "Objects of %s that do not exist any more are left out: to see them you "+
			"need get on %[1]s/earlierhistory.\n", t.gvr.GroupResource())
	}
	var names [][2]string
	for i := range all.Items {
		names = append(names, [2]string{all.Items[i].Namespace, all.Items[i].Name})
	}
	slices.SortFunc(names, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, n := range slices.Compact(names) {
		err := d.object(ctx, out, t.of(n[0], n[1]), all.Metadata.Since, all.Metadata.Until)
		if apierrors.IsForbidden(err) {
			fmt.Fprintf(errOut, "%s is left out: %v\n", t.of(n[0], n[1]), err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// object compares an object at two moments.
func (d *diffCommand) object(ctx context.Context, out io.Writer, t *target, from, to string) error {
	before, err := d.at(ctx, t, from)
	if err != nil {
		return err
	}
	after, err := d.at(ctx, t, to)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(t.namespace+"/", "/") + t.String()
	describe := func(c *v1alpha1.Change) (string, map[string]any) {
		if c == nil {
			return name + " (none)", nil
		}
		return fmt.Sprintf("%s at revision %s", name, c.Revision), c.Object
	}
	for _, c := range []*v1alpha1.Change{before, after} {
		if c != nil && c.Object == nil {
			_, err := fmt.Fprintf(out, "%s at revision %s cannot be shown: %s\n", name, c.Revision, c.Error)
			return err
		}
	}
	a, old := describe(before)
	b, now := describe(after)
	_, err = writeDiff(out, a, b, old, now)
	return err
}
