package builtin

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
)

// WriteDefaultPriorities maintains the FlowSchemas and PriorityLevelConfigurations that every
// cluster has, by the rules that Kubernetes documents. Those that are missing are created. The
// mandatory ones get their spec back. The others keep theirs if users control it, and get the one
// of this version if they do not: the annotation apf.kubernetes.io/autoupdate-spec says who does.
// Without it, users control what they have changed. Those of another version that users do not
// control are deleted.
//
// Every replica does it: the result is the same, and who is late meets a conflict, which is no
// error. It writes what it can, and returns all that it could not.
func WriteDefaultPriorities(ctx context.Context,
	client flowcontrolclient.FlowcontrolV1Interface) error {
	// What is a little old is good enough, and costs the database nothing.
	cached := metav1.ListOptions{ResourceVersion: "0"}
	levels, err := client.PriorityLevelConfigurations().List(ctx, cached)
	if err != nil {
		return fmt.Errorf("cannot list the priorities: %w", err)
	}
	schemas, err := client.FlowSchemas().List(ctx, cached)
	if err != nil {
		return fmt.Errorf("cannot list the flow schemas: %w", err)
	}
	return errors.Join(
		defaultsOf[flowcontrolv1.PriorityLevelConfiguration, *flowcontrolv1.PriorityLevelConfiguration]{
			client:    client.PriorityLevelConfigurations(),
			mandatory: bootstrap.MandatoryPriorityLevelConfigurations,
			suggested: bootstrap.SuggestedPriorityLevelConfigurations,
			setSpec: func(to, from *flowcontrolv1.PriorityLevelConfiguration) {
				exempt := to.Spec.Exempt
				to.Spec = *from.Spec.DeepCopy()
				if to.Spec.Exempt != nil && exempt != nil {
					to.Spec.Exempt = exempt // its share is for users to say
				}
			},
		}.write(ctx, pointers(levels.Items)),
		defaultsOf[flowcontrolv1.FlowSchema, *flowcontrolv1.FlowSchema]{
			client:    client.FlowSchemas(),
			mandatory: bootstrap.MandatoryFlowSchemas,
			suggested: bootstrap.SuggestedFlowSchemas,
			setSpec: func(to, from *flowcontrolv1.FlowSchema) {
				to.Spec = *from.Spec.DeepCopy()
			},
		}.write(ctx, pointers(schemas.Items)))
}

// defaultsOf are the default objects of a kind.
type defaultsOf[T any, P interface {
	*T
	metav1.Object
	DeepCopy() *T
}] struct {
	client interface {
		Create(ctx context.Context, obj *T, o metav1.CreateOptions) (*T, error)
		Update(ctx context.Context, obj *T, o metav1.UpdateOptions) (*T, error)
		Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
	}
	mandatory, suggested []*T
	setSpec              func(to, from *T)
}

// write brings what is there to what should be.
func (d defaultsOf[T, P]) write(ctx context.Context, there []*T) error {
	rest := map[string]P{}
	for _, obj := range there {
		rest[P(obj).GetName()] = obj
	}
	var errs []error
	ensure := func(all []*T, mandatory bool) {
		for _, wanted := range all {
			name := P(wanted).GetName()
			if err := d.ensure(ctx, rest[name], wanted, mandatory); err != nil {
				errs = append(errs, fmt.Errorf("cannot write the default %T %s: %w", wanted, name,
					err))
			}
			delete(rest, name)
		}
	}
	ensure(d.mandatory, true)
	ensure(d.suggested, false)
	for name, obj := range rest {
		if obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
			continue
		}
		uid, version := obj.GetUID(), obj.GetResourceVersion()
		err := d.client.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("cannot delete the former default %T %s: %w", obj, name,
				err))
		}
	}
	return errors.Join(errs...)
}

// ensure writes one object. is may be nil.
func (d defaultsOf[T, P]) ensure(ctx context.Context, is P, wanted P, mandatory bool) error {
	if is == nil {
		_, err := d.client.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	ours := mandatory || !ofUsers(is)
	becomes := P(is.DeepCopy())
	annotations := becomes.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(ours)
	becomes.SetAnnotations(annotations)
	if ours {
		d.setSpec(becomes, wanted)
	}
	if unchanged(becomes, is) {
		return nil
	}
	_, err := d.client.Update(ctx, becomes, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next time will see to it
	}
	return err
}

// ofUsers tells whether users control the spec of an object.
func ofUsers(obj metav1.Object) bool {
	if ours, err := strconv.ParseBool(
		obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return !ours
	}
	return obj.GetGeneration() > 1
}
