package tests

import (
	"strings"
	"testing"
)

// A user with a certificate may find out what is served, who they are and what they may do, and
// nothing else. The administrator may do everything, and ask for others.
func TestRights(t *testing.T) {
	for name, args := range map[string][]string{"types": nil, "crds": {"--enable-crds"}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, t.TempDir(), args...)
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
			if r := jane("auth", "can-i", "list", "pipelines"); !strings.HasPrefix(r.stdout, "no - ") {
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
				"jane"); !strings.HasPrefix(r.stdout, "no - ") {
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
