package beside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/rolestest"
)

// Roles mean the same on kube-apiserver and on our server.
func TestRoles(t *testing.T) {
	upstream := startCluster(t, cluster.Etcd).Admin
	_, ours := serve(t, build(t), "rowkeeper")
	t.Run("cases", func(t *testing.T) { rolestest.Run(t, upstream) })
	t.Run("defaults", func(t *testing.T) { compareDefaults(t, client(ours), client(upstream)) })
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			newRandomRoles(t, seed, ours, upstream).compare()
		})
	}
}

func client(config *rest.Config, as ...string) kubernetes.Interface {
	config = rest.CopyConfig(config)
	config.QPS = -1
	if len(as) > 0 {
		config.Impersonate = rest.ImpersonationConfig{UserName: as[0], Groups: as[1:]}
	}
	return kubernetes.NewForConfigOrDie(config)
}

// ofControllers begins the names of the roles of kube-controller-manager, which our server has not.
const ofControllers = "system:controller:"

// compareDefaults says which default roles and bindings differ from upstream's.
func compareDefaults(t *testing.T, ours, upstream kubernetes.Interface) {
	for _, name := range []string{"admin", "edit", "view"} { // are filled, in several steps
		eventually(t, name+" has rules", func() error {
			var rules [2][]rbacv1.PolicyRule
			for i, c := range []kubernetes.Interface{ours, upstream} {
				r, err := c.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				rules[i] = r.Rules
			}
			if ok, less := validation.Covers(rules[0], rules[1]); !ok || len(rules[1]) == 0 {
				return fmt.Errorf("it has less than upstream's: %v", less)
			}
			return nil
		})
	}
	roles, err := ours.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range roles.Items {
		known[r.Name] = true
		theirs, err := upstream.RbacV1().ClusterRoles().Get(t.Context(), r.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if ok, more := validation.Covers(theirs.Rules, r.Rules); !ok {
			t.Errorf("the role %s has more rules than upstream's: %v", r.Name, more)
		}
		if ok, less := validation.Covers(r.Rules, theirs.Rules); !ok {
			t.Errorf("the role %s has less rules than upstream's: %v", r.Name, less)
		}
		if fmt.Sprint(theirs.Labels, theirs.Annotations, theirs.AggregationRule) != fmt.Sprint(
			r.Labels, r.Annotations, r.AggregationRule) {
			t.Errorf("the role %s is marked %v %v, and upstream's %v %v", r.Name, r.Labels,
				r.Annotations, theirs.Labels, theirs.Annotations)
		}
	}
	if roles, err = upstream.RbacV1().ClusterRoles().List(t.Context(),
		metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range roles.Items {
		// Other tests write roles, too.
		if r.Labels["kubernetes.io/bootstrapping"] != "" && !known[r.Name] &&
			!strings.HasPrefix(r.Name, ofControllers) {
			t.Errorf("the role %s is missing", r.Name)
		}
	}
	bindings, err := ours.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		theirs, err := upstream.RbacV1().ClusterRoleBindings().Get(t.Context(), b.Name,
			metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		} else if fmt.Sprint(theirs.RoleRef, theirs.Subjects, theirs.Labels) != fmt.Sprint(b.RoleRef,
			b.Subjects, b.Labels) {
			t.Errorf("the binding %s is %v %v, and upstream's %v %v", b.Name, b.RoleRef, b.Subjects,
				theirs.RoleRef, theirs.Subjects)
		}
	}
}

func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			last = do()
			return last == nil, nil
		}); err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// randomRoles are roles and bindings that both servers have.
type randomRoles struct {
	*testing.T
	*rand.Rand
	configs    [2]*rest.Config // ours, upstream's
	prefix     string
	namespaces []string

	roles        []*rbacv1.Role
	clusterRoles []*rbacv1.ClusterRole
	bindings     []*rbacv1.RoleBinding
	everywhere   []*rbacv1.ClusterRoleBinding
	settled      int // how often settle was called
}

const (
	manyRoles    = 20 // of each kind, and as many bindings of each kind
	manyRequests = 1000
	manyAttempts = 600
)

// layers says how many of the ClusterRoles are in each layer. Those of a layer aggregate ones of
// the layers below, so that the rules of each are a matter of the roles alone: two that aggregate
// each other would never lose a rule.
var layers = []int{12, 5, 3}

func newRandomRoles(t *testing.T, seed uint64, ours, upstream *rest.Config) *randomRoles {
	prefix := fmt.Sprintf("random-%d-", seed)
	return &randomRoles{T: t, Rand: rand.New(rand.NewPCG(seed, 0)),
		configs: [2]*rest.Config{ours, upstream}, prefix: prefix,
		namespaces: []string{prefix + "a", prefix + "b"}}
}

func one[T any](r *randomRoles, of ...T) T { return of[r.IntN(len(of))] }

// some returns up to n of the words, at least one.
func (r *randomRoles) some(n int, of string) []string {
	words := strings.Fields(strings.ReplaceAll(of, "core", "-"))
	r.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
	words = words[:1+r.IntN(n)]
	for i, w := range words {
		if w == "-" {
			words[i] = ""
		}
	}
	return words
}

const (
	verbs     = "get list create update delete patch bind escalate impersonate *"
	groups    = "core apps rbac.authorization.k8s.io example.com *"
	resources = "pods pods/log configmaps deployments deployments/scale */scale */log roles " +
		"clusterroles rolebindings users *"
	names = "a b c"
	urls  = "/x /x/ /x/* /x* /y/z /y/* /healthz *"
)

func (r *randomRoles) rule(namespaced bool) rbacv1.PolicyRule {
	if !namespaced && r.IntN(4) == 0 {
		return rbacv1.PolicyRule{Verbs: r.some(2, verbs), NonResourceURLs: r.some(2, urls)}
	}
	rule := rbacv1.PolicyRule{Verbs: r.some(3, verbs), APIGroups: r.some(2, groups),
		Resources: r.some(3, resources)}
	if r.IntN(3) == 0 {
		rule.ResourceNames = r.some(2, names)
	}
	return rule
}

func (r *randomRoles) rules(namespaced bool) (all []rbacv1.PolicyRule) {
	for range 1 + r.IntN(3) {
		all = append(all, r.rule(namespaced))
	}
	return all
}

// part is a part of a rule that exists, which somebody may so have.
func (r *randomRoles) part(namespaced bool) rbacv1.PolicyRule {
	rules := one(r, r.roles...).Rules
	if !namespaced || r.IntN(2) == 0 {
		rules = one(r, r.clusterRoles...).Rules
	}
	if len(rules) == 0 {
		return r.rule(namespaced)
	}
	atoms := validation.BreakdownRule(one(r, rules...))
	if namespaced && len(atoms[0].NonResourceURLs) > 0 {
		return r.rule(namespaced)
	}
	return one(r, atoms...)
}

const people = 6

func (r *randomRoles) user() string  { return fmt.Sprintf("%suser-%d", r.prefix, r.IntN(people)) }
func (r *randomRoles) group() string { return fmt.Sprintf("%sgroup-%d", r.prefix, r.IntN(3)) }
func (r *randomRoles) account() string {
	return fmt.Sprintf("system:serviceaccount:%s:account-%d", one(r, r.namespaces...), r.IntN(2))
}

func (r *randomRoles) subjects(namespaced bool) (all []rbacv1.Subject) {
	for range r.IntN(4) {
		switch r.IntN(4) {
		case 0:
			all = append(all, rbacv1.Subject{Kind: "Group", Name: r.group()})
		case 1:
			s := rbacv1.Subject{Kind: "ServiceAccount", Name: fmt.Sprintf("account-%d", r.IntN(2)),
				Namespace: one(r, r.namespaces...)}
			if namespaced && r.IntN(2) == 0 {
				s.Namespace = ""
			}
			all = append(all, s)
		default:
			all = append(all, rbacv1.Subject{Kind: "User", Name: r.user()})
		}
	}
	return all
}

// ref names a role, which is missing now and then.
func (r *randomRoles) ref(namespaced bool) rbacv1.RoleRef {
	name := fmt.Sprintf("%s%d", r.prefix, r.IntN(manyRoles+2))
	if namespaced && r.IntN(2) == 0 {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
	}
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

// meta names an object. One in a namespace is in a random one.
func (r *randomRoles) meta(name any, namespaced bool) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: fmt.Sprint(r.prefix, name)}
	if namespaced {
		m.Namespace = one(r, r.namespaces...)
	}
	return m
}

// label gives a role its labels, by which others aggregate it.
func (r *randomRoles) label(role *rbacv1.ClusterRole, layer int) {
	role.Labels = map[string]string{r.prefix + "layer": strconv.Itoa(layer)}
	if r.IntN(4) > 0 {
		role.Labels[r.prefix+"color"] = one(r, "red", "green", "blue")
	}
}

// selectors selects roles of the layers below.
func (r *randomRoles) selectors(layer int) *rbacv1.AggregationRule {
	a := &rbacv1.AggregationRule{}
	for range 1 + r.IntN(3) {
		s := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: r.prefix + "layer", Operator: metav1.LabelSelectorOpIn}}}
		for below := range layer {
			s.MatchExpressions[0].Values = append(s.MatchExpressions[0].Values, strconv.Itoa(below))
		}
		color := metav1.LabelSelectorRequirement{Key: r.prefix + "color"}
		switch r.IntN(4) {
		case 0:
			s.MatchLabels = map[string]string{color.Key: r.some(1, "red green blue")[0]}
		case 1:
			color.Operator = one(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)
			s.MatchExpressions = append(s.MatchExpressions, color)
		default:
			color.Operator = one(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn)
			color.Values = r.some(2, "red green blue")
			s.MatchExpressions = append(s.MatchExpressions, color)
		}
		a.ClusterRoleSelectors = append(a.ClusterRoleSelectors, s)
	}
	return a
}

// aggregated returns the rules that a role has of others: by its selectors and by their names, each
// rule once.
func (r *randomRoles) aggregated(role *rbacv1.ClusterRole) (rules []rbacv1.PolicyRule) {
	r.Helper()
	others := slices.SortedFunc(slices.Values(r.clusterRoles), func(a, b *rbacv1.ClusterRole) int {
		return strings.Compare(a.Name, b.Name)
	})
	for i := range role.AggregationRule.ClusterRoleSelectors {
		s, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			r.Fatal(err)
		}
		for _, o := range others {
			if o == role || !s.Matches(labels.Set(o.Labels)) {
				continue
			}
			theirs := o.Rules
			if o.AggregationRule != nil {
				theirs = r.aggregated(o)
			}
			for _, rule := range theirs {
				if !slices.ContainsFunc(rules, func(has rbacv1.PolicyRule) bool {
					return equality.Semantic.DeepEqual(has, rule)
				}) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// settle waits until the servers have filled the roles that aggregate others, and decide by that.
func (r *randomRoles) settle() {
	r.Helper()
	r.settled++
	for i := range r.clusterRoles {
		if role := r.clusterRoles[i]; role.AggregationRule != nil {
			role.Rules = r.aggregated(role)
		}
	}
	last := r.clusterRoles[len(r.clusterRoles)-1]
	verb := fmt.Sprint("last-", r.settled)
	last.Rules[0].Verbs = append(last.Rules[0].Verbs, verb)
	for _, config := range r.configs {
		c := client(config)
		for _, role := range r.clusterRoles {
			if role.AggregationRule == nil {
				continue
			}
			eventually(r.T, "the aggregated rules are there", func() error {
				is, err := c.RbacV1().ClusterRoles().Get(r.Context(), role.Name, metav1.GetOptions{})
				if err == nil && !equality.Semantic.DeepEqual(is.Rules, role.Rules) {
					err = fmt.Errorf("by %v, %s has the rules %v, and should have %v",
						role.AggregationRule, role.Name, is.Rules, role.Rules)
				}
				return err
			})
		}
		// It is written after them, so that a server that decides by it knows them.
		_, err := c.RbacV1().ClusterRoles().Update(r.Context(), last, metav1.UpdateOptions{})
		if err != nil {
			r.Fatal(err)
		}
		r.allowed(c, authorizationv1.ResourceAttributes{Verb: verb, Group: rbacv1.GroupName,
			Resource: "roles"})
	}
}

// change changes what is aggregated, and removes some of it.
func (r *randomRoles) change() {
	layer := func(role *rbacv1.ClusterRole) int {
		n, err := strconv.Atoi(role.Labels[r.prefix+"layer"])
		if err != nil {
			r.Fatal(err)
		}
		return n
	}
	for range 12 {
		i := r.IntN(len(r.clusterRoles) - 1)
		role := r.clusterRoles[i]
		remove := false
		switch r.IntN(4) {
		case 0:
			r.label(role, layer(role))
		case 1:
			if role.AggregationRule != nil {
				role.AggregationRule = r.selectors(layer(role))
				break
			}
			fallthrough
		case 2:
			role.AggregationRule, role.Rules = nil, r.rules(false)
		default:
			remove = true
			r.clusterRoles = slices.Delete(r.clusterRoles, i, i+1)
		}
		for _, config := range r.configs {
			roles := client(config).RbacV1().ClusterRoles()
			var err error
			if remove {
				err = roles.Delete(r.Context(), role.Name, metav1.DeleteOptions{})
			} else {
				_, err = roles.Update(r.Context(), role, metav1.UpdateOptions{})
			}
			if err != nil {
				r.Fatal(err)
			}
		}
	}
}

// make makes roles and bindings, and at last those by which it is known that the servers know all.
func (r *randomRoles) make() {
	for layer, n := range layers {
		for range n {
			role := &rbacv1.ClusterRole{ObjectMeta: r.meta(len(r.clusterRoles), false)}
			r.label(role, layer)
			if layer == 0 {
				role.Rules = r.rules(false)
			} else {
				role.AggregationRule = r.selectors(layer)
			}
			r.clusterRoles = append(r.clusterRoles, role)
		}
	}
	for i := range manyRoles {
		r.roles = append(r.roles, &rbacv1.Role{ObjectMeta: r.meta(i, true), Rules: r.rules(true)})
		r.bindings = append(r.bindings, &rbacv1.RoleBinding{ObjectMeta: r.meta(i, true),
			RoleRef: r.ref(true), Subjects: r.subjects(true)})
		r.everywhere = append(r.everywhere, &rbacv1.ClusterRoleBinding{ObjectMeta: r.meta(i, false),
			RoleRef: r.ref(false), Subjects: r.subjects(false)})
	}
	// Everybody may write roles and bindings.
	write := []rbacv1.PolicyRule{{Verbs: []string{"create", "update", "patch"},
		APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "clusterroles",
			"rolebindings", "clusterrolebindings"}}}
	var all []rbacv1.Subject
	for i := range people {
		all = append(all, rbacv1.Subject{Kind: "User", Name: fmt.Sprintf("%suser-%d", r.prefix, i)})
	}
	last := r.meta("last", true)
	last.Namespace = r.namespaces[0]
	r.roles = append(r.roles, &rbacv1.Role{ObjectMeta: last, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"last"}, APIGroups: []string{"last"}, Resources: []string{"last"}}}})
	r.clusterRoles = append(r.clusterRoles, &rbacv1.ClusterRole{ObjectMeta: r.meta("last", false),
		Rules: write})
	r.bindings = append(r.bindings, &rbacv1.RoleBinding{ObjectMeta: last, Subjects: all,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: last.Name}})
	r.everywhere = append(r.everywhere, &rbacv1.ClusterRoleBinding{
		ObjectMeta: r.meta("last", false), Subjects: all,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: last.Name}})
}

// store writes all to a server, and waits until it decides by what is in namespaces.
func (r *randomRoles) store(c kubernetes.Interface) {
	r.Helper()
	write := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	var o metav1.CreateOptions
	for _, name := range r.namespaces {
		_, err := c.CoreV1().Namespaces().Create(r.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, o)
		write(err)
	}
	rbac := c.RbacV1()
	for i := range r.roles {
		_, err := rbac.Roles(r.roles[i].Namespace).Create(r.Context(), r.roles[i], o)
		write(err)
		_, err = rbac.ClusterRoles().Create(r.Context(), r.clusterRoles[i], o)
		write(err)
		_, err = rbac.RoleBindings(r.bindings[i].Namespace).Create(r.Context(), r.bindings[i], o)
		write(err)
		_, err = rbac.ClusterRoleBindings().Create(r.Context(), r.everywhere[i], o)
		write(err)
	}
	r.allowed(c, authorizationv1.ResourceAttributes{Verb: "last", Group: "last", Resource: "last",
		Namespace: r.namespaces[0]})
}

// allowed waits until a server knows that users may do something.
func (r *randomRoles) allowed(c kubernetes.Interface, what authorizationv1.ResourceAttributes) {
	r.Helper()
	eventually(r.T, "the roles are known", func() error {
		ok, err := review(r.Context(), c, authorizationv1.SubjectAccessReviewSpec{
			User: r.prefix + "user-0", ResourceAttributes: &what})
		if err == nil && !ok {
			err = fmt.Errorf("%+v is not allowed yet", what)
		}
		return err
	})
}

func review(ctx context.Context, c kubernetes.Interface,
	spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	answer, err := c.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

func (r *randomRoles) compare() {
	r.make()
	for _, config := range r.configs {
		r.store(client(config))
	}
	r.settle()
	r.compareDecisions()
	r.change()
	r.settle()
	r.compareDecisions()
	r.compareRules()
	r.compareAttempts()
}

// request is a random one.
func (r *randomRoles) request() authorizationv1.SubjectAccessReviewSpec {
	s := authorizationv1.SubjectAccessReviewSpec{User: one(r, r.user(), r.user(), r.account())}
	if r.IntN(3) == 0 {
		s.Groups = append(s.Groups, r.group())
	}
	if r.IntN(4) == 0 {
		s.Groups = append(s.Groups, one(r, "system:authenticated", "system:unauthenticated",
			"system:monitoring"))
	}
	verb := r.some(1, verbs)[0]
	if r.IntN(4) == 0 {
		s.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: verb,
			Path: one(r, "/x", "/x/", "/x/y", "/xy", "/y/z", "/y", "/healthz", "/healthz/ping",
				"/metrics", "/apis/apps", "/version/", "*")}
		return s
	}
	resource, sub, _ := strings.Cut(r.some(1, strings.TrimSuffix(resources, " *"))[0], "/")
	s.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: verb,
		Namespace: one(r, r.namespaces[0], r.namespaces[1], "other", ""),
		Group:     r.some(1, strings.TrimSuffix(groups, " *"))[0], Resource: resource,
		Subresource: sub, Name: one(r, "", "a", "b", "d")}
	return s
}

func (r *randomRoles) compareDecisions() {
	ours, upstream := client(r.configs[0]), client(r.configs[1])
	var group errgroup.Group
	group.SetLimit(8)
	allowed := make([]bool, manyRequests)
	for i := range manyRequests {
		request := r.request()
		group.Go(func() error {
			want, err := review(r.Context(), upstream, request)
			if err != nil {
				return err
			}
			got, err := review(r.Context(), ours, request)
			if err != nil {
				return err
			}
			if allowed[i] = want; got != want {
				r.Errorf("our server says %t, and upstream %t: %+v %+v %+v", got, want, request,
					request.ResourceAttributes, request.NonResourceAttributes)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		r.Fatal(err)
	}
	n := 0
	for _, yes := range allowed {
		if yes {
			n++
		}
	}
	r.Logf("%d of %d requests are allowed", n, manyRequests)
}

// compareRules compares what users are told of their rights.
func (r *randomRoles) compareRules() {
	for i := range people {
		var told [2][]string
		for j, config := range r.configs {
			c := client(config, fmt.Sprintf("%suser-%d", r.prefix, i), r.prefix+"group-0")
			answer, err := c.AuthorizationV1().SelfSubjectRulesReviews().Create(r.Context(),
				&authorizationv1.SelfSubjectRulesReview{
					Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: r.namespaces[0]}},
				metav1.CreateOptions{})
			if err != nil {
				r.Fatal(err)
			}
			for _, rule := range answer.Status.ResourceRules {
				told[j] = append(told[j], fmt.Sprint(rule.Verbs, rule.APIGroups, rule.Resources,
					rule.ResourceNames))
			}
			for _, rule := range answer.Status.NonResourceRules {
				told[j] = append(told[j], fmt.Sprint(rule.Verbs, rule.NonResourceURLs))
			}
			told[j] = append(told[j], fmt.Sprint("incomplete: ", answer.Status.Incomplete))
			slices.Sort(told[j])
		}
		if !slices.Equal(told[0], told[1]) {
			r.Errorf("user %d is told\n%s\nand by upstream\n%s", i, strings.Join(told[0], "\n"),
				strings.Join(told[1], "\n"))
		}
	}
}

// attempt is a random one to give rights away, with what it is about.
func (r *randomRoles) attempt() (what any, do func(kubernetes.Interface) error) {
	ctx, dry := r.Context(), []string{metav1.DryRunAll}
	create, update := metav1.CreateOptions{DryRun: dry}, metav1.UpdateOptions{DryRun: dry}
	// more are rules that the user has, often.
	more := func(namespaced bool) (rules []rbacv1.PolicyRule) {
		for range r.IntN(3) {
			rules = append(rules, r.part(namespaced))
		}
		if r.IntN(8) == 0 {
			rules = append(rules, r.rule(namespaced))
		}
		return rules
	}
	switch r.IntN(8) {
	case 0:
		o := &rbacv1.Role{ObjectMeta: r.meta("new", true), Rules: more(true)}
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().Roles(o.Namespace).Create(ctx, o, create)
			return err
		}
	case 1:
		o := &rbacv1.ClusterRole{ObjectMeta: r.meta("new", false), Rules: more(false)}
		if r.IntN(4) == 0 {
			o.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
				{MatchLabels: map[string]string{"none": "true"}}}}
		}
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().ClusterRoles().Create(ctx, o, create)
			return err
		}
	case 2:
		o := one(r, r.roles...).DeepCopy()
		o.Rules = more(true)
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().Roles(o.Namespace).Update(ctx, o, update)
			return err
		}
	case 3:
		o := one(r, r.clusterRoles...).DeepCopy()
		o.Labels = map[string]string{"changed": "yes"}
		if r.IntN(2) == 0 {
			o.Rules = more(false)
		}
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().ClusterRoles().Update(ctx, o, update)
			return err
		}
	case 4, 5:
		o := &rbacv1.RoleBinding{ObjectMeta: r.meta("new", true), RoleRef: r.ref(true),
			Subjects: r.subjects(true)}
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, create)
			return err
		}
	case 6:
		o := &rbacv1.ClusterRoleBinding{ObjectMeta: r.meta("new", false), RoleRef: r.ref(false),
			Subjects: r.subjects(false)}
		return o, func(c kubernetes.Interface) error {
			_, err := c.RbacV1().ClusterRoleBindings().Create(ctx, o, create)
			return err
		}
	}
	o := one(r, r.bindings...).DeepCopy()
	o.Subjects = r.subjects(true)
	if r.IntN(4) == 0 {
		o.RoleRef = r.ref(true)
	}
	return o, func(c kubernetes.Interface) error {
		_, err := c.RbacV1().RoleBindings(o.Namespace).Update(ctx, o, update)
		return err
	}
}

// outcome is what both servers should answer. The words of messages are their own.
func outcome(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Sprint(err)
	}
	s := status.Status()
	text := fmt.Sprint(s.Code, " ", s.Reason)
	if s.Details != nil && s.Reason == metav1.StatusReasonInvalid {
		for _, c := range s.Details.Causes {
			text += fmt.Sprint(" ", c.Type, " ", c.Field)
		}
	}
	return text
}

func (r *randomRoles) compareAttempts() {
	counts := map[string]int{}
	for range manyAttempts {
		as := []string{r.user(), r.group()}
		what, do := r.attempt()
		got, want := outcome(do(client(r.configs[0], as...))), outcome(do(client(r.configs[1],
			as...)))
		if counts[want]++; got != want {
			r.Errorf("our server answers %q, and upstream %q, to %s with %+v", got, want, as, what)
		}
	}
	r.Logf("the answers to attempts: %v", counts)
}
