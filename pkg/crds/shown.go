package crds

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// shown changes what upstream's handlers and controllers see of a definition. Nothing is changed in
// the database, where the admission plugin keeps it out of.
//
// What a definition defines is in memory once: upstream's handler keeps it as it was when it began
// to serve the definition, while the informer has the newest version, of which often the status
// alone is new.
func (e *extension) shown(obj any) (any, error) {
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if ok {
		if old, err := e.known(definition.Name); err == nil &&
			reflect.DeepEqual(old.Spec, definition.Spec) {
			definition.Spec = old.Spec
		}
	}
	switch {
	case !ok:
	case e.plugin.owns(definition.Spec.Group):
		for _, c := range notServed(definition.Spec.Group) {
			apihelpers.SetCRDCondition(definition,
				apiextensionsv1.CustomResourceDefinitionCondition{
					Type:   apiextensionsv1.CustomResourceDefinitionConditionType(c.Type),
					Status: apiextensionsv1.ConditionStatus(c.Status), Reason: c.Reason,
					Message: c.Message,
				})
		}
		// Whose names are accepted is left alone by the controller that accepts names.
		definition.Status.AcceptedNames = definition.Spec.Names
	case e.options.SingleServer:
		// With a recent date the first creations would have to wait.
		for i := range definition.Status.Conditions {
			if c := &definition.Status.Conditions[i]; c.Type == apiextensionsv1.Established {
				c.LastTransitionTime = metav1.NewTime(definition.CreationTimestamp.Add(-time.Hour))
			}
		}
	}
	return obj, nil
}

// notServed are the conditions of a definition that is older than the server's own group of the
// same name: the group is served as before, and the definition is not.
func notServed(group string) [2]apiextensions.CustomResourceDefinitionCondition {
	message := fmt.Sprintf("the group %s belongs to the server itself: what is defined in it is "+
		"not served; its objects stay stored", group)
	return [2]apiextensions.CustomResourceDefinitionCondition{
		{Type: apiextensions.NamesAccepted, Status: apiextensions.ConditionFalse,
			Reason: groupOfServer, Message: message},
		{Type: apiextensions.Established, Status: apiextensions.ConditionFalse,
			Reason: groupOfServer, Message: message},
	}
}

const groupOfServer = "GroupOfServer"

// reportEvery is how often it is said at most in a definition's status that it is not served. A
// server of an earlier version, which has not the group itself, may say the contrary meanwhile.
const reportEvery = time.Minute

// unserved says of definitions that they are not served, in their status and in the log.
type unserved struct {
	client   clientset.CustomResourceDefinitionInterface
	queue    workqueue.TypedRateLimitingInterface[string]
	mu       sync.Mutex
	reported map[string]time.Time
}

// reportUnserved watches for definitions in the server's own groups.
func (e *extension) reportUnserved(definitions *apiextensionsserver.CustomResourceDefinitions) error {
	client, err := clientset.NewForConfig(e.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	u := &unserved{
		client:   client.CustomResourceDefinitions(),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		reported: map[string]time.Time{},
	}
	look := func(obj any) {
		if d, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok &&
			e.plugin.owns(d.Spec.Group) {
			u.add(d.Name)
		}
	}
	_,
		err = definitions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch the definitions: %w", err)
	}
	return definitions.GenericAPIServer.AddPostStartHook("unserved-definitions",
		func(hook genericapiserver.PostStartHookContext) error {
			go func() {
				<-hook.Done()
				u.queue.ShutDown()
			}()
			go func() {
				for u.next(hook) {
				}
			}()
			return nil
		})
}

func (u *unserved) add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if last, ok := u.reported[name]; ok {
		u.queue.AddAfter(name, time.Until(last.Add(reportEvery)))
		return
	}
	u.queue.Add(name)
}

func (u *unserved) next(ctx context.Context) bool {
	name, quit := u.queue.Get()
	if quit {
		return false
	}
	defer u.queue.Done(name)
	if err := u.report(ctx, name); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("It cannot be said in the status of a definition that it is "+
			"not served", "definition", name, "reason", err)
		u.queue.AddRateLimited(name)
		return true
	}
	u.queue.Forget(name)
	return true
}

// report writes the status, which the admission plugin fills in, if it says something else.
func (u *unserved) report(ctx context.Context, name string) error {
	d, err := u.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if c := apihelpers.FindCRDCondition(d, apiextensionsv1.NamesAccepted); c != nil &&
		c.Reason == groupOfServer && d.Status.AcceptedNames.Plural == "" {
		return nil
	}
	klog.FromContext(ctx).Info("A CustomResourceDefinition is not served, because the server has "+
		"a group of that name itself; what was stored of it stays stored", "definition", name,
		"group", d.Spec.Group)
	_, err = u.client.UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reported[name] = time.Now()
	return nil
}
