package history

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// getCommand is the command "get".
type getCommand struct {
	client
	moment, output string
}

func newGetCommand() *cobra.Command {
	g := &getCommand{}
	cmd := &cobra.Command{
		Use:   "get RESOURCE[/NAME] --at MOMENT",
		Short: "Show an object, or all objects of a resource, as they were",
		Long: "Get shows what was in force at a moment: a revision, a time, or such as \"10 minutes " +
			"ago\". An object is shown as YAML, and all objects as kubectl lists them. The lists are those " +
			"that the server serves at an old resourceVersion, so they need list on the resource. For the " +
			"rest, see \"rowkeeper history --help\".",
		Example: "  rowkeeper get pipeline/hello --at 10m\n" +
			"  rowkeeper get pipelines --at 1234 --all-namespaces",
		Args: someArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	g.addFlags(cmd, true)
	f := cmd.Flags()
	f.StringVar(&g.moment, "at", "now", "The moment.")
	f.StringVarP(&g.output, "output", "o", "", "yaml or json.")
	return cmd
}

func (g *getCommand) run(ctx context.Context, out io.Writer, args []string) error {
	if err := checkFormat(g.output, "yaml", "json"); err != nil {
		return err
	}
	at, err := moment(g.moment)
	if err != nil {
		return err
	}
	if err := g.connect(); err != nil {
		return err
	}
	t, err := g.resolve(args)
	if err != nil {
		return err
	}
	if t.name == "" {
		return g.list(ctx, out, t, at)
	}
	state, err := g.at(ctx, t, at)
	switch {
	case err != nil:
		return err
	case state == nil:
		return fmt.Errorf("there was no %s at %s", t, g.moment)
	case state.Object == nil:
		return fmt.Errorf("%s at revision %s cannot be shown: %s", t, state.Revision, state.Error)
	case g.output == "json":
		return encode(out, "json", state.Object)
	}
	return encode(out, "yaml", state.Object)
}

func (g *getCommand) list(ctx context.Context, out io.Writer, t *target, at string) error {
	revision, err := g.revisionAt(ctx, t, at)
	if err != nil {
		return err
	}
	if g.output != "" {
		list, err := g.objects(ctx, t, revision)
		if err != nil {
			return err
		}
		return encode(out, g.output, list)
	}
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	var shown []int
	for token, first := "", true; first || token != ""; first = false {
		table, err := g.table(ctx, t, revision, token)
		if err != nil {
			return g.gone(err)
		}
		if token = table.Continue; first {
			var titles []string
			for i, c := range table.ColumnDefinitions {
				if c.Priority == 0 {
					shown, titles = append(shown, i), append(titles, strings.ToUpper(c.Name))
				}
			}
			g.row(w, t, "NAMESPACE", titles)
		}
		for _, r := range table.Rows {
			var cells []string
			for _, i := range shown {
				if i < len(r.Cells) {
					cells = append(cells, printable(fmt.Sprint(r.Cells[i])))
				}
			}
			g.row(w, t, namespaceOf(r.Object.Raw), cells)
		}
	}
	return w.Flush()
}

func (g *getCommand) row(w io.Writer, t *target, namespace string, cells []string) {
	if t.scoped && t.namespace == "" {
		cells = append([]string{namespace}, cells...)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func namespaceOf(raw []byte) string {
	object := &unstructured.Unstructured{}
	if object.UnmarshalJSON(raw) != nil {
		return ""
	}
	return object.GetNamespace()
}

// objects lists all objects at a revision.
func (g *getCommand) objects(ctx context.Context, t *target, revision string) (
	*unstructured.UnstructuredList, error) {
	options := metav1.ListOptions{ResourceVersion: revision,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 500}
	var all *unstructured.UnstructuredList
	for {
		list, err := g.dynamic.Resource(t.gvr).Namespace(t.namespace).List(ctx, options)
		if err != nil {
			return nil, g.gone(err)
		}
		if all == nil {
			all = list
		} else {
			all.Items = append(all.Items, list.Items...)
		}
		if list.GetContinue() == "" {
			all.SetContinue("")
			all.SetRemainingItemCount(nil)
			return all, nil
		}
		options = metav1.ListOptions{Limit: 500, Continue: list.GetContinue()}
	}
}

func (g *getCommand) gone(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return fmt.Errorf("the server does not know any more what there was at %s: it has compacted its "+
			"log since", g.moment)
	}
	return err
}
