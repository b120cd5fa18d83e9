package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// asked is a webhook that answers by the name of the user.
type asked struct {
	*httptest.Server
	mu    sync.Mutex
	users []string
}

func startWebhook(t *testing.T) *asked {
	t.Helper()
	w := &asked{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		w.users = append(w.users, review.Spec.User)
		w.mu.Unlock()
		switch review.Spec.User {
		case "allowed":
			review.Status.Allowed = true
		case "denied":
			review.Status.Denied = true
		case "broken":
			http.Error(out, "out of order", http.StatusBadRequest)
			return
		}
		out.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(out).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(w.Close)
	return w
}

// take returns the users that were asked for since the last call.
func (w *asked) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	users := strings.Join(w.users, " ")
	w.users = nil
	return users
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig writes one for a webhook, and returns its name.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	write(t, name, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: it,
		contexts: [{name: it, context: {cluster: it, user: it}}], users: [{name: it, user: {}}],
		clusters: [{name: it, cluster: {server: %q}}]}`, url))
	return name
}

// config is a configuration with these authorizers.
func config(authorizers ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n" +
		"authorizers: [" + strings.Join(authorizers, ", ") + "]\n"
}

// webhookNamed is an authorizer that asks, with settings in place of the usual ones.
func webhookNamed(name, kubeconfig, onError, more string) string {
	return fmt.Sprintf(`{type: Webhook, name: %s, webhook: {timeout: 3s, failurePolicy: %s,
		subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1,
		cacheAuthorizedRequests: false, cacheUnauthorizedRequests: false,
		connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}%s}}`, name, onError, kubeconfig,
		more)
}

const roles = "{type: RBAC, name: roles}"

// stored is roles that allow one user, and have no opinion on others.
type stored struct{}

func (stored) Authorize(_ context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "bound" || a.GetUser().GetName() == "denied" {
		return authorizer.DecisionAllow, "by a role", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (stored) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo,
	[]authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"}}},
		nil, false, nil
}

// file is a file with this content.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "authorization.yaml")
	write(t, name, content)
	return name
}

// may tells what is decided about a user.
func may(a authorizer.Authorizer, name string, groups ...string) string {
	decision, _, err := a.Authorize(context.Background(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get", Namespace: "ns",
		APIGroup: "ci.example.com", APIVersion: "v1", Resource: "pipelines", ResourceRequest: true})
	answer := map[authorizer.Decision]string{authorizer.DecisionAllow: "allow",
		authorizer.DecisionDeny: "deny", authorizer.DecisionNoOpinion: "no opinion"}[decision]
	if err != nil {
		answer += ", and an error"
	}
	return answer
}

// TestChain: the first who allows or denies decides.
func TestChain(t *testing.T) {
	w := startWebhook(t)
	to := kubeconfig(t, w.URL)
	const alone = `, matchConditions: [{expression: "request.user != 'bound'"}]`
	for name, tc := range map[string]struct {
		content string
		want    map[string]string // by user
		asked   map[string]string // whom the webhook was asked for, if not the user once
	}{
		"the webhook comes first": {config(webhookNamed("hook", to, "Deny", ""), roles),
			map[string]string{"allowed": "allow", "denied": "deny", "bound": "allow",
				"other": "no opinion", "broken": "deny, and an error"}, nil},
		"roles come first": {config(roles, webhookNamed("hook", to, "Deny", "")),
			map[string]string{"allowed": "allow", "denied": "allow", "bound": "allow"},
			map[string]string{"denied": "", "bound": ""}},
		"a webhook that fails is left out": {config(webhookNamed("hook", to, "NoOpinion", ""),
			"{type: AlwaysAllow, name: others}"),
			map[string]string{"broken": "allow", "denied": "deny", "other": "allow"}, nil},
		"conditions": {config(webhookNamed("hook", to, "Deny", alone), roles),
			map[string]string{"bound": "allow", "other": "no opinion"},
			map[string]string{"bound": ""}},
		"two webhooks": {config(webhookNamed("one", to, "Deny", alone),
			webhookNamed("two", to, "Deny", "")),
			map[string]string{"bound": "no opinion", "other": "no opinion", "allowed": "allow"},
			map[string]string{"other": "other other"}},
		"nobody": {config("{type: AlwaysDeny, name: nobody}"),
			map[string]string{"allowed": "no opinion"}, map[string]string{"allowed": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(file(t, tc.content), true)
			if err != nil {
				t.Fatal(err)
			}
			a, _ := f.With(stored{})
			for u, want := range tc.want {
				if got := may(a, u); got != want {
					t.Errorf("%s: %s, want %s", u, got, want)
				}
				ask, other := tc.asked[u]
				if !other {
					ask = u
				}
				if got := w.take(); got != ask {
					t.Errorf("for %s the webhook was asked for %q, want %q", u, got, ask)
				}
			}
			if got := may(a, "denied", user.SystemPrivilegedGroup); got != "allow" || w.take() != "" {
				t.Errorf("of system:masters: %s", got)
			}
		})
	}
}

// TestRules: what roles give is told. Where a webhook may decide as well, that is not all.
func TestRules(t *testing.T) {
	w := startWebhook(t)
	for content, want := range map[string]bool{config(roles): false,
		config(roles, webhookNamed("hook", kubeconfig(t, w.URL), "Deny", "")): true} {
		f, err := Open(file(t, content), true)
		if err != nil {
			t.Fatal(err)
		}
		_, resolver := f.With(stored{})
		rules, _, incomplete, _ := resolver.RulesFor(t.Context(), &user.DefaultInfo{}, "ns")
		if len(rules) != 1 || incomplete != want {
			t.Errorf("%d rules, incomplete: %t, want %t", len(rules), incomplete, want)
		}
	}
}

// TestChange: a changed file takes effect as a whole, or not at all.
func TestChange(t *testing.T) {
	w := startWebhook(t)
	to := kubeconfig(t, w.URL)
	name := file(t, config(roles))
	f, err := Open(name, true)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := f.With(stored{})
	look := func() (bool, error) { return f.file.Look(t.Context(), f.use) }
	for what, content := range wrong(t, to) {
		write(t, name, content.file)
		if changed, err := look(); changed || err == nil || !strings.Contains(err.Error(),
			content.says) {
			t.Errorf("%s: changed: %t, %v", what, changed, err)
		}
	}
	if got := may(a, "allowed"); got != "no opinion" {
		t.Errorf("before the change: %s", got)
	}
	write(t, name, config(webhookNamed("hook", to, "Deny", ""), roles))
	if changed, err := look(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if got := may(a, "allowed"); got != "allow" {
		t.Errorf("after the change: %s", got)
	}
	if changed, err := look(); changed || err != nil {
		t.Errorf("without a change: %t, %v", changed, err)
	}
}

type bad struct{ file, says string }

// wrong are files that are refused, with what the errors must say.
func wrong(t *testing.T, to string) map[string]bad {
	t.Helper()
	return map[string]bad{
		"empty":    {"", "is empty"},
		"no YAML":  {"{", "is not an AuthorizationConfiguration"},
		"a typo":   {strings.Replace(config(roles), "name", "nome", 1), "nome"},
		"no one":   {config(), "at least one"},
		"twice":    {config(roles, roles), "Duplicate value"},
		"a node":   {config("{type: Node, name: node}"), `"AlwaysAllow", "AlwaysDeny", "RBAC", "Webhook"`},
		"no hook":  {config("{type: Webhook, name: hook}"), "authorizers[0].webhook: Required value"},
		"no file":  {config(webhookNamed("hook", "/no/such/file", "Deny", "")), "/no/such/file"},
		"a policy": {config(webhookNamed("hook", to, "Perhaps", "")), `"Perhaps"`},
		"no expression": {config(webhookNamed("hook", to, "Deny",
			`, matchConditions: [{expression: "request.nobody"}]`)), "nobody"},
		"no kubeconfig": {config(webhookNamed("hook", file(t, "{"), "Deny", "")), "the webhook hook"},
		"no cluster": {config(strings.Replace(webhookNamed("hook", to, "Deny", ""),
			"type: KubeConfigFile, kubeConfigFile: "+fmt.Sprintf("%q", to), "type: InClusterConfig", 1)),
			"the webhook hook"},
		"other kind": {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n",
			"AuthenticationConfiguration"},
	}
}

// TestOpen: a file that cannot be used is one error.
func TestOpen(t *testing.T) {
	for what, content := range wrong(t, kubeconfig(t, "http://127.0.0.1:1")) {
		_, err := Open(file(t, content.file), true)
		if err == nil || !strings.Contains(err.Error(), content.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), true); err == nil ||
		!strings.Contains(err.Error(), "cannot read the authorization configuration") {
		t.Errorf("no file: %v", err)
	}
	if _, err := Open(file(t, config(roles)), false); err == nil ||
		!strings.Contains(err.Error(), "--enable-crds") {
		t.Errorf("roles that are not served: %v", err)
	}
}
