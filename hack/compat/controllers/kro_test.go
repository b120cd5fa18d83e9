package controllers

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// kro makes definitions, and serves their objects by controllers that come and go.
var kro = project{
	in:          "programs",
	module:      "github.com/kubernetes-sigs/kro",
	definitions: "helm/crds/*.yaml",
	start: func(u user, _ *front) {
		runProgram(u.T, u.kubeconfig, "github.com/kubernetes-sigs/kro/cmd/controller",
			"--metrics-bind-address=0", "--health-probe-bind-address=0", "--allow-crd-deletion")
	},
	scenario: lifeOfAKind,
	kinds:    []string{"v1 ConfigMap", "internal.kro.run/v1alpha1 GraphRevision"},
}

// lifeOfAKind makes a kind of two ConfigMaps, one of which follows from the other, and an object of
// this kind.
func lifeOfAKind(u user, round string) {
	kind := strings.ToUpper(round[:1]) + round[1:]
	graph := u.create(`
apiVersion: kro.run/v1alpha1
kind: ResourceGraphDefinition
metadata: {name: %s}
spec:
  schema:
    apiVersion: v1alpha1
    kind: %s
    spec: {color: string | default="red"}
    status: {shown: "${copy.data.color}"}
  resources:
  - id: settings
    template:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "${schema.metadata.name}-settings"}
      data: {color: "${schema.spec.color}"}
  - id: copy
    template:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "${schema.metadata.name}-copy"}
      data: {color: "${settings.data.color}"}
`, round, kind)
	u.holds("Ready", graph)
	object := u.create(`
apiVersion: kro.run/v1alpha1
kind: %s
metadata: {name: %s, namespace: team}
`, kind, round)
	configMap := func(of string) *unstructured.Unstructured {
		return u.object(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-%s, namespace: team}}`,
			round, of)
	}
	settings, copied := configMap("settings"), configMap("copy")
	color := func(want string) {
		u.Helper()
		for o, field := range map[*unstructured.Unstructured][]string{settings: {"data", "color"},
			copied: {"data", "color"}, object: {"status", "shown"}} {
			u.see("is "+want, o, func() error {
				if is, _, _ := unstructured.NestedString(o.Object, field...); is != want {
					return fmt.Errorf("it is %q", is)
				}
				return nil
			})
		}
	}
	color("red")
	u.change(object, "blue", "spec", "color")
	color("blue")
	u.delete(copied)
	color("blue") // it was made again

	u.delete(object)
	u.gone(object)
	u.gone(settings)
	u.gone(copied)
	u.delete(graph)
	u.gone(graph)
	u.gone(u.object(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %ss.kro.run}
`, round))
}
