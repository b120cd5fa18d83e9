package tests

import "testing"

func TestPolicies(t *testing.T) { anyDatabase(t, testPolicies) }

func testPolicies(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir())
	s.ok(t, manifest("tmp-old", "make"), "create", "-f", "-")
	s.ok(t, `apiVersion: ci.rowkeeper.dev/v1
kind: PipelinePolicy
metadata: {name: house-rules}
spec:
  bannedNames: ["tmp-*"]
  bannedImages: ["*:latest", "evil.example.com/*"]
  mirrors: [{prefix: docker.io/, replacement: mirror.example.com/}]
  message: ask the platform team
`, "create", "-f", "-")
	has(t, s.ok(t, "", "get", "plp"), "BANNED NAMES", "house-rules")
	// The plugin hears of the policy as any informer would.
	eventually(t, "the policy is in force", func() bool {
		return s.kubectl(t, manifest("tmp-new", "make"), "create", "--dry-run=server", "-f",
			"-").code != 0
	})
	s.refused(t, manifest("tmp-new", "make"),
		`pipelines.ci.rowkeeper.dev "tmp-new" is forbidden: the name "tmp-new" is banned by the PipelinePolicy house-rules: ask the platform team`, "create", "-f", "-")
	s.refused(t,
		"apiVersion: ci.rowkeeper.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: flat}\nspec: {image: evil.example.com/x, commands: [make]}", `spec.image: the image "evil.example.com/x" is banned by the PipelinePolicy house-rules`, "create", "-f", "-")
	s.refused(t,
		"apiVersion: ci.rowkeeper.dev/v1\nkind: Pipeline\nmetadata: {generateName: tmp-}\nspec: {image: a:1, steps: [{name: a, command: [ls]}]}", "is banned by the PipelinePolicy house-rules", "create", "-f", "-")
	// Objects from before can still be changed, but not be made worse.
	s.ok(t, "", "patch", "pl", "tmp-old", "--type=merge", "-p", `{"spec":{"suspended":true}}`)
	s.refused(t, "", `spec.image: the image "golang:latest"`, "patch", "pl", "tmp-old",
		"--type=merge", "-p", `{"spec":{"image":"golang:latest"}}`)
	s.ok(t, "", "patch", "pl", "tmp-old", "--type=merge", "-p",
		`{"spec":{"image":"docker.io/golang:1.26"}}`)
	if got := s.jsonpath(t, "tmp-old", ".spec.image"); got != "mirror.example.com/golang:1.26" {
		t.Errorf("the image is %s", got)
	}
	s.ok(t, "", "delete", "plp", "house-rules")
	eventually(t, "the policy is no longer in force", func() bool {
		return s.kubectl(t, manifest("tmp-new", "make"), "create", "-f", "-").code == 0
	})
}
