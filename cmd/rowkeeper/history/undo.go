package history

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// fieldManager is who owns the fields that undo writes.
const fieldManager = "rowkeeper-undo"

// undoCommand is the command "undo".
type undoCommand struct {
	client
	revision int64
	yes      bool
	in       io.Reader
}

func newUndoCommand() *cobra.Command {
	u := &undoCommand{}
	cmd := &cobra.Command{
		Use:   "undo RESOURCE/NAME --to-revision REVISION",
		Short: "Put an object back to what it was",
		Long: "Undo writes an object as it was at a revision: its labels, its annotations, and all but " +
			"its other metadata and its status. These stay as they are, and with them the " +
			"finalizers and the owners. It first has the server try the write without doing it, " +
			"and shows what would change. The write is one like any other: the server validates " +
			"it, admits it, and refuses it if somebody has written the object since. An object " +
			"that does not exist is created anew, without finalizers and owners, and has a new " +
			"UID. While another object has the name, the state of an earlier one is not " +
			"written.\n\nA state whose stored version is no longer served cannot be written.",
		Example: "  rowkeeper undo pipeline/hello --to-revision 1234",
		Args:    someArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			u.in = cmd.InOrStdin()
			return u.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	u.addFlags(cmd, false)
	f := cmd.Flags()
	f.Int64Var(&u.revision, "to-revision", 0, "The revision, as \"rowkeeper history\" tells it.")
	f.BoolVarP(&u.yes, "yes", "y", false, "Write without asking.")
	return cmd
}

func (u *undoCommand) run(ctx context.Context, out io.Writer, args []string) error {
	if u.revision <= 0 {
		return usage("name a revision of \"rowkeeper history\" by --to-revision")
	}
	if err := u.connect(); err != nil {
		return err
	}
	t, err := u.resolve(args)
	if err != nil {
		return err
	}
	if t.name == "" {
		return usage("an object has to be named, as RESOURCE/NAME")
	}
	state, err := u.at(ctx, t, strconv.FormatInt(u.revision, 10))
	switch {
	case err != nil:
		return err
	case state == nil:
		return fmt.Errorf("there was no %s at revision %d", t, u.revision)
	case state.AsStored || state.Object == nil:
		return fmt.Errorf("%s at revision %s cannot be written: its stored version is served no more: %s",
			t, state.Revision, state.Error)
	}
	old := &unstructured.Unstructured{Object: state.Object}
	objects := u.dynamic.Resource(t.gvr).Namespace(t.namespace)
	current, err := objects.Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return u.create(ctx, out, t, objects, old)
	}
	if err != nil {
		return err
	}
	if current.GetUID() != old.GetUID() {
		return fmt.Errorf("%s at revision %s was another object of this name, with the UID %s: it can be "+
			"created anew when the one that exists is deleted", t, state.Revision, old.GetUID())
	}
	write := func(dryRun ...string) (*unstructured.Unstructured, error) {
		return objects.Update(ctx, undone(current, old), metav1.UpdateOptions{DryRun: dryRun,
			FieldManager: fieldManager})
	}
	tried, err := write(metav1.DryRunAll)
	if err != nil {
		return fmt.Errorf("the server would refuse it: %w", err)
	}
	different, err := writeDiff(out, fmt.Sprintf("%s now, at revision %s", t,
		current.GetResourceVersion()), fmt.Sprintf("%s as at revision %s", t, state.Revision),
		current.Object, tried.Object)
	if err != nil {
		return err
	}
	if !different {
		fmt.Fprintf(out, "%s is as it was at revision %s\n", t, state.Revision)
		return nil
	}
	if err := u.agree(out); err != nil {
		return err
	}
	written, err := write()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is as it was at revision %s, and at revision %s now\n", t, state.Revision,
		written.GetResourceVersion())
	return nil
}

// undone is the object that exists with what it had before.
func undone(current, old *unstructured.Unstructured) *unstructured.Unstructured {
	n := current.DeepCopy()
	kept := map[string]bool{"apiVersion": true, "kind": true, "metadata": true, "status": true}
	for field := range n.Object {
		if !kept[field] {
			delete(n.Object, field)
		}
	}
	for field, value := range old.DeepCopy().Object {
		if !kept[field] {
			n.Object[field] = value
		}
	}
	n.SetLabels(old.GetLabels())
	n.SetAnnotations(old.GetAnnotations())
	return n
}

// create makes an object that does not exist any more.
func (u *undoCommand) create(ctx context.Context, out io.Writer, t *target,
	objects dynamic.ResourceInterface, old *unstructured.Unstructured) error {
	n := &unstructured.Unstructured{Object: map[string]any{}}
	n.SetGroupVersionKind(old.GroupVersionKind())
	n.SetName(old.GetName())
	n.SetNamespace(old.GetNamespace())
	n = undone(n, old)
	write := func(dryRun ...string) (*unstructured.Unstructured, error) {
		return objects.Create(ctx, n, metav1.CreateOptions{DryRun: dryRun, FieldManager: fieldManager})
	}
	tried, err := write(metav1.DryRunAll)
	if err != nil {
		return fmt.Errorf("the server would refuse it: %w", err)
	}
	if _, err := writeDiff(out, t.String()+" (none)", t.String(), nil, tried.Object); err != nil {
		return err
	}
	if err := u.agree(out); err != nil {
		return err
	}
	written, err := write()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s was created anew at revision %s, with the UID %s\n", t,
		written.GetResourceVersion(), written.GetUID())
	return nil
}

// agree asks the person at the terminal.
func (u *undoCommand) agree(out io.Writer) error {
	if u.yes {
		return nil
	}
	if f, ok := u.in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return fmt.Errorf("nothing was written: give --yes to write it")
	}
	fmt.Fprint(out, "Write this? [y/N] ")
	answer, _ := bufio.NewReader(u.in).ReadString('\n') // an end without an answer is a no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fmt.Errorf("nothing was written")
}
