package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
)

// migrateObjects rewrites stored objects.
type migrateObjects struct {
	kubeconfig string
	// groups are those whose objects are rewritten; none means all.
	groups []string
	chunk  int64
}

func newMigrateObjectsCommand() *cobra.Command {
	o := &migrateObjects{
		kubeconfig: filepath.Join(".rowkeeper", "kubeconfig"),
		chunk:      500,
	}
	cmd := &cobra.Command{
		Use:   "objects",
		Short: "Let a server rewrite all objects as it stores them now",
		Long: "Objects reads every object from a running server and writes it back as it is. What was stored in an older version, in another media type, or encrypted " +
			"otherwise than the server now stores it, is stored anew, with a new resourceVersion; what is stored as it should be is not touched. Clients can go on " +
			"meanwhile. Afterwards, versions and encryption keys can be removed from the server that were needed before. Where --kubeconfig leads to a cluster's API server, --groups names the " +
			"groups that this server has there.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("groups") && len(o.groups) == 0 || o.chunk <= 0 {
				return usageError{errors.New("--groups must name at least one API group, and --chunk-size be greater than 0")}
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
			if err != nil {
				return fmt.Errorf("cannot use --kubeconfig: %w", err)
			}
			config.QPS = -1 // the server has its own limits
			return o.run(cmd.Context(), config, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File that says where the server is, and as whom to use it.")
	cmd.Flags().StringSliceVar(&o.groups, "groups", o.groups, "The API groups whose objects are rewritten, such as ci.rowkeeper.dev; core is the group without a name. Default: all groups of the server.")
	cmd.Flags().Int64Var(&o.chunk, "chunk-size", o.chunk, "How many objects are listed at a time.")
	return cmd
}

// readyWithin is how long a server may take to be ready.
const readyWithin = 30 * time.Second

func (o *migrateObjects) run(ctx context.Context, config *rest.Config, out io.Writer) error {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, discover, readyWithin); err != nil {
		return err
	}
	resources, err := o.resources(discover)
	if err != nil {
		return err
	}
	for _, resource := range resources {
		looked, rewritten, err := o.rewriteAll(ctx, client.Resource(resource))
		if err != nil {
			return fmt.Errorf("cannot rewrite all %s: %w", resource.GroupResource(), err)
		}
		fmt.Fprintf(out, "%s: %d of %d objects rewritten\n", resource.GroupResource(), rewritten, looked)
	}
	return nil
}

// coreGroup stands for the group without a name, as it does elsewhere in Kubernetes.
const coreGroup = "core"

// resources returns what the server has in the groups that can be listed and patched, each in the version that it prefers.
func (o *migrateObjects) resources(discover discovery.DiscoveryInterface) ([]schema.GroupVersionResource, error) {
	lists, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("cannot find out what the server has: %w", err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "patch"}}, lists)
	var resources []schema.GroupVersionResource
	found := map[string]bool{}
	for _, list := range lists {
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
			resources = append(resources, version.WithResource(r.Name))
		}
	}
	for _, group := range o.groups {
		if !found[group] {
			return nil, fmt.Errorf("the server has no resources of the API group %q that could be rewritten", group)
		}
	}
	slices.SortFunc(resources, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return resources, nil
}

// rewriteAll rewrites the objects of a resource, and returns how many there were, and how many of them had been stored otherwise.
func (o *migrateObjects) rewriteAll(ctx context.Context, client metadata.Getter) (looked, rewritten int, err error) {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.List(ctx, options)
	})
	list.PageSize = o.chunk
	err = list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		looked++
		changed, err := rewrite(ctx, client, accessor)
		if changed {
			rewritten++
		}
		return err
	})
	return looked, rewritten, err
}

// rewrite makes the server write an object as it is: a patch that changes nothing is not written unless what is stored differs from what would be.
func rewrite(ctx context.Context, client metadata.Getter, obj metav1.Object) (changed bool, err error) {
	err = retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err)
	}, func() error {
		var resource metadata.ResourceInterface = client
		if obj.GetNamespace() != "" {
			resource = client.Namespace(obj.GetNamespace())
		}
		after, err := resource.Patch(ctx, obj.GetName(), types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil // it was deleted meanwhile
		}
		if err != nil {
			return err
		}
		changed = after.ResourceVersion != obj.GetResourceVersion()
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("%s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	return changed, nil
}
