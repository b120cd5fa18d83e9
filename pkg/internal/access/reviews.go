package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Scheme knows the reviews. They have no form of their own inside: the hub of each group is the
// version v1 itself.
var Scheme = runtime.NewScheme()

var (
	codecs         = serializer.NewCodecFactory(Scheme)
	parameterCodec = runtime.NewParameterCodec(Scheme)
)

func init() {
	for version, types := range map[schema.GroupVersion][]runtime.Object{
		authorizationv1.SchemeGroupVersion: {
			&authorizationv1.SubjectAccessReview{}, &authorizationv1.LocalSubjectAccessReview{},
			&authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SelfSubjectRulesReview{},
		},
		authenticationv1.SchemeGroupVersion: {
			&authenticationv1.SelfSubjectReview{}, &authenticationv1.TokenReview{},
		},
	} {
		internal := schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}
		Scheme.AddKnownTypes(version, types...)
		Scheme.AddKnownTypes(internal, types...)
		metav1.AddToGroupVersion(Scheme, version)
		utilruntime.Must(Scheme.SetVersionPriority(version))
	}
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(Scheme, unversioned) // the options of requests
	Scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{},
		&metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}

// Install makes a server answer reviews, from the authorizer, the resolver of rules and the
// authenticator of the configuration that the server was made from.
func Install(server *genericapiserver.GenericAPIServer, c *genericapiserver.Config) error {
	may := subjectReviews{c.Authorization.Authorizer}
	who := tokenReviews{c.Authentication.Authenticator, c.Authentication.APIAudiences}
	groups := []*genericapiserver.APIGroupInfo{
		group(authorizationv1.SchemeGroupVersion, map[string]rest.Storage{
			"subjectaccessreviews": &review[*authorizationv1.SubjectAccessReview]{
				singular: "subjectaccessreview", check: checkSubject, answer: may.subject,
				new: func() *authorizationv1.SubjectAccessReview {
					return &authorizationv1.SubjectAccessReview{}
				}},
			"localsubjectaccessreviews": &review[*authorizationv1.LocalSubjectAccessReview]{
				singular: "localsubjectaccessreview", namespaced: true, check: checkLocal,
				answer: may.local,
				new: func() *authorizationv1.LocalSubjectAccessReview {
					return &authorizationv1.LocalSubjectAccessReview{}
				}},
			"selfsubjectaccessreviews": &review[*authorizationv1.SelfSubjectAccessReview]{
				singular: "selfsubjectaccessreview", check: checkSelf, answer: may.self,
				new: func() *authorizationv1.SelfSubjectAccessReview {
					return &authorizationv1.SelfSubjectAccessReview{}
				}},
			"selfsubjectrulesreviews": &review[*authorizationv1.SelfSubjectRulesReview]{
				singular: "selfsubjectrulesreview", check: checkRules,
				answer: rulesReviews{c.RuleResolver}.answer,
				new: func() *authorizationv1.SelfSubjectRulesReview {
					return &authorizationv1.SelfSubjectRulesReview{}
				}},
		}),
		group(authenticationv1.SchemeGroupVersion, map[string]rest.Storage{
			"selfsubjectreviews": &review[*authenticationv1.SelfSubjectReview]{
				singular: "selfsubjectreview", answer: self,
				new: func() *authenticationv1.SelfSubjectReview {
					return &authenticationv1.SelfSubjectReview{}
				}},
			"tokenreviews": &review[*authenticationv1.TokenReview]{
				singular: "tokenreview", check: checkToken, answer: who.answer,
				new: func() *authenticationv1.TokenReview {
					return &authenticationv1.TokenReview{}
				}},
		}),
	}
	if err := server.InstallAPIGroups(groups...); err != nil {
		return fmt.Errorf("cannot install the reviews: %w", err)
	}
	return nil
}

func group(version schema.GroupVersion,
	resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(version.Group, Scheme, parameterCodec, codecs)
	info.VersionedResourcesStorageMap[version.Version] = resources
	return &info
}

// review is a resource whose objects are questions, which are answered and forgotten. Admission
// comes between check, which may be nil, and answer.
type review[T runtime.Object] struct {
	singular   string
	namespaced bool
	new        func() T
	check      func(context.Context, T) error
	answer     func(context.Context, user.Info, T) (T, error)
}

var (
	_ rest.Scoper               = &review[runtime.Object]{}
	_ rest.SingularNameProvider = &review[runtime.Object]{}
)

func (r *review[T]) New() runtime.Object     { return r.new() }
func (r *review[T]) Destroy()                {}
func (r *review[T]) NamespaceScoped() bool   { return r.namespaced }
func (r *review[T]) GetSingularName() string { return r.singular }

// Create answers a review.
func (r *review[T]) Create(ctx context.Context, obj runtime.Object,
	admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	asked, ok := obj.(T)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a %s is a %T", r.singular, obj))
	}
	asking, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if r.check != nil {
		if err := r.check(ctx, asked); err != nil {
			return nil, err
		}
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return r.answer(ctx, asking, asked)
}

// subjectReviews tell what the authorizer says.
type subjectReviews struct{ authorizer authorizer.Authorizer }

func (r subjectReviews) subject(ctx context.Context, _ user.Info,
	s *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	s.Status = r.decide(ctx, subjectOf(s.Spec), s.Spec.ResourceAttributes,
		s.Spec.NonResourceAttributes)
	return s, nil
}

func (r subjectReviews) local(ctx context.Context, _ user.Info,
	s *authorizationv1.LocalSubjectAccessReview) (*authorizationv1.LocalSubjectAccessReview, error) {
	s.Status = r.decide(ctx, subjectOf(s.Spec), s.Spec.ResourceAttributes, nil)
	return s, nil
}

func (r subjectReviews) self(ctx context.Context, asking user.Info,
	s *authorizationv1.SelfSubjectAccessReview) (*authorizationv1.SelfSubjectAccessReview, error) {
	s.Status = r.decide(ctx, asking, s.Spec.ResourceAttributes, s.Spec.NonResourceAttributes)
	return s, nil
}

func subjectOf(s authorizationv1.SubjectAccessReviewSpec) user.Info {
	info := &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: s.Groups}
	for key, values := range s.Extra {
		if info.Extra == nil {
			info.Extra = map[string][]string{}
		}
		info.Extra[key] = values
	}
	return info
}

// decide returns the decision on a request, of which one kind of attributes is given.
func (r subjectReviews) decide(ctx context.Context, of user.Info,
	resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := authorizer.AttributesRecord{User: of}
	if resource != nil {
		setResource(&a, resource)
	} else {
		a.Verb, a.Path = path.Verb, path.Path
	}
	decision, reason, err := r.authorizer.Authorize(ctx, a)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: evaluationError(err, a),
	}
}

// rulesReviews tell what the resolver of rules says.
type rulesReviews struct{ resolver authorizer.RuleResolver }

func (r rulesReviews) answer(ctx context.Context, asking user.Info,
	s *authorizationv1.SelfSubjectRulesReview) (*authorizationv1.SelfSubjectRulesReview, error) {
	resources, paths, incomplete, err := r.resolver.RulesFor(ctx, asking, s.Spec.Namespace)
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
		Incomplete:       incomplete,
	}
	for _, i := range resources {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: i.GetVerbs(), APIGroups: i.GetAPIGroups(), Resources: i.GetResources(),
			ResourceNames: i.GetResourceNames()})
	}
	for _, i := range paths {
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: i.GetVerbs(), NonResourceURLs: i.GetNonResourceURLs()})
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return &authorizationv1.SelfSubjectRulesReview{Status: status}, nil
}

func checkRules(_ context.Context, s *authorizationv1.SelfSubjectRulesReview) error {
	if s.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	return nil
}

// self tells who asks.
func self(_ context.Context, asking user.Info,
	_ *authenticationv1.SelfSubjectReview) (*authenticationv1.SelfSubjectReview, error) {
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now())},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(asking)},
	}, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(),
		Groups: u.GetGroups(), Extra: map[string]authenticationv1.ExtraValue{}}
	for key, values := range u.GetExtra() {
		info.Extra[key] = values
	}
	return info
}

// tokenReviews tell whom the authenticator knows by a token.
type tokenReviews struct {
	authenticator authenticator.Request
	audiences     authenticator.Audiences
}

func checkToken(_ context.Context, r *authenticationv1.TokenReview) error {
	if r.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	return nil
}

func (r tokenReviews) answer(ctx context.Context, _ user.Info,
	t *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	// A request that has nothing but the token.
	asked := &http.Request{URL: &url.URL{},
		Header: http.Header{"Authorization": {"Bearer " + t.Spec.Token}}}
	wanted := authenticator.Audiences(t.Spec.Audiences)
	if len(wanted) == 0 {
		wanted = r.audiences
	}
	if len(wanted) > 0 {
		ctx = authenticator.WithAudiences(ctx, wanted)
	}
	found, ok, err := r.authenticator.AuthenticateRequest(asked.WithContext(ctx))
	if found != nil && found.User != nil &&
		slices.Contains(found.User.GetGroups(), user.AllUnauthenticated) {
		// The request had no token: that of the review was a space, say.
		found, ok = nil, false
	}
	t.Status.Authenticated = ok
	if err != nil {
		t.Status.Error = err.Error()
	}
	if found == nil {
		return t, nil
	}
	if len(wanted) > 0 && len(wanted.Intersect(found.Audiences)) == 0 {
		return nil, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	if found.User != nil {
		t.Status.User, t.Status.Audiences = userInfo(found.User), found.Audiences
	}
	return t, nil
}

var specPath = field.NewPath("spec")

func checkSubject(_ context.Context, s *authorizationv1.SubjectAccessReview) error {
	errs := append(checkSpec(s.Spec), checkMeta(s.ObjectMeta, "must be empty")...)
	return invalid("SubjectAccessReview", errs)
}

func checkSelf(_ context.Context, s *authorizationv1.SelfSubjectAccessReview) error {
	errs := checkAttributes(s.Spec.ResourceAttributes, s.Spec.NonResourceAttributes)
	return invalid("SelfSubjectAccessReview",
		append(errs, checkMeta(s.ObjectMeta, "must be empty")...))
}

func checkLocal(ctx context.Context, s *authorizationv1.LocalSubjectAccessReview) error {
	errs, rest := checkSpec(s.Spec), s.ObjectMeta
	rest.Namespace = ""
	errs = append(errs, checkMeta(rest, "must be empty except for namespace")...)
	if a := s.Spec.ResourceAttributes; a != nil && a.Namespace != s.Namespace {
		errs = append(errs, field.Invalid(specPath.Child("resourceAttributes", "namespace"),
			a.Namespace, "must match metadata.namespace"))
	}
	if a := s.Spec.NonResourceAttributes; a != nil {
		errs = append(errs, field.Invalid(specPath.Child("nonResourceAttributes"), a,
			"disallowed on this kind of request"))
	}
	if err := invalid("LocalSubjectAccessReview", errs); err != nil {
		return err
	}
	if in := request.NamespaceValue(ctx); in == "" || in != s.Namespace {
		return apierrors.NewBadRequest("the namespace of the review must be that of the request")
	}
	return nil
}

func invalid(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), "",
		errs)
}
