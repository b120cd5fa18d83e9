package builtin

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// maxData is how many bytes the data of a ConfigMap or Secret may have.
const maxData = 1 << 20

// checkKeys checks the keys of data and the size of it all.
func checkKeys(path *field.Path, sizes map[string]int) (errs field.ErrorList, total int) {
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		for _, message := range utilvalidation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(path.Key(key), key, message))
		}
		total += sizes[key]
	}
	return errs, total
}

func sizes[T ~string | ~[]byte](data map[string]T) map[string]int {
	s := make(map[string]int, len(data))
	for key, value := range data {
		s[key] = len(value)
	}
	return s
}

// checkImmutable refuses changes of data that was declared immutable, and of that declaration.
func checkImmutable(immutable, was *bool, unchanged map[string]bool) (errs field.ErrorList) {
	if !ptr.Deref(was, false) {
		return nil
	}
	if !ptr.Deref(immutable, false) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"),
			"field is immutable when `immutable` is set"))
	}
	for _, name := range slices.Sorted(maps.Keys(unchanged)) {
		if !unchanged[name] {
			errs = append(errs, field.Forbidden(field.NewPath(name),
				"field is immutable when `immutable` is set"))
		}
	}
	return errs
}

var configMaps = resource[*corev1.ConfigMap]{
	resource: corev1.Resource("configmaps"), singular: corev1.Resource("configmap"),
	shortNames: []string{"cm"},
	new: func() *corev1.ConfigMap {
		return &corev1.ConfigMap{}
	}, newList: func() runtime.Object { return &corev1.ConfigMapList{} },
	name: validation.NameIsDNSSubdomain,
	validate: func(c, _ *corev1.ConfigMap) field.ErrorList {
		data, binary := field.NewPath("data"), field.NewPath("binaryData")
		errs, size := checkKeys(data, sizes(c.Data))
		more, sizeOfBinary := checkKeys(binary, sizes(c.BinaryData))
		errs = append(errs, more...)
		for _, key := range slices.Sorted(maps.Keys(c.Data)) {
			if _, twice := c.BinaryData[key]; twice {
				errs = append(errs, field.Invalid(data.Key(key), key,
					"duplicate of key present in binaryData"))
			}
		}
		if size+sizeOfBinary > maxData {
			errs = append(errs, field.TooLong(field.NewPath(""), "" /*unused*/, maxData))
		}
		return errs
	},
	validateUpdate: func(c, old *corev1.ConfigMap) field.ErrorList {
		return checkImmutable(c.Immutable, old.Immutable, map[string]bool{
			"data": maps.Equal(c.Data, old.Data), "binaryData": maps.EqualFunc(c.BinaryData,
				old.BinaryData, bytes.Equal),
		})
	},
	columns: []metav1.TableColumnDefinition{{Name: "Data", Type: "integer",
		Description: "How many keys there are."}},
	cells: func(c *corev1.ConfigMap) []any {
		return []any{int64(len(c.Data) + len(c.BinaryData))}
	},
	createOnUpdate: false,
}

var secrets = resource[*corev1.Secret]{
	resource: corev1.Resource("secrets"), singular: corev1.Resource("secret"),
	new: func() *corev1.Secret {
		return &corev1.Secret{}
	}, newList: func() runtime.Object { return &corev1.SecretList{} },
	name: validation.NameIsDNSSubdomain,
	// Clients may write values as text. They become data, and are always read as data.
	prepare: func(s, old *corev1.Secret) {
		for key, text := range s.StringData {
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			s.Data[key] = []byte(text)
		}
		s.StringData = nil
	},
	validate: func(s, _ *corev1.Secret) field.ErrorList {
		data := field.NewPath("data")
		errs, size := checkKeys(data, sizes(s.Data))
		if size > maxData {
			errs = append(errs, field.TooLong(data, "" /*unused*/, maxData))
		}
		for _, key := range requiredKeys[s.Type] {
			if _, there := s.Data[key]; !there {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
		return errs
	},
	validateUpdate: func(s, old *corev1.Secret) field.ErrorList {
		errs := validation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))
		return append(errs, checkImmutable(s.Immutable, old.Immutable,
			map[string]bool{"data": maps.EqualFunc(s.Data, old.Data, bytes.Equal)})...)
	},
	selectable: func(s *corev1.Secret, set fields.Set) { set["type"] = string(s.Type) },
	columns: []metav1.TableColumnDefinition{
		{Name: "Type", Type: "string", Description: "What the secret is for."},
		{Name: "Data", Type: "integer", Description: "How many keys there are."},
	},
	cells: func(s *corev1.Secret) []any { return []any{string(s.Type), int64(len(s.Data))} },
}

// requiredKeys are what the types of secrets promise to their users.
var requiredKeys = map[corev1.SecretType][]string{
	corev1.SecretTypeTLS:              {corev1.TLSCertKey, corev1.TLSPrivateKeyKey},
	corev1.SecretTypeSSHAuth:          {corev1.SSHAuthPrivateKey},
	corev1.SecretTypeDockercfg:        {corev1.DockerConfigKey},
	corev1.SecretTypeDockerConfigJson: {corev1.DockerConfigJsonKey},
}

var serviceAccounts = resource[*corev1.ServiceAccount]{
	resource: corev1.Resource("serviceaccounts"), singular: corev1.Resource("serviceaccount"),
	shortNames: []string{"sa"},
	new: func() *corev1.ServiceAccount {
		return &corev1.ServiceAccount{}
	}, newList: func() runtime.Object { return &corev1.ServiceAccountList{} },
	name: validation.ValidateServiceAccountName,
}

// eventTTL is for how many seconds an event is kept: an hour, as in a cluster.
const eventTTL = 60 * 60

var events = resource[*corev1.Event]{
	resource: corev1.Resource("events"), singular: corev1.Resource("event"),
	shortNames: []string{"ev"},
	new: func() *corev1.Event {
		return &corev1.Event{}
	}, newList: func() runtime.Object { return &corev1.EventList{} },
	name: validation.NameIsDNSSubdomain,
	validate: func(e, _ *corev1.Event) field.ErrorList {
		// Events of objects without a namespace are in the default one, or in kube-system.
		of := e.InvolvedObject.Namespace
		if of != e.Namespace && (of != "" ||
			e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem) {
			return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), of,
				"does not match event.namespace")}
		}
		return nil
	},
	selectable: func(e *corev1.Event, set fields.Set) {
		source := e.Source.Component
		if source == "" {
			source = e.ReportingController
		}
		about := e.InvolvedObject
		for _, names := range [][]string{eventFields("involvedObject.", "source",
			"reportingComponent"), eventFields("regarding.", "deprecatedSource",
			"reportingController")} {
			for i, value := range []string{
				about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion,
				about.ResourceVersion, about.FieldPath,
				e.Reason, e.Type, source, e.ReportingController,
			} {
				set[names[i]] = value
			}
		}
	},
	columns: []metav1.TableColumnDefinition{
		{Name: "Last Seen", Type: "string", Description: "The time since it happened last."},
		{Name: "Type", Type: "string", Description: "Normal or Warning."},
		{Name: "Reason", Type: "string", Description: "Why it happened, in one word."},
		{Name: "Object", Type: "string", Description: "What it happened to."},
		{Name: "Message", Type: "string", Description: "What happened."},
	},
	cells: func(e *corev1.Event) []any {
		last := e.LastTimestamp
		for _, at := range []metav1.Time{metav1.Time(e.EventTime), e.FirstTimestamp} {
			if last.IsZero() {
				last = at
			}
		}
		if e.Series != nil {
			last = metav1.Time(e.Series.LastObservedTime)
		}
		return []any{table.Age(last, clock.RealClock{}), e.Type, e.Reason,
			fmt.Sprintf("%s/%s", e.InvolvedObject.Kind, e.InvolvedObject.Name), e.Message}
	},
	ttl:            eventTTL,
	createOnUpdate: true,
}

// eventFields are the fields that events can be selected by, under the names that one of the groups
// has for them.
func eventFields(object, source, controller string) []string {
	return []string{
		object + "kind", object + "namespace", object + "name", object + "uid", object +
			"apiVersion", object + "resourceVersion", object + "fieldPath",
		"reason", "type", source, controller,
	}
}

var leases = resource[*coordinationv1.Lease]{
	resource: coordinationv1.Resource("leases"), singular: coordinationv1.Resource("lease"),
	new: func() *coordinationv1.Lease {
		return &coordinationv1.Lease{}
	}, newList: func() runtime.Object { return &coordinationv1.LeaseList{} },
	name: validation.NameIsDNSSubdomain,
	validate: func(l, _ *coordinationv1.Lease) field.ErrorList {
		var errs field.ErrorList
		spec := field.NewPath("spec")
		if seconds := l.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
			errs = append(errs, field.Invalid(spec.Child("leaseDurationSeconds"), *seconds,
				"must be greater than 0"))
		}
		if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
			errs = append(errs, field.Invalid(spec.Child("leaseTransitions"), *n,
				"must be greater than or equal to 0"))
		}
		strategy := ptr.Deref(l.Spec.Strategy, "")
		if strings.Contains(string(strategy), "/") {
			errs = append(errs, checkQualified(spec.Child("strategy"), string(strategy))...)
		} else {
			errs = append(errs, oneOf(spec.Child("strategy"), l.Spec.Strategy,
				coordinationv1.OldestEmulationVersion)...)
		}
		if ptr.Deref(l.Spec.PreferredHolder, "") != "" && strategy == "" {
			errs = append(errs, field.Forbidden(spec.Child("preferredHolder"),
				"may only be specified if `strategy` is defined"))
		}
		return errs
	},
	columns: []metav1.TableColumnDefinition{{Name: "Holder", Type: "string",
		Description: "Who has it."}},
	cells: func(l *coordinationv1.Lease) []any {
		return []any{ptr.Deref(l.Spec.HolderIdentity, "")}
	},
	createOnUpdate: true,
	needsVersion:   true,
}

// unchanged tells whether two values are the same for clients.
func unchanged(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }
