// Package history has the commands of rowkeeper that read what a server still knows of objects, and
// the one that puts an object back. They are clients of the server, as kubectl is, and need the
// rights that package github.com/rowkeeper/rowkeeper/pkg/history tells.
package history

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/history"
	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// Commands returns the commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{newHistoryCommand(), newGetCommand(), newDiffCommand(), newUndoCommand()}
}

// client talks to the server that the flags name.
type client struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	// all means all namespaces.
	all bool

	// What follows is there when connect has been called.
	namespace string
	raw       rest.Interface
	dynamic   dynamic.Interface
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
}

// addFlags adds those of kubectl that say which server, which user and which namespace is meant.
func (c *client) addFlags(cmd *cobra.Command, several bool) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs := cmd.Flags()
	fs.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "The kubeconfig. Default: as for kubectl, "+
		"$KUBECONFIG or ~/.kube/config.")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	only := clientcmd.ConfigOverrideFlags{CurrentContext: names.CurrentContext}
	only.CurrentContext.Description = "The context of the kubeconfig."
	only.AuthOverrideFlags.Impersonate = names.AuthOverrideFlags.Impersonate
	only.AuthOverrideFlags.Impersonate.Description = "The user to act as."
	only.AuthOverrideFlags.ImpersonateGroups = names.AuthOverrideFlags.ImpersonateGroups
	only.AuthOverrideFlags.ImpersonateGroups.Description = "A group to act as. Repeat it for more."
	only.ContextOverrideFlags.Namespace = names.ContextOverrideFlags.Namespace
	only.ContextOverrideFlags.Namespace.Description = "The namespace. Default: that of the context."
	clientcmd.BindOverrideFlags(&c.overrides, fs, only)
	if several {
		fs.BoolVarP(&c.all, "all-namespaces", "A", false, "All namespaces.")
	}
}

// connect reads the kubeconfig.
func (c *client) connect() error {
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
	config, err := loaded.ClientConfig()
	if err != nil {
		return fmt.Errorf("no server is named: %w: give --kubeconfig", err)
	}
	if c.namespace, _, err = loaded.Namespace(); err != nil {
		return err
	}
	return c.dial(config)
}

// dial makes the clients of a server.
func (c *client) dial(config *rest.Config) error {
	config.QPS = -1 // the server says when it is too much
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	c.discovery = memory.NewMemCacheClient(client)
	raw := rest.CopyConfig(config)
	raw.GroupVersion = &metav1.Unversioned
	raw.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	if c.raw, err = rest.UnversionedRESTClientFor(raw); err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
	c.mapper = restmapper.NewShortcutExpander(mapper, c.discovery, nil)
	c.dynamic, err = dynamic.NewForConfig(config)
	return err
}

// target is what a command is about: a resource, in a namespace or everywhere, or one object of it.
type target struct {
	gvr       schema.GroupVersionResource
	kind      schema.GroupVersionKind
	scoped    bool // it has namespaces
	namespace string
	name      string
}

// resolve finds the resource of RESOURCE/NAME or RESOURCE NAME, or without a name.
func (c *client) resolve(args []string) (*target, error) {
	resource, name, slash := strings.Cut(args[0], "/")
	switch {
	case resource == "" || slash && name == "" || slash && len(args) > 1 || len(args) > 2 ||
		strings.Contains(name, "/"):
		return nil, server.UsageError{Err: fmt.Errorf("%q names no object: give RESOURCE/NAME",
			strings.Join(args, " "))}
	case len(args) == 2:
		name = args[1]
	}
	mapping, err := c.mapping(resource)
	if err != nil {
		return nil, err
	}
	t := &target{gvr: mapping.Resource, kind: mapping.GroupVersionKind, name: name,
		scoped: mapping.Scope.Name() == meta.RESTScopeNameNamespace}
	if t.scoped && (name != "" || !c.all) {
		t.namespace = c.namespace
	}
	if c.all && name != "" {
		return nil, server.UsageError{Err: errors.New("one object is in one namespace: leave " +
			"--all-namespaces out")}
	}
	return t, nil
}

// mapping finds a resource as kubectl does: by its name, in the singular too, its short name, or
// its kind, with a group or without.
func (c *client) mapping(arg string) (*meta.RESTMapping, error) {
	arg = strings.ToLower(arg)
	whole, part := schema.ParseResourceArg(arg)
	if whole != nil {
		if kind, err := c.mapper.KindFor(*whole); err == nil {
			return c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		}
	}
	kind, err := c.mapper.KindFor(part.WithVersion(""))
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("the server has no resource %q", arg)
	case err != nil:
		return nil, err
	}
	return c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
}

// path is where the server has the objects.
func (t *target) path() string {
	path := "/apis/" + t.gvr.Group
	if t.gvr.Group == "" {
		path = "/api"
	}
	path += "/" + t.gvr.Version
	if t.namespace != "" {
		path += "/namespaces/" + url.PathEscape(t.namespace)
	}
	return path + "/" + t.gvr.Resource
}

// String is how the object is named in what is told.
func (t *target) String() string {
	if t.name == "" {
		return t.gvr.GroupResource().String()
	}
	return t.gvr.GroupResource().String() + "/" + t.name
}

// of is one of the objects of a target.
func (t *target) of(namespace, name string) *target {
	one := *t
	one.namespace, one.name = namespace, name
	return &one
}

// page asks for a page of a history.
func (c *client) page(ctx context.Context, t *target, parameters map[string]string) (
	*v1alpha1.ObjectHistory, error) {
	name := t.name
	if name == "" {
		name = history.All
	}
	r := c.raw.Get().AbsPath(t.path() + "/" + url.PathEscape(name) + "/" + history.Subresource)
	for k, v := range parameters {
		if v != "" {
			r = r.Param(k, v)
		}
	}
	result := r.SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return nil, t.explain(err)
	}
	data, err := result.Raw()
	if err != nil {
		return nil, err
	}
	page := &v1alpha1.ObjectHistory{}
	if err := utiljson.Unmarshal(data, page); err != nil || page.Kind != v1alpha1.Kind {
		return nil, fmt.Errorf("the server answered with something else than a history of %s", t)
	}
	return page, nil
}

// errNoHistory is for resources, or servers, without a history.
type errNoHistory struct{ resource string }

func (e errNoHistory) Error() string {
	return fmt.Sprintf("the server serves no history of %s: start it with --enable-history", e.resource)
}

// explain tells a path that the server does not know from an object that was not there. Servers of
// custom resources answer both in the same words, so only the cause counts.
func (t *target) explain(err error) error {
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, v1alpha1.NoState) {
		return errNoHistory{t.gvr.GroupResource().String()}
	}
	return err
}

// changes collects at least so many changes, 0 for all, the newest first, and all that is told of
// them. It leaves out Since if the log was not whole from there on when one of the pages was read.
//
// A page may be empty, and others follow: the server looks for earlier objects, in a part of the
// log for each page. If there are changes, and not all are wanted, this is not waited for.
func (c *client) changes(ctx context.Context, t *target, parameters map[string]string,
	least int) (*v1alpha1.ObjectHistory, error) {
	parameters["limit"] = "200"
	if least > 0 && least < 200 {
		parameters["limit"] = strconv.Itoa(least)
	}
	var all *v1alpha1.ObjectHistory
	for {
		page, err := c.page(ctx, t, parameters)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = page
			// On further pages, "10m" would be another moment.
			for name, revision := range map[string]string{"since": page.Metadata.Since,
				"until": page.Metadata.Until} {
				if parameters[name] != "" && revision != "" {
					parameters[name] = revision
				}
			}
		} else {
			all.Items = append(all.Items, page.Items...)
			all.Metadata.Continue = page.Metadata.Continue
			all.Metadata.Omitted = all.Metadata.Omitted || page.Metadata.Omitted
			all.Oldest = page.Oldest
		}
		if page.Metadata.Since == "" {
			all.Metadata.Since = ""
		}
		enough := least > 0 && (len(all.Items) >= least || len(all.Items) > 0 && len(page.Items) == 0)
		if parameters["continue"] = page.Metadata.Continue; page.Metadata.Continue == "" || enough {
			return all, nil
		}
	}
}

// at is the state of an object at a moment, nil if there was none.
func (c *client) at(ctx context.Context, t *target, moment string) (*v1alpha1.Change, error) {
	page, err := c.page(ctx, t, map[string]string{"at": moment})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case len(page.Items) != 1:
		return nil, fmt.Errorf("the server answered with %d states in place of one", len(page.Items))
	}
	return &page.Items[0], nil
}

// revisionAt is the revision of a moment, in the store that has the resource.
func (c *client) revisionAt(ctx context.Context, t *target, moment string) (string, error) {
	if _, err := strconv.ParseInt(moment, 10, 64); err == nil {
		return moment, nil
	}
	page, err := c.page(ctx, t.of(t.namespace, ""), map[string]string{"until": moment, "limit": "1"})
	if err != nil {
		return "", err
	}
	return page.Metadata.Until, nil
}

// resources are all that can be listed, in the namespace or everywhere, each in its preferred
// version.
func (c *client) resources() ([]*target, error) {
	lists, err := discovery.ServerPreferredResources(c.discovery)
	if lists == nil && err != nil {
		return nil, err
	}
	var all []*target
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") ||
				!r.Namespaced && !c.all {
				continue
			}
			t := &target{gvr: gv.WithResource(r.Name), kind: gv.WithKind(r.Kind), scoped: r.Namespaced}
			if r.Namespaced && !c.all {
				t.namespace = c.namespace
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// table asks for a list as the server shows it, at a revision.
func (c *client) table(ctx context.Context, t *target, revision, token string) (*metav1.Table, error) {
	r := c.raw.Get().AbsPath(t.path()).Param("limit", "500")
	if token != "" {
		r = r.Param("continue", token)
	} else {
		r = r.Param("resourceVersion", revision).Param("resourceVersionMatch", "Exact")
	}
	result := r.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	data, err := result.Raw()
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	return table, utiljson.Unmarshal(data, table)
}

// unavailable tells whether a resource has nothing to tell, or not to this user.
func unavailable(err error) bool {
	var none errNoHistory
	return errors.As(err, &none) || apierrors.IsForbidden(err) ||
		apierrors.ReasonForError(err) == metav1.StatusReasonMethodNotAllowed ||
		apierrors.IsServiceUnavailable(err)
}
