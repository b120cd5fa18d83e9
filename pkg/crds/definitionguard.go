package crds

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// definitionGuard lets no object survive the deletion of its definition.
//
// Upstream serves the objects of a definition as soon as its names are accepted, and deletes them
// with the definition if that is Established by then. It relies on time for what happens between:
// a creation sleeps if the definition is young, and a deletion lists once what there is. Here a
// creation waits until the definition is Established, and the definition is read once more, from
// the database, after the object was committed:
//
//   - If it is the same then, and is not being deleted, whoever deletes it later lists its objects
//     after that, and sees this one.
//   - Otherwise the object may have come after the list. It is deleted again, and the client is
//     told that the definition is being deleted.
//
// A definition that is deleted before it is Established has its objects listed, too; see
// [plugin.Admit]. While they are deleted, the definition is read before each of them.
// As with namespaces, this holds for any number of servers, whatever time anything
// takes, and what can be left behind is only an object that was not acknowledged.
type definitionGuard struct {
	// known is what the server knows of a definition, which may be old.
	known func(name string) (*apiextensionsv1.CustomResourceDefinition, error)
	// revision is at which revision a definition was written last, 0 if there is none. It is read
	// from the database, as is what read returns. A definition may have megabytes, and is nearly
	// always known as it is.
	revision func(ctx context.Context, name string) (int64, error)
	read     func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
}

// converts tells whether a webhook converts the objects of a definition, or it is not known. A
// store of objects is made anew when its definition has changed.
func (g *definitionGuard) converts(resource schema.GroupResource) bool {
	d, err := g.known(resource.String())
	return err != nil || d.Spec.Conversion != nil &&
		d.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter
}

// How long a creation waits until a definition is Established, which takes milliseconds, and how
// often it looks.
const (
	establishedWithin = 10 * time.Second
	establishedEvery  = 5 * time.Millisecond
)

// await waits until objects may be created, and returns which definition says so. Without a guard,
// as for what is not defined by definitions, objects may always be created.
func (g *definitionGuard) await(ctx context.Context,
	resource schema.GroupResource, object string) (uid types.UID, err error) {
	if g == nil {
		return "", nil
	}
	var refusal error
	err = wait.PollUntilContextTimeout(ctx, establishedEvery, establishedWithin, true,
		func(context.Context) (bool, error) {
			d, err := g.known(resource.String())
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
			if err != nil || d.DeletionTimestamp != nil {
				refusal = beingDeleted(resource, object)
				return true, nil
			}
			uid = d.UID
			return apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established), nil
		})
	switch {
	case refusal != nil:
		return "", refusal
	case wait.Interrupted(err):
		return "", apierrors.NewTimeoutError(fmt.Sprintf("the definition of %s is not "+
			"established yet: try again", resource), 1)
	}
	return uid, err
}

// current returns a definition as the database has it.
func (g *definitionGuard) current(ctx context.Context,
	resource schema.GroupResource) (*apiextensionsv1.CustomResourceDefinition, error) {
	name := resource.String()
	now, err := g.revision(ctx, name)
	if err != nil {
		return nil, err
	}
	if now == 0 {
		return nil, apierrors.NewNotFound(
			apiextensionsv1.Resource("customresourcedefinitions"), name)
	}
	d, err := g.known(name)
	if err != nil || d.ResourceVersion != strconv.FormatInt(now, 10) {
		return g.read(ctx, name)
	}
	return d, nil
}

// check returns why there must not be an object that was created when the definition of this UID
// was known.
func (g *definitionGuard) check(ctx context.Context, resource schema.GroupResource,
	uid types.UID, object string) error {
	if g == nil {
		return nil
	}
	switch d, err := g.current(ctx, resource); {
	case apierrors.IsNotFound(err):
		return beingDeleted(resource, object)
	case err != nil:
		return err
	case d.UID != uid || d.DeletionTimestamp != nil:
		return beingDeleted(resource, object)
	}
	return nil
}

// changes returns why an object must not be changed or deleted. Upstream deletes the objects of a
// definition without a request, and that may take long. A restore meanwhile brings back the
// definition, and objects with it, of which those stay that are not deleted yet.
func (g *definitionGuard) changes(ctx context.Context, resource schema.GroupResource,
	key string) error {
	if g == nil {
		return nil
	}
	if _, asked := request.RequestInfoFrom(ctx); asked {
		return nil
	}
	switch d, err := g.current(ctx, resource); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case d.DeletionTimestamp == nil:
		return apierrors.NewConflict(resource, path.Base(key),
			errors.New("its definition is not being deleted any more"))
	}
	return nil
}

// beingDeleted refuses a creation as upstream does.
func beingDeleted(resource schema.GroupResource, name string) error {
	return apierrors.NewForbidden(resource, name,
		errors.New("create not allowed while custom resource definition is terminating"))
}
