package access

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Reviews that mean nothing are refused, and say why.
func TestChecks(t *testing.T) {
	resource := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pipelines",
		Namespace: "a"}
	selecting := func(f *authorizationv1.FieldSelectorAttributes,
		l *authorizationv1.LabelSelectorAttributes) *authorizationv1.ResourceAttributes {
		r := resource.DeepCopy()
		r.FieldSelector, r.LabelSelector = f, l
		return r
	}
	path := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	in := func(namespace string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace} }
	managed := metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	type spec = authorizationv1.SubjectAccessReviewSpec
	ctx := request.WithNamespace(t.Context(), "a")
	subject := func(m metav1.ObjectMeta, s spec) error {
		return checkSubject(ctx, &authorizationv1.SubjectAccessReview{ObjectMeta: m, Spec: s})
	}
	local := func(m metav1.ObjectMeta, s spec) error {
		return checkLocal(ctx, &authorizationv1.LocalSubjectAccessReview{ObjectMeta: m, Spec: s})
	}
	self := func(m metav1.ObjectMeta, s authorizationv1.SelfSubjectAccessReviewSpec) error {
		return checkSelf(ctx, &authorizationv1.SelfSubjectAccessReview{ObjectMeta: m, Spec: s})
	}
	type selfSpec = authorizationv1.SelfSubjectAccessReviewSpec
	none := metav1.ObjectMeta{}
	for name, test := range map[string]struct {
		err  error
		want string // "" is none
	}{
		"a user and a resource": {subject(none, spec{User: "u", ResourceAttributes: resource}), ""},
		"a group and a path": {subject(none,
			spec{Groups: []string{"g"}, NonResourceAttributes: path}), ""},
		"managed fields": {subject(managed, spec{User: "u", NonResourceAttributes: path}), ""},
		"nobody": {subject(none, spec{ResourceAttributes: resource}),
			"spec.user: Invalid value: \"\": at least one of user or group"},
		"nothing": {subject(none, spec{User: "u"}), "spec.resourceAttributes: Invalid value"},
		"both": {subject(none, spec{User: "u", ResourceAttributes: resource,
			NonResourceAttributes: path}), "cannot be specified in combination"},
		"a name": {subject(metav1.ObjectMeta{Name: "x"},
			spec{User: "u", NonResourceAttributes: path}), "must be empty"},
		"two forms of a selector": {subject(none, spec{User: "u", ResourceAttributes: selecting(
			&authorizationv1.FieldSelectorAttributes{RawSelector: "a=b",
				Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "Exists"}}},
			nil)}), "spec.resourceAttributes.fieldSelector.rawSelector"},
		"no form of a selector": {subject(none, spec{User: "u", ResourceAttributes: selecting(nil,
			&authorizationv1.LabelSelectorAttributes{})}),
			"spec.resourceAttributes.labelSelector.requirements: Required"},
		"an operator of later versions": {subject(none, spec{User: "u",
			ResourceAttributes: selecting(nil, &authorizationv1.LabelSelectorAttributes{
				Requirements: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Later"}}})}),
			""},
		"in a namespace": {local(in("a"), spec{User: "u", ResourceAttributes: resource}), ""},
		"in another namespace": {local(in("b"), spec{User: "u", ResourceAttributes: resource}),
			"must match metadata.namespace"},
		"a path in a namespace": {local(in("a"), spec{User: "u", NonResourceAttributes: path}),
			"disallowed on this kind of request"},
		"one's own":              {self(none, selfSpec{ResourceAttributes: resource}), ""},
		"one's own, and nothing": {self(none, selfSpec{}), "exactly one of"},
		"rules of no namespace": {checkRules(ctx, &authorizationv1.SelfSubjectRulesReview{}),
			"no namespace"},
		"no token": {checkToken(ctx, &authenticationv1.TokenReview{}), "token is required"},
	} {
		if test.want == "" && test.err != nil ||
			test.want != "" && (test.err == nil || !strings.Contains(test.err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, test.err, test.want)
		}
	}
}

// An authorizer is asked for what the review says, without the selectors that cannot be read.
func TestDecide(t *testing.T) {
	var asked authorizer.AttributesRecord
	r := subjectReviews{authorizer.AuthorizerFunc(func(_ context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		asked = a.(authorizer.AttributesRecord)
		return authorizer.DecisionDeny, "so it is", errors.New("half blind")
	})}
	got := r.decide(t.Context(), subjectOf(authorizationv1.SubjectAccessReviewSpec{User: "jane",
		Groups: []string{"dev"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}}}),
		&authorizationv1.ResourceAttributes{Verb: "list", Resource: "pipelines", Subresource: "run",
			FieldSelector: &authorizationv1.FieldSelectorAttributes{
				Requirements: []metav1.FieldSelectorRequirement{
					{Key: "metadata.name", Operator: "In", Values: []string{"x"}},
					{Key: "status", Operator: "Exists"}}},
			LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "a in (b"}}, nil)
	want := "half blind; spec.resourceAttributes.fieldSelector partially ignored due to parse " +
		"error; spec.resourceAttributes.labelSelector ignored due to parse error"
	if got.Allowed || !got.Denied || got.Reason != "so it is" || got.EvaluationError != want {
		t.Errorf("the answer is %+v, want the error %q", got, want)
	}
	if asked.GetUser().GetName() != "jane" || asked.GetUser().GetExtra()["k"][0] != "v" ||
		asked.APIVersion != "*" || asked.Subresource != "run" || !asked.ResourceRequest ||
		len(asked.FieldSelectorRequirements) != 1 || len(asked.LabelSelectorRequirements) != 0 {
		t.Errorf("the authorizer was asked for %+v", asked)
	}
}

// A token is what the authenticator says, for the audiences that were asked for.
func TestTokenReview(t *testing.T) {
	r := tokenReviews{authenticator: authenticator.RequestFunc(
		func(q *http.Request) (*authenticator.Response, bool, error) {
			switch q.Header.Get("Authorization") {
			case "Bearer good":
				return &authenticator.Response{Audiences: []string{"api"}, User: &user.DefaultInfo{
					Name: "jane", Groups: []string{"dev"}}}, true, nil
			case "Bearer bad":
				return nil, false, errors.New("it has expired")
			case "Bearer  ":
				return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous,
					Groups: []string{user.AllUnauthenticated}}}, q.URL.Path == "", nil
			}
			return nil, false, nil
		})}
	answer := func(token string, audiences ...string) (*authenticationv1.TokenReview, error) {
		return r.answer(t.Context(), nil, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}})
	}
	if got, err := answer("good", "api", "other"); err != nil || !got.Status.Authenticated ||
		got.Status.User.Username != "jane" || len(got.Status.Audiences) != 1 {
		t.Errorf("a good token: %+v, %v", got, err)
	}
	if got, err := answer("good", "other"); err == nil {
		t.Errorf("a token for others is accepted: %+v", got)
	}
	if got, err := answer("bad"); err != nil || got.Status.Authenticated ||
		got.Status.Error != "it has expired" {
		t.Errorf("a bad token: %+v, %v", got, err)
	}
	if got, err := answer(" "); err != nil || got.Status.Authenticated ||
		got.Status.User.Username != "" {
		t.Errorf("no token, where requests may be anonymous: %+v, %v", got, err)
	}
	if got, err := answer("unknown"); err != nil || got.Status.Authenticated ||
		got.Status.Error != "" {
		t.Errorf("an unknown token: %+v, %v", got, err)
	}
}
