package builtin

import (
	"cmp"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func addDefaults(scheme *runtime.Scheme) {
	scheme.AddTypeDefaultingFunc(&corev1.Namespace{}, func(obj any) {
		defaultNamespace(obj.(*corev1.Namespace))
	})
	scheme.AddTypeDefaultingFunc(&corev1.NamespaceList{}, func(obj any) {
		for i := range obj.(*corev1.NamespaceList).Items {
			defaultNamespace(&obj.(*corev1.NamespaceList).Items[i])
		}
	})
	scheme.AddTypeDefaultingFunc(&corev1.Secret{}, func(obj any) {
		defaultSecret(obj.(*corev1.Secret))
	})
	scheme.AddTypeDefaultingFunc(&corev1.SecretList{}, func(obj any) {
		for i := range obj.(*corev1.SecretList).Items {
			defaultSecret(&obj.(*corev1.SecretList).Items[i])
		}
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.MutatingWebhookConfiguration{}, func(obj any) {
		for i := range obj.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			h := &obj.(*admissionv1.MutatingWebhookConfiguration).Webhooks[i]
			defaultHook(&h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector,
				&h.TimeoutSeconds, h.Rules, &h.ClientConfig)
			setDefault(&h.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
		}
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.ValidatingWebhookConfiguration{}, func(obj any) {
		for i := range obj.(*admissionv1.ValidatingWebhookConfiguration).Webhooks {
			h := &obj.(*admissionv1.ValidatingWebhookConfiguration).Webhooks[i]
			defaultHook(&h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector,
				&h.TimeoutSeconds, h.Rules, &h.ClientConfig)
		}
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.ValidatingAdmissionPolicy{}, func(obj any) {
		spec := &obj.(*admissionv1.ValidatingAdmissionPolicy).Spec
		setDefault(&spec.FailurePolicy, admissionv1.Fail)
		defaultMatch(spec.MatchConstraints)
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.ValidatingAdmissionPolicyBinding{}, func(obj any) {
		defaultMatch(obj.(*admissionv1.ValidatingAdmissionPolicyBinding).Spec.MatchResources)
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.MutatingAdmissionPolicy{}, func(obj any) {
		spec := &obj.(*admissionv1.MutatingAdmissionPolicy).Spec
		setDefault(&spec.FailurePolicy, admissionv1.Fail)
		defaultMatch(spec.MatchConstraints)
	})
	scheme.AddTypeDefaultingFunc(&admissionv1.MutatingAdmissionPolicyBinding{}, func(obj any) {
		defaultMatch(obj.(*admissionv1.MutatingAdmissionPolicyBinding).Spec.MatchResources)
	})
	scheme.AddTypeDefaultingFunc(&rbacv1.RoleBinding{}, func(obj any) {
		b := obj.(*rbacv1.RoleBinding)
		defaultRoleBinding(&b.RoleRef, b.Subjects)
	})
	scheme.AddTypeDefaultingFunc(&rbacv1.ClusterRoleBinding{}, func(obj any) {
		b := obj.(*rbacv1.ClusterRoleBinding)
		defaultRoleBinding(&b.RoleRef, b.Subjects)
	})
	scheme.AddTypeDefaultingFunc(&flowcontrolv1.FlowSchema{}, func(obj any) {
		s := &obj.(*flowcontrolv1.FlowSchema).Spec
		s.MatchingPrecedence = cmp.Or(s.MatchingPrecedence, 1000)
	})
	scheme.AddTypeDefaultingFunc(&flowcontrolv1.PriorityLevelConfiguration{}, func(obj any) {
		defaultPriorityLevel(&obj.(*flowcontrolv1.PriorityLevelConfiguration).Spec)
	})
}

// defaultPriorityLevel sets the shares and queues that a cluster gives to a priority.
func defaultPriorityLevel(s *flowcontrolv1.PriorityLevelConfigurationSpec) {
	if e := s.Exempt; e != nil {
		setDefault(&e.NominalConcurrencyShares, 0)
		setDefault(&e.LendablePercent, 0)
	}
	if l := s.Limited; l != nil {
		setDefault(&l.NominalConcurrencyShares, 30)
		setDefault(&l.LendablePercent, 0)
		if q := l.LimitResponse.Queuing; q != nil {
			q.HandSize = cmp.Or(q.HandSize, 8)
			q.Queues = cmp.Or(q.Queues, 64)
			q.QueueLengthLimit = cmp.Or(q.QueueLengthLimit, 50)
		}
	}
}

// defaultRoleBinding sets the groups in which the role and the subjects are looked for. Service
// accounts are in the group without a name.
func defaultRoleBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	ref.APIGroup = cmp.Or(ref.APIGroup, rbacv1.GroupName)
	for i := range subjects {
		s := &subjects[i]
		if s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind {
			s.APIGroup = cmp.Or(s.APIGroup, rbacv1.GroupName)
		}
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

// defaultNamespace sets the label by which webhooks and policies select a namespace, in place of
// what the client has sent.
func defaultNamespace(n *corev1.Namespace) {
	if n.Name == "" || n.Labels[corev1.LabelMetadataName] == n.Name {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
}

func defaultHook(failure **admissionv1.FailurePolicyType, match **admissionv1.MatchPolicyType,
	namespaces, objects **metav1.LabelSelector, timeout **int32,
	rules []admissionv1.RuleWithOperations, client *admissionv1.WebhookClientConfig,
) {
	setDefault(failure, admissionv1.Fail)
	setDefault(match, admissionv1.Equivalent)
	setDefault(namespaces, metav1.LabelSelector{})
	setDefault(objects, metav1.LabelSelector{})
	setDefault(timeout, 10)
	for i := range rules {
		setDefault(&rules[i].Scope, admissionv1.AllScopes)
	}
	if client.Service != nil {
		setDefault(&client.Service.Port, 443)
	}
}

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	setDefault(&m.MatchPolicy, admissionv1.Equivalent)
	setDefault(&m.NamespaceSelector, metav1.LabelSelector{})
	setDefault(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules,
		m.ExcludeResourceRules} {
		for i := range rules {
			setDefault(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}
