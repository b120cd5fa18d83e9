package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/controlplane"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// TestKit: in the control plane of the test kit, controllers make ReplicaSets and Pods of
// Deployments and Jobs, and collect them, and roles give rights, on SQLite and on a database by
// URL. One that is started again in its directory goes on.
func TestKit(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			o := controlplane.Options{Programs: *bin, Dir: t.TempDir()}
			if config := onDatabase(t, kind); config.Database != "" {
				o.Database = testkit.Database{URL: config.Database, Driver: postgres.Driver}
			}
			plane, err := controlplane.Launch(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			uid := testKit(t, plane)
			if err := plane.Stop(); err != nil {
				t.Error(err)
			}
			if err := plane.Stop(); err != nil {
				t.Errorf("a second time: %v", err)
			}

			client := kubernetes.NewForConfigOrDie(controlplane.Start(t, o).Config)
			again := must[*appsv1.Deployment](t)(client.AppsV1().Deployments("default").Get(
				t.Context(), "web", metav1.GetOptions{}))
			if string(again.UID) != uid {
				t.Errorf("after the restart the deployment is %s, and was %s", again.UID, uid)
			}
			foreground := metav1.DeletePropagationForeground
			if err := client.AppsV1().Deployments("default").Delete(t.Context(), "web",
				metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
				t.Fatal(err)
			}
			eventually(t, func(ctx context.Context) error {
				list, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
				if err == nil && len(list.Items) > 0 {
					err = fmt.Errorf("%d ReplicaSets are left", len(list.Items))
				}
				return err
			})
		})
	}
}

// testKit uses a control plane, and returns the UID of a Deployment.
func testKit(t *testing.T, plane *controlplane.ControlPlane) (uid string) {
	t.Helper()
	const ns = "default"
	client := kubernetes.NewForConfigOrDie(plane.Config)
	// A pod is taken at once.
	must[*corev1.Pod](t)(client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "alone"}, Spec: deployment("", 1).Spec.Template.Spec,
	}, metav1.CreateOptions{}))
	web := must[*appsv1.Deployment](t)(client.AppsV1().Deployments(ns).Create(t.Context(),
		deployment("web", 3), metav1.CreateOptions{}))
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
	must[*batchv1.Job](t)(client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: template},
	}, metav1.CreateOptions{}))
	eventually(t, func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		of := map[string]int{}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Status.Phase != corev1.PodPending {
				return fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
			}
			if owner := metav1.GetControllerOf(p); owner != nil {
				of[owner.Kind]++
			}
		}
		if of["ReplicaSet"] != 3 || of["Job"] != 1 {
			return fmt.Errorf("there are pods of %v, want 3 of a ReplicaSet and 1 of a Job", of)
		}
		return nil
	})

	config, err := plane.ConfigFor("jane", "readers")
	if err != nil {
		t.Fatal(err)
	}
	jane := kubernetes.NewForConfigOrDie(config)
	if _, err := jane.CoreV1().Pods(ns).List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v, want forbidden", err)
	}
	must[*rbacv1.Role](t)(client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{}))
	must[*rbacv1.RoleBinding](t)(client.RbacV1().RoleBindings(ns).Create(t.Context(),
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "pods"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers"}},
		}, metav1.CreateOptions{}))
	eventually(t, func(ctx context.Context) error {
		_, err := jane.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err // the authorizer hears of the role by a watch
	})
	if _, err := jane.CoreV1().Secrets(ns).List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets: %v, want forbidden", err)
	}
	return string(web.UID)
}

// TestKitErrors: what does not start says what to do, and leaves nothing behind.
func TestKitErrors(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv(controlplane.ProgramsEnv, filepath.Join(temporary, "nowhere"))
	for want, o := range map[string]controlplane.Options{
		controlplane.ProgramsEnv:  {},
		"Options.Database.Driver": {Database: testkit.Database{URL: "memory:"}},
		"no-such-flag":            {Programs: *bin, APIServerFlags: []string{"--no-such-flag"}},
	} {
		if _, err := controlplane.Launch(t.Context(), o); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(temporary)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
