package crdstest_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/internal/reserved"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// withRoles is a server with definitions and roles.
func withRoles(c *genericapiserver.RecommendedConfig,
	o definitions.Options) (definitions.Extend, error) {
	o.Roles = true
	return crds.Prepare(c, o)
}

// A server whose default roles cannot be written, since a policy refuses them, becomes ready
// without. It goes on trying, and writes them when it may.
func TestDefaultRolesRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("the server waits for ten seconds")
	}
	o := testkit.Options{Dir: t.TempDir(), Definitions: withRoles}
	s := exampletest.Start(t, o)
	client := kubernetes.NewForConfigOrDie(s.Config)
	fail := admissionregistrationv1.Fail
	meta := metav1.ObjectMeta{Name: "no-roles"}
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta,
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
						RuleWithOperations: admissionregistrationv1.RuleWithOperations{
							Operations: []admissionregistrationv1.OperationType{
								admissionregistrationv1.Create},
							Rule: admissionregistrationv1.Rule{APIGroups: []string{rbacv1.GroupName},
								APIVersions: []string{"*"}, Resources: []string{"clusterroles"}},
						}}}},
				Validations: []admissionregistrationv1.Validation{{Expression: "false"}}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bindings := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	if _, err := bindings.Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta,
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: meta.Name,
				ValidationActions: []admissionregistrationv1.ValidationAction{
					admissionregistrationv1.Deny}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.RbacV1().ClusterRoles().Delete(t.Context(), "view",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Stop()

	s = exampletest.Start(t, o)
	client = kubernetes.NewForConfigOrDie(s.Config)
	if _, err := client.RbacV1().ClusterRoles().Get(t.Context(), "view",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a role that a policy refuses: %v", err)
	}
	if err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(
		t.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the role is written", func(ctx context.Context) (bool, error) {
		_, err := client.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
		return err == nil, nil
	})
}

// A definition cannot take the place of roles, or of what gives requests priorities, in no version,
// whether or not the server serves them. Nor has it the server's locks and keys as its objects.
func TestDefinitionInReservedGroup(t *testing.T) {
	for name, extension := range map[string]definitions.Prepare{"with roles": withRoles,
		"without": crds.Prepare} {
		s := exampletest.Start(t, testkit.Options{Definitions: extension})
		client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().
			CustomResourceDefinitions()
		for group, kind := range map[string]string{rbacv1.GroupName: "ClusterRole",
			"flowcontrol.apiserver.k8s.io": "FlowSchema", reserved.Group: "Lock"} {
			plural := strings.ToLower(kind) + "s"
			_, err := client.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group,
					Annotations: map[string]string{
						apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, a test"}},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group,
					Scope: apiextensionsv1.ClusterScoped,
					Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
					Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v2",
						Served: true, Storage: true,
						Schema: &apiextensionsv1.CustomResourceValidation{
							OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}},
			}, metav1.CreateOptions{})
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s, a definition of %s: %v", name, plural, err)
			}
		}
	}
}

// groupRules tells the members of a group that they have a rule.
type groupRules struct {
	group string
	rule  rbacv1.PolicyRule
}

func (g groupRules) RulesFor(_ context.Context, u user.Info, _ string) (
	[]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if !slices.Contains(u.GetGroups(), g.group) {
		return nil, nil, false, nil
	}
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: g.rule.Verbs,
		APIGroups: g.rule.APIGroups, Resources: g.rule.Resources}}, nil, false, nil
}

// Roles give rights besides those that an author's authorizer gives.
func TestRolesBesideOwnRights(t *testing.T) {
	read := rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""},
		Resources: []string{"configmaps"}}
	write := rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{rbacv1.GroupName},
		Resources: []string{"clusterroles"}}
	var resolver authorizer.RuleResolver
	s := exampletest.Start(t, testkit.Options{Definitions: func(c *genericapiserver.RecommendedConfig,
		o definitions.Options) (definitions.Extend, error) {
		c.RuleResolver = groupRules{"own", read}
		extend, err := withRoles(c, o)
		resolver = c.RuleResolver
		return extend, err
	}})
	client := func(name string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
		return kubernetes.NewForConfigOrDie(s.ConfigFor(testkit.User{Name: name, Rules: rules}))
	}
	list := func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	jane, joe := client("jane", read, write), client("joe")
	if err := list(t.Context(), jane); err != nil {
		t.Errorf("jane, who has the right from the author: %v", err)
	}
	if err := list(t.Context(), joe); !apierrors.IsForbidden(err) {
		t.Errorf("joe, who has no right: %v", err)
	}

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{read}}
	if _, err := jane.RbacV1().ClusterRoles().Create(t.Context(), role,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("jane gives away what no role gives her: %v", err)
	}
	admin := kubernetes.NewForConfigOrDie(s.Config).RbacV1()
	if _, err := admin.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "joe"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "joe has the right by his role", func(ctx context.Context) (bool, error) {
		return list(ctx, joe) == nil, nil
	})
	rules, _, incomplete, err := resolver.RulesFor(t.Context(), &user.DefaultInfo{Name: "joe",
		Groups: []string{"own"}}, "default")
	if len(rules) != 2 || incomplete || err != nil {
		t.Errorf("joe is told %v, %t, %v", rules, incomplete, err)
	}
}
