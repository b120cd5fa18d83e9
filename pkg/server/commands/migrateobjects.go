package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	storageversion "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"

	"github.com/rowkeeper/rowkeeper/pkg/internal/readiness"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// migrateObjects rewrites stored objects.
type migrateObjects struct {
	kubeconfig string
	// groups are those whose objects are rewritten; none means all.
	groups []string
	chunk  int64
	// patience is how long discovery may lack what is defined.
	patience time.Duration
}

func newMigrateObjectsCommand(p server.Program) *cobra.Command {
	o := &migrateObjects{
		kubeconfig: filepath.Join("."+p.Name, "kubeconfig"),
		chunk:      500,
		patience:   10 * time.Second,
	}
	cmd := &cobra.Command{
		Use:   "objects",
		Short: "Let a server rewrite all objects as it stores them now",
		Long: "Objects makes a running server write every object back as it is. What was stored " +
			"in an older version, in another media type, or encrypted otherwise than the " +
			"server now stores it, is stored anew, with a new resourceVersion; what is stored " +
			"as it should be is not touched. Neither admission plugins nor webhooks nor " +
			"policies see these writes, because they change nothing. Clients can go on " +
			"meanwhile.\n\n" +
			"An object that the server refuses to write is named, and the others are written. " +
			"The command then exits with 1. If it exits with 0, versions and encryption keys " +
			"can be removed from the server that were needed before.\n\n" +
			"The command changes nothing if the server cannot write objects as they are: it " +
			"is no Rowkeeper server then, or an older one, or it does not serve the version in " +
			"which it stores the objects of a definition. Where --kubeconfig leads to a " +
			"cluster's API server, --groups names the groups that this server has there.",
		Example: "  " + p.Name + " migrate objects --kubeconfig ." + p.Name + "/kubeconfig",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("groups") && len(o.groups) == 0 || o.chunk <= 0 {
				return server.UsageError{Err: errors.New("--groups must name at least one API " +
					"group, and --chunk-size be greater than 0")}
			}
			if _, err := os.Stat(o.kubeconfig); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no kubeconfig %s: name the server's by --kubeconfig, or "+
					"run this in the directory in which the server was started", o.kubeconfig)
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
			if err != nil {
				return fmt.Errorf("cannot use --kubeconfig: %w", err)
			}
			config.QPS = -1 // the server has its own limits
			return o.run(cmd.Context(), config, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig,
		"File that says where the server is, and as whom to use it.")
	cmd.Flags().StringSliceVar(&o.groups, "groups", o.groups,
		"The API groups whose objects are rewritten, such as ci.example.com; core is the group "+
			"without a name. Default: all groups of the server.")
	cmd.Flags().Int64Var(&o.chunk, "chunk-size", o.chunk, "How many objects are listed at a time.")
	return cmd
}

// readyWithin is how long a server may take to be ready.
const readyWithin = 30 * time.Second

// run reports what was rewritten on out, and each object that was not, and why, on refused.
func (o *migrateObjects) run(ctx context.Context, config *rest.Config, out,
	refused io.Writer) error {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	// The aggregated discovery does not say in which versions resources are stored.
	discover.UseLegacyDiscovery = true
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := readiness.Await(ctx, discover, readyWithin); err != nil {
		return err
	}
	resources, err := o.resources(ctx, discover, client)
	if err != nil {
		return err
	}
	var total tally
	for _, resource := range resources {
		name := resource.GroupResource()
		n, err := o.rewriteAll(ctx, client.Resource(resource), func(obj metav1.Object, err error) {
			fmt.Fprintf(refused, "%s %s was not rewritten: %v\n", name, key(obj), err)
		})
		fmt.Fprintf(out, "%s: %d of %d objects rewritten", name, n.rewritten, n.looked)
		if n.refused > 0 {
			fmt.Fprintf(out, ", %d refused", n.refused)
		}
		fmt.Fprintln(out)
		total.refused += n.refused
		if apierrors.IsUnsupportedMediaType(err) {
			return fmt.Errorf("the server cannot write %s as they are, without admission: "+
				"update the server, or name the groups of a Rowkeeper server by --groups", name)
		}
		if err != nil {
			return fmt.Errorf("cannot rewrite all %s, nor what comes after: %w", name, err)
		}
	}
	if total.refused > 0 {
		return fmt.Errorf("%d objects were not rewritten, for the reasons above: keep the old "+
			"versions and encryption keys, mend or delete these objects, and run this again",
			total.refused)
	}
	return nil
}

// tally counts objects.
type tally struct{ looked, rewritten, refused int }

func key(obj metav1.Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}

// coreGroup stands for the group without a name, as it does elsewhere in Kubernetes.
const coreGroup = "core"

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// resources returns what [migrateObjects.discovered] does, when that has all that is defined: a
// server that has just got a definition tells of it a little later.
func (o *migrateObjects) resources(ctx context.Context, discover discovery.DiscoveryInterface,
	client metadata.Interface) (resources []schema.GroupVersionResource, err error) {
	var unsettled error
	// A request that is slow is no discovery that lacks something, so patience breaks none off.
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, o.patience, true,
		func(context.Context) (bool, error) {
			resources, err = o.discovered(ctx, discover, client)
			if changing := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &changing) {
				unsettled = err
				return false, nil
			}
			if err != nil {
				return false, err
			}
			unsettled, err = o.undiscovered(ctx, client, resources)
			return unsettled == nil, err
		})
	if wait.Interrupted(err) && ctx.Err() == nil && unsettled != nil {
		return nil, unsettled
	}
	return resources, err
}

// undiscovered returns what to tell of a definition whose resource is in the groups and not among
// the resources, nil if there is none.
func (o *migrateObjects) undiscovered(ctx context.Context, client metadata.Interface,
	resources []schema.GroupVersionResource) (missing, err error) {
	list, err := client.Resource(definitions).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && len(o.groups) > 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find out what is defined: %w", err)
	}
	for _, definition := range list.Items {
		name := schema.ParseGroupResource(definition.Name)
		if definition.DeletionTimestamp != nil ||
			len(o.groups) > 0 && !slices.Contains(o.groups, name.Group) {
			continue
		}
		if !slices.ContainsFunc(resources, func(r schema.GroupVersionResource) bool {
			return r.GroupResource() == name
		}) {
			return fmt.Errorf("the server has a definition of %s and does not serve them, so that "+
				"their objects cannot be rewritten: serve them, delete the definition, or name "+
				"other groups by --groups", definition.Name), nil
		}
	}
	return nil, nil
}

// discovered returns what the server has in the groups that can be listed and patched. Each
// resource is in the version in which the server stores it, since others may not have all of its
// fields.
func (o *migrateObjects) discovered(ctx context.Context, discover discovery.DiscoveryInterface,
	client metadata.Interface) ([]schema.GroupVersionResource, error) {
	_, lists, err := discover.ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("cannot find out what the server has: %w", err)
	}
	versions, inStored := map[schema.GroupResource]string{}, map[schema.GroupResource]bool{}
	found := map[string]bool{}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list",
		"patch"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		group := cmp.Or(version.Group, coreGroup)
		if len(o.groups) > 0 && !slices.Contains(o.groups, group) {
			continue
		}
		found[group] = true
		for _, r := range list.APIResources {
			name := version.WithResource(r.Name).GroupResource()
			stored := r.StorageVersionHash == storageversion.StorageVersionHash(version.Group,
				version.Version, r.Kind)
			if _, ok := versions[name]; !ok || stored {
				versions[name] = version.Version
			}
			if stored {
				inStored[name] = true
			}
		}
	}
	for _, group := range o.groups {
		if !found[group] {
			return nil, fmt.Errorf("the server has no resources of the API group %q that could "+
				"be rewritten", group)
		}
	}
	var resources []schema.GroupVersionResource
	for name, version := range versions {
		// A resource of Go types is written as it is in any version.
		if !inStored[name] {
			if err := refuseDefined(ctx, client, name); err != nil {
				return nil, err
			}
		}
		resources = append(resources, name.WithVersion(version))
	}
	slices.SortFunc(resources, func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	})
	return resources, nil
}

// refuseDefined refuses a resource, whose storage version is not served, if a definition defines
// it.
func refuseDefined(ctx context.Context, client metadata.Interface,
	name schema.GroupResource) error {
	if name.Group == "" {
		return nil
	}
	_, err := client.Resource(definitions).Get(ctx, name.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot find out in which version %s are stored: %w", name, err)
	}
	return fmt.Errorf("the server does not serve %s in the version in which it stores them, and "+
		"other versions may not have all of their fields: serve that version, or name other groups "+
		"by --groups", name)
}

// rewriteAll rewrites the objects of a resource. It goes on after the server has refused one. The
// error says why it could not go on.
func (o *migrateObjects) rewriteAll(ctx context.Context, client metadata.Getter,
	refused func(metav1.Object, error),
) (n tally, err error) {
	list := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		return client.List(ctx, page)
	})
	list.PageSize = o.chunk
	err = list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		n.looked++
		changed, err := rewrite(ctx, client, accessor)
		var answer apierrors.APIStatus
		switch {
		case apierrors.IsUnsupportedMediaType(err), err != nil && !errors.As(err, &answer):
			return err
		case err != nil:
			n.refused++
			refused(accessor, err)
		case changed:
			n.rewritten++
		}
		return nil
	})
	return n, err
}

// rewrite makes the server write an object as it is, unless what is stored is what would be.
func rewrite(ctx context.Context, client metadata.Getter,
	obj metav1.Object) (changed bool, err error) {
	err = retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsServerTimeout(err)
	}, func() error {
		var resource metadata.ResourceInterface = client
		if obj.GetNamespace() != "" {
			resource = client.Namespace(obj.GetNamespace())
		}
		after, err := resource.Patch(ctx, obj.GetName(), options.RewritePatchType, nil,
			metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil // it was deleted meanwhile
		}
		if err != nil {
			return err
		}
		changed = after.ResourceVersion != obj.GetResourceVersion()
		return nil
	})
	return changed, err
}
