package builtin

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var (
	// Scheme knows the types that are served.
	Scheme = runtime.NewScheme()
	// Codecs encode and decode them.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec decodes the parameters of requests.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

func init() {
	add := func(version schema.GroupVersion, types ...runtime.Object) {
		Scheme.AddKnownTypes(version, types...)
		metav1.AddToGroupVersion(Scheme, version)
		utilruntime.Must(Scheme.SetVersionPriority(version))
	}
	internal := func(group string, types ...runtime.Object) {
		Scheme.AddKnownTypes(schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal},
			types...)
	}
	for version, types := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion: {
			&corev1.Namespace{}, &corev1.NamespaceList{}, &corev1.ConfigMap{},
			&corev1.ConfigMapList{}, &corev1.Secret{}, &corev1.SecretList{},
			&corev1.ServiceAccount{}, &corev1.ServiceAccountList{}, &corev1.Event{},
			&corev1.EventList{},
		},
		coordinationv1.SchemeGroupVersion: {&coordinationv1.Lease{}, &coordinationv1.LeaseList{}},
		admissionv1.SchemeGroupVersion: {
			&admissionv1.MutatingWebhookConfiguration{},
			&admissionv1.MutatingWebhookConfigurationList{},
			&admissionv1.ValidatingWebhookConfiguration{},
			&admissionv1.ValidatingWebhookConfigurationList{},
			&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyList{},
			&admissionv1.ValidatingAdmissionPolicyBinding{},
			&admissionv1.ValidatingAdmissionPolicyBindingList{},
			&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyList{},
			&admissionv1.MutatingAdmissionPolicyBinding{},
			&admissionv1.MutatingAdmissionPolicyBindingList{},
		},
		flowcontrolv1.SchemeGroupVersion: {
			&flowcontrolv1.FlowSchema{}, &flowcontrolv1.FlowSchemaList{},
			&flowcontrolv1.PriorityLevelConfiguration{},
			&flowcontrolv1.PriorityLevelConfigurationList{},
		},
		rbacv1.SchemeGroupVersion: {
			&rbacv1.Role{}, &rbacv1.RoleList{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleList{},
			&rbacv1.RoleBinding{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleBinding{},
			&rbacv1.ClusterRoleBindingList{},
		},
	} {
		add(version, types...)
		internal(version.Group, types...)
	}
	add(eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	internal(eventsv1.GroupName, &corev1.Event{}, &corev1.EventList{})
	utilruntime.Must(addEventConversions(Scheme))

	unversioned := schema.GroupVersion{Version: "v1"}
	Scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{},
		&metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})

	addDefaults(Scheme)
	for kind, fields := range selectable {
		utilruntime.Must(Scheme.AddFieldLabelConversionFunc(kind,
			func(label, value string) (string, string, error) {
				for _, f := range append([]string{"metadata.name", "metadata.namespace"},
					fields...) {
					if f == label {
						return label, value, nil
					}
				}
				// Its error names the fields by which clients can select.
				return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
			}))
	}
}

// selectable are the fields, besides the name and the namespace, by which lists and watches can
// select.
var selectable = map[schema.GroupVersionKind][]string{
	corev1.SchemeGroupVersion.WithKind("Namespace"): {"status.phase"},
	corev1.SchemeGroupVersion.WithKind("Secret"):    {"type"},
	corev1.SchemeGroupVersion.WithKind("Event"): eventFields("involvedObject.", "source",
		"reportingComponent"),
	eventsv1.SchemeGroupVersion.WithKind("Event"): eventFields("regarding.", "deprecatedSource",
		"reportingController"),
}

// addEventConversions converts the Events of events.k8s.io, some of whose fields have other names
// there.
func addEventConversions(scheme *runtime.Scheme) error {
	for _, c := range []struct {
		from, to any
		convert  conversion.ConversionFunc
	}{
		{(*eventsv1.Event)(nil), (*corev1.Event)(nil),
			func(from, to any, _ conversion.Scope) error {
				toCoreEvent(from.(*eventsv1.Event), to.(*corev1.Event))
				return nil
			}},
		{(*corev1.Event)(nil), (*eventsv1.Event)(nil),
			func(from, to any, _ conversion.Scope) error {
				fromCoreEvent(from.(*corev1.Event), to.(*eventsv1.Event))
				return nil
			}},
		{(*eventsv1.EventList)(nil), (*corev1.EventList)(nil),
			func(from, to any, _ conversion.Scope) error {
				in, out := from.(*eventsv1.EventList), to.(*corev1.EventList)
				out.ListMeta, out.Items = in.ListMeta, make([]corev1.Event, len(in.Items))
				for i := range in.Items {
					toCoreEvent(&in.Items[i], &out.Items[i])
				}
				return nil
			}},
		{(*corev1.EventList)(nil), (*eventsv1.EventList)(nil),
			func(from, to any, _ conversion.Scope) error {
				in, out := from.(*corev1.EventList), to.(*eventsv1.EventList)
				out.ListMeta, out.Items = in.ListMeta, make([]eventsv1.Event, len(in.Items))
				for i := range in.Items {
					fromCoreEvent(&in.Items[i], &out.Items[i])
				}
				return nil
			}},
	} {
		if err := scheme.AddConversionFunc(c.from, c.to, c.convert); err != nil {
			return err
		}
	}
	return nil
}

func toCoreEvent(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta:          in.ObjectMeta,
		InvolvedObject:      in.Regarding,
		Reason:              in.Reason,
		Message:             in.Note,
		Source:              in.DeprecatedSource,
		FirstTimestamp:      in.DeprecatedFirstTimestamp,
		LastTimestamp:       in.DeprecatedLastTimestamp,
		Count:               in.DeprecatedCount,
		Type:                in.Type,
		EventTime:           in.EventTime,
		Action:              in.Action,
		Related:             in.Related,
		ReportingController: in.ReportingController,
		ReportingInstance:   in.ReportingInstance,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count,
			LastObservedTime: in.Series.LastObservedTime}
	}
}

func fromCoreEvent(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta:               in.ObjectMeta,
		EventTime:                in.EventTime,
		ReportingController:      in.ReportingController,
		ReportingInstance:        in.ReportingInstance,
		Action:                   in.Action,
		Reason:                   in.Reason,
		Regarding:                in.InvolvedObject,
		Related:                  in.Related,
		Note:                     in.Message,
		Type:                     in.Type,
		DeprecatedSource:         in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp:  in.LastTimestamp,
		DeprecatedCount:          in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count,
			LastObservedTime: in.Series.LastObservedTime}
	}
}
