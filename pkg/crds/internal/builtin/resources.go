package builtin

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
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
	knownFinalizers: true,
	shortNames:      []string{"cm"},
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
	knownFinalizers: true,
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
		return append(errs, checkType(s)...)
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

// checkType checks what the type of a secret promises to its users.
func checkType(s *corev1.Secret) (errs field.ErrorList) {
	data := field.NewPath("data")
	need := func(keys ...string) {
		for _, key := range keys {
			if _, there := s.Data[key]; !there {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	needJSON := func(key string) {
		need(key)
		if value, there := s.Data[key]; there && !json.Valid(value) {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>",
				"must be JSON"))
		}
	}
	switch s.Type {
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case corev1.SecretTypeSSHAuth:
		need(corev1.SSHAuthPrivateKey)
	case corev1.SecretTypeBasicAuth:
		_, name := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !name && !password { // one of the two will do
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeDockercfg:
		needJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		needJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(
				metadataPath.Child("annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	}
	return errs
}

var serviceAccounts = resource[*corev1.ServiceAccount]{
	resource: corev1.Resource("serviceaccounts"), singular: corev1.Resource("serviceaccount"),
	knownFinalizers: true,
	shortNames:      []string{"sa"},
	new: func() *corev1.ServiceAccount {
		return &corev1.ServiceAccount{}
	}, newList: func() runtime.Object { return &corev1.ServiceAccountList{} },
	name: validation.ValidateServiceAccountName,
}

var leases = resource[*coordinationv1.Lease]{
	resource: coordinationv1.Resource("leases"), singular: coordinationv1.Resource("lease"),
	new: func() *coordinationv1.Lease {
		return &coordinationv1.Lease{}
	}, newList: func() runtime.Object { return &coordinationv1.LeaseList{} },
	name: validation.NameIsDNSSubdomain,
	// Nobody here coordinates leader elections. So what asks for that is dropped, as in a cluster
	// that does not.
	prepare: func(l, _ *coordinationv1.Lease) { l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil },
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
