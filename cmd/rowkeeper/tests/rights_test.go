package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/signintest"
)

// A user with a certificate may find out what is served, who they are and what they may do, and
// nothing else. The administrator may do everything, and ask for others.
func TestRights(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		no   string // how a refusal begins; roles give no reason
	}{"types": {nil, "no - "}, "crds": {[]string{"--enable-crds"}, "no\n"}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, t.TempDir(), c.args...)
			file := s.userFile(t, "jane", "dev")
			jane := func(args ...string) result {
				return s.kubectl(t, "", append([]string{"--kubeconfig", file}, args...)...)
			}

			who := jane("auth", "whoami", "-o", "jsonpath={.status.userInfo.username} "+
				"{.status.userInfo.groups}")
			if who.stdout != `jane ["dev","system:authenticated"]` {
				t.Errorf("jane is %+v", who)
			}
			has(t, s.ok(t, "", "auth", "whoami"), "admin", "system:masters")
			if r := jane("auth", "can-i", "list", "pipelines"); !strings.HasPrefix(r.stdout, c.no) {
				t.Errorf("whether jane can list pipelines: %+v", r)
			}
			if r := jane("auth", "can-i", "get", "/apis"); r.stdout != "yes\n" {
				t.Errorf("whether jane can discover: %+v", r)
			}
			list := jane("auth", "can-i", "--list")
			has(t, list.stdout, "selfsubjectreviews.authentication.k8s.io", "/apis/*")
			has(t, s.ok(t, "", "auth", "can-i", "--list"), "*.*")
			has(t, s.ok(t, "", "auth", "can-i", "delete", "pipelines", "--all-namespaces"), "yes")
			if r := s.kubectl(t, "", "auth", "can-i", "list", "pipelines", "--as",
				"jane"); !strings.HasPrefix(r.stdout, c.no) {
				t.Errorf("whether jane can list pipelines, for the administrator: %+v", r)
			}
			if r := jane("get", "pipelines"); r.code == 0 {
				t.Errorf("jane lists pipelines: %+v", r)
			}
			if r := jane("auth", "can-i", "list", "pipelines", "--as", "admin"); r.code == 0 {
				t.Errorf("jane speaks for the administrator: %+v", r)
			}

			// Reviews of others.
			const subject = `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {
				user: jane, groups: ["system:masters"], resourceAttributes: {
				verb: get, group: ci.rowkeeper.dev, resource: pipelines}}}`
			const allowed = "jsonpath={.status.allowed}"
			has(t, s.ok(t, subject, "create", "-f", "-", "-o", allowed), "true")
			const local = `{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview,
				metadata: {namespace: default}, spec: {user: jane, resourceAttributes: {
				namespace: default, verb: get, group: ci.rowkeeper.dev, resource: pipelines}}}`
			has(t, s.ok(t, local, "create", "-f", "-", "-o", allowed), "false")
			s.refused(t, `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {
				user: jane}}`, "exactly one of nonResourceAttributes or resourceAttributes",
				"create", "-f", "-")
			const token = `{apiVersion: authentication.k8s.io/v1, kind: TokenReview,
				spec: {token: unknown}}`
			const authenticated = "jsonpath={.spec.token}: {.status.authenticated}."
			has(t, s.ok(t, token, "create", "-f", "-", "-o", authenticated), "unknown: .")
			has(t, s.ok(t, "", "explain", "selfsubjectaccessreview.spec"), "resourceAttributes")
		})
	}
}

// With the authority of another server, the users of that server are known here as well, beside
// those of this one.
func TestClientCA(t *testing.T) {
	first := start(t, t.TempDir())
	authority := filepath.Join(first.dir, ".rowkeeper", "pki", "ca.crt")
	s := start(t, t.TempDir(), "--enable-crds", "--client-ca-file="+authority)
	s.ok(t, "", "create", "rolebinding", "dev", "--clusterrole=view", "--group=dev")
	for _, of := range []*server{first, s} {
		user, err := clientcmd.BuildConfigFromFlags("", of.userFile(t, "jane", "dev"))
		if err != nil {
			t.Fatal(err)
		}
		here := s.config(t)
		here.CertData, here.KeyData = user.CertData, user.KeyData
		jane, err := kubernetes.NewForConfig(here)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a user of the authority of "+of.dir+" has the rights of the group", func() bool {
			_, err := jane.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
			return err == nil
		})
		if _, err := jane.CoreV1().ConfigMaps("kube-system").List(t.Context(),
			metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("without a role, a user of the authority of %s: %v", of.dir, err)
		}
	}
	there := first.config(t)
	user, err := clientcmd.BuildConfigFromFlags("", s.userFile(t, "jane", "dev"))
	if err != nil {
		t.Fatal(err)
	}
	there.CertData, there.KeyData = user.CertData, user.KeyData
	jane, err := kubernetes.NewForConfig(there)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jane.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		t.Errorf("a user whose authority is not named: %v", err)
	}

	wrong := launch(t, t.TempDir(), "--client-ca-file="+first.kubeconfig())
	if code := wrong.exit(t); code == 0 || !strings.Contains(wrong.stderr.String(),
		"cannot use the authorities of users") {
		t.Errorf("a file without certificates: exit code %d, %s", code, wrong.stderr.String())
	}
}

// A token of an issuer that a file names stands for a user, beside certificates: roles give that
// user rights, and a TokenReview tells who it is. The server follows changes of the file.
func TestTokens(t *testing.T) {
	issuer, other := signintest.New(t), signintest.New(t)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	const public = "anonymous: {enabled: true, conditions: [{path: /livez}]}\n"
	write := func(i *signintest.Issuer) {
		t.Helper()
		if err := os.WriteFile(file, []byte(signintest.Config("rowkeeper", i)+public),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(issuer)
	s := start(t, t.TempDir(), "--enable-crds", "--authentication-config="+file)
	client := func(token string) kubernetes.Interface {
		t.Helper()
		config := rest.AnonymousClientConfig(s.config(t))
		config.BearerToken = token
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	jane, others := client(issuer.Token(t, nil)), client(other.Token(t, nil))
	who := func(c kubernetes.Interface) string {
		review, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(review.Status.UserInfo.Username, review.Status.UserInfo.Groups)
	}
	const isJane = "oidc:jane@example.com[oidc:dev system:authenticated]"
	eventually(t, "the issuer's key is known", func() bool { return who(jane) == isJane })
	has(t, who(others), "Unauthorized")

	list := func() error {
		_, err := jane.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	s.ok(t, "", "create", "rolebinding", "dev", "--clusterrole=view", "--group=oidc:dev")
	eventually(t, "jane has the rights of her group", func() bool { return list() == nil })
	review := fmt.Sprintf(`{apiVersion: authentication.k8s.io/v1, kind: TokenReview,
		spec: {token: %s}}`, issuer.Token(t, nil))
	has(t, s.ok(t, review, "create", "-f", "-", "-o", "jsonpath={.status.user.username}"),
		"oidc:jane@example.com")
	for _, spec := range []string{`token: " x"`,
		"audiences: [other], token: " + issuer.Token(t, nil)} {
		review := "{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {" + spec + "}}"
		has(t, s.ok(t, review, "create", "-f", "-", "-o",
			"jsonpath=.{.status.authenticated}."), "..")
	}
	for path, want := range map[string]string{"/livez": "ok", "/version": "Unauthorized"} {
		body, err := client("").Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		has(t, string(body)+fmt.Sprint(err), want)
	}
	has(t, s.ok(t, "", "auth", "whoami"), "system:masters")

	write(other)
	eventually(t, "the change is in effect", func() bool { return who(others) == isJane })
	has(t, who(jane), "Unauthorized")
}

// A file says who decides: here another server, whose roles answer the reviews, and then nobody.
// The server follows changes of the file. Administrators may do everything whatever it says.
func TestAuthorizationConfig(t *testing.T) {
	t.Parallel() // it waits for the server to look at the file again
	decider := start(t, t.TempDir(), "--enable-crds")
	decider.ok(t, "", "create", "clusterrole", "reader", "--verb=list",
		"--resource=pipelines.ci.rowkeeper.dev,configmaps")
	decider.ok(t, "", "create", "clusterrolebinding", "readers", "--clusterrole=reader", "--group=dev")
	decider.ok(t, "", "create", "clusterrolebinding", "askers", "--clusterrole=system:auth-delegator",
		"--user=asker")
	const reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	content, err := os.ReadFile(decider.userFile(t, "asker"))
	if err != nil {
		t.Fatal(err)
	}
	host := decider.config(t).Host
	ask, file := filepath.Join(t.TempDir(), "ask"), filepath.Join(t.TempDir(), "authorization.yaml")
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ask, strings.ReplaceAll(string(content), host, host+reviews))
	const config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n" +
		"authorizers:\n"
	webhook := fmt.Sprintf(`- {type: Webhook, name: other, webhook: {timeout: 30s,
    failurePolicy: Deny, subjectAccessReviewVersion: v1, cacheUnauthorizedRequests: false,
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}}}`+"\n", ask)

	for name, tc := range map[string]struct {
		args         []string
		decide, list string // who decides, and what a user lists
	}{
		"types": {nil, webhook, "pipelines"},
		"crds":  {[]string{"--enable-crds"}, "- {type: RBAC, name: roles}\n" + webhook, "configmaps"},
	} {
		t.Run(name, func(t *testing.T) {
			write(file, config+tc.decide)
			s := start(t, t.TempDir(), append(tc.args, "--authorization-config="+file)...)
			jane, other := s.userFile(t, "jane", "dev"), s.userFile(t, "other")
			list := func(kubeconfig string) result {
				return s.kubectl(t, "", "--kubeconfig", kubeconfig, "get", tc.list)
			}
			eventually(t, "jane lists by the other server's roles", func() bool {
				return list(jane).code == 0
			})
			if r := list(other); !strings.Contains(r.stderr, "Forbidden") {
				t.Errorf("somebody else lists: %+v", r)
			}
			has(t, s.kubectl(t, "", "--kubeconfig", jane, "auth", "can-i", "list",
				tc.list).stdout, "yes")
			has(t, s.kubectl(t, "", "auth", "can-i", "delete", tc.list, "--as", "jane").stdout, "no")
			if name == "crds" {
				s.ok(t, "", "create", "rolebinding", "view", "--clusterrole=view", "--user=other")
				eventually(t, "a role decides, too", func() bool { return list(other).code == 0 })
			}

			write(file, config+"- {type: Nobody, name: nobody}\n")
			eventually(t, "the log tells what is wrong", func() bool {
				return strings.Contains(s.stderr.String(), "Nobody")
			})
			if r := list(jane); r.code != 0 {
				t.Errorf("jane lists while the file is wrong: %+v", r)
			}
			write(file, config+"- {type: AlwaysDeny, name: nobody}\n")
			eventually(t, "nobody may do anything", func() bool {
				return strings.Contains(list(jane).stderr, "Forbidden")
			})
			s.ok(t, "", "get", tc.list)
		})
	}

	write(file, config+"- {type: RBAC, name: roles}\n")
	s := launch(t, t.TempDir(), "--authorization-config="+file)
	if code := s.exit(t); code == 0 || !strings.Contains(s.stderr.String(), "--enable-crds") {
		t.Errorf("roles without --enable-crds: exit code %d, %s", code, s.stderr.String())
	}
}
