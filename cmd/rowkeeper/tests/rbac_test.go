package tests

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/rolestest"
)

// userFile makes the kubeconfig of a user.
func (s *server) userFile(t testing.TB, user string, groups ...string) string {
	t.Helper()
	args := []string{"kubeconfig", "--user", user}
	for _, g := range groups {
		args = append(args, "--group", g)
	}
	made := run(t, s.dir, "", nil, rowkeeperProgram, args...)
	if made.code != 0 {
		t.Fatal(made.stderr)
	}
	file := filepath.Join(s.dir, user)
	if err := os.WriteFile(file, []byte(made.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Roles pass the cases that they pass in a cluster.
func TestRolesAsInACluster(t *testing.T) {
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		rolestest.Run(t, start(t.TempDir(), "--enable-crds").config(t))
	})
}

// A user has the rights of roles, before and after a restart and on every replica that knows the
// user.
func TestRolesOfUsers(t *testing.T) {
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		dir := t.TempDir()
		s := start(dir, "--enable-crds")
		file := s.userFile(t, "jane", "dev")
		jane := func(s *server, args ...string) result {
			return s.kubectl(t, "", append([]string{"--kubeconfig", file}, args...)...)
		}
		can := func(s *server, args ...string) bool {
			return jane(s, append([]string{"auth", "can-i"}, args...)...).stdout == "yes\n"
		}
		if can(s, "create", "pipelines") {
			t.Error("jane can create pipelines without a role")
		}
		s.ok(t, "", "create", "namespace", "team")
		s.ok(t, "", "create", "role", "builder", "--verb=create,list,delete",
			"--resource=pipelines.ci.rowkeeper.dev", "-n", "team")
		s.ok(t, "", "create", "rolebinding", "builder", "--role=builder", "--group=dev", "-n",
			"team")
		eventually(t, "jane may build", func() bool {
			return can(s, "create", "pipelines", "-n", "team")
		})
		if can(s, "create", "pipelines") || can(s, "update", "pipelines", "-n", "team") {
			t.Error("jane can do more than her role says")
		}
		has(t, jane(s, "auth", "can-i", "--list", "-n", "team").stdout,
			"pipelines.ci.rowkeeper.dev", "[create list delete]",
			"selfsubjectreviews.authentication.k8s.io", "/apis/*")
		if r := jane(s, "get", "pipelines", "-n", "team"); r.code != 0 {
			t.Errorf("jane lists her pipelines: %+v", r)
		}
		s.ok(t, "", "create", "rolebinding", "admins", "--clusterrole=admin", "--user=jane", "-n",
			"team")
		eventually(t, "jane may bind roles", func() bool {
			return can(s, "create", "rolebindings", "-n", "team")
		})
		has(t, jane(s, "create", "rolebinding", "none", "--role=none", "--user=jane", "-n",
			"team").stderr, `"none" not found`)
		s.ok(t, "", "delete", "rolebinding", "admins", "-n", "team")
		if r := jane(s, "get", "pipelines"); !strings.Contains(r.stderr,
			`User "jane" cannot list resource "pipelines" in API group "ci.rowkeeper.dev" in the `+
				`namespace "default"`) {
			t.Errorf("jane lists the pipelines of others: %+v", r)
		}
		if r := jane(s, "get", "pipelines", "-n", "team", "--as", "admin"); r.code == 0 {
			t.Errorf("jane speaks for the administrator: %+v", r)
		}

		// Another replica has the roles, and does not know the user, unless it has the authority.
		url := sameDatabase(s)
		other := start(t.TempDir(), append(url, "--enable-crds")...)
		has(t, other.ok(t, "", "get", "rolebindings", "-n", "team"), "builder", "Role/builder")
		eventually(t, "the other replica knows the role", func() bool {
			return other.kubectl(t, "", "auth", "can-i", "create", "pipelines", "-n", "team", "--as",
				"jane", "--as-group", "dev").stdout == "yes\n"
		})
		same := t.TempDir()
		pki := filepath.Join(same, ".rowkeeper", "pki")
		if err := os.MkdirAll(pki, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"ca.crt", "ca.key"} {
			content, err := os.ReadFile(filepath.Join(dir, ".rowkeeper", "pki", name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(pki, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		third := start(same, append(url, "--enable-crds")...)
		for of, want := range map[*server]string{other: "", third: "jane"} {
			r := jane(of, "--server", of.config(t).Host, "--insecure-skip-tls-verify", "auth",
				"whoami", "-o", "jsonpath={.status.userInfo.username}")
			if r.stdout != want {
				t.Errorf("jane at another replica: %+v, want %q", r, want)
			}
		}
		other.signal(t, syscall.SIGTERM)
		third.signal(t, syscall.SIGTERM)

		s.ruin(t)
		eventually(t, "jane cannot discover what is served", func() bool {
			return !can(s, "get", "/apis/apps")
		})
		if code := s.signal(t, syscall.SIGTERM); code != 0 {
			t.Errorf("the server exits with %d", code)
		}
		s = start(dir, "--enable-crds")
		s.repaired(t)
		file = s.userFile(t, "jane", "dev") // the server has another port
		eventually(t, "jane may what she could", func() bool {
			return can(s, "create", "pipelines", "-n", "team") && can(s, "get", "/apis/apps")
		})

		// Roles go with their namespace.
		s.ok(t, "", "delete", "namespace", "team")
		if can(s, "create", "pipelines", "-n", "team") {
			t.Error("jane can create pipelines in a namespace that is gone")
		}
		s.ok(t, "", "create", "namespace", "team")
		if out := s.ok(t, "", "get", "roles,rolebindings", "-n", "team"); out != "" {
			t.Errorf("the namespace comes back with %s", out)
		}
	})
}

// ruin changes default roles: one loses its rules, one loses them for good, one gets another.
func (s *server) ruin(t *testing.T) {
	t.Helper()
	roles := kubernetes.NewForConfigOrDie(s.config(t)).RbacV1().ClusterRoles()
	for name, change := range map[string]func(*rbacv1.ClusterRole){
		"system:discovery": func(r *rbacv1.ClusterRole) { r.Rules = nil },
		"system:public-info-viewer": func(r *rbacv1.ClusterRole) {
			r.Rules = nil
			r.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
		},
		"system:monitoring": func(r *rbacv1.ClusterRole) { r.Rules = append(r.Rules, extra) },
	} {
		r, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		if _, err := roles.Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := roles.Delete(t.Context(), "view", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := kubernetes.NewForConfigOrDie(s.config(t)).RbacV1().ClusterRoleBindings().Delete(
		t.Context(), "system:discovery", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

var extra = rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/extra"}}

// repaired says that a start has written what was ruined, and nothing else.
func (s *server) repaired(t *testing.T) {
	t.Helper()
	roles := kubernetes.NewForConfigOrDie(s.config(t)).RbacV1().ClusterRoles()
	has := func(name string) []rbacv1.PolicyRule {
		r, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Rules
	}
	if len(has("system:discovery")) == 0 {
		t.Error("a default role does not have its rules again")
	}
	if rules := has("system:public-info-viewer"); len(rules) != 0 {
		t.Errorf("a role that is kept as it is has got %v", rules)
	}
	if rules := has("system:monitoring"); len(rules) < 2 ||
		!equality.Semantic.DeepEqual(rules[len(rules)-1], extra) {
		t.Errorf("a default role with one more rule has %v", rules)
	}
	eventually(t, "the role view is there again, with its rules", func() bool {
		return len(has("view")) > 0
	})
}
