package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"
)

// TestOneVersion: the modules of a release require each other in one version, and the workspace has
// them in that version.
func TestOneVersion(t *testing.T) {
	ours := regexp.MustCompile(`(?m)^(?:replace |\t)` + regexp.QuoteMeta(library) +
		`(?:/pkg/crds)? (v\S+)`)
	versions := map[string]int{}
	for file, want := range map[string]int{"cmd/rowkeeper/go.mod": 2, "pkg/crds/go.mod": 1,
		"go.work": 1} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := ours.FindAllSubmatch(text, -1)
		if len(found) != want {
			t.Errorf("%s names %d versions of our modules, want %d", file, len(found), want)
		}
		for _, f := range found {
			versions[string(f[1])]++
		}
	}
	if len(versions) != 1 {
		t.Errorf("the modules are of the versions %v: hack/release/require.sh makes one of them",
			versions)
	}
}

// TestBillOfMaterials: the list of this test's own program names its modules, and is an error for
// what is no program.
func TestBillOfMaterials(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run("v1.2.3", []string{program}, &out); err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, PURL string }
	}
	if err := json.Unmarshal(out.Bytes(), &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Version != "v1.2.3" {
		t.Errorf("%s of %s", bom.BOMFormat, bom.Metadata.Component.Version)
	}
	listed := map[string]string{}
	for _, c := range bom.Components {
		listed[c.Name] = c.PURL
	}
	if len(listed) < 2 || listed["github.com/CycloneDX/cyclonedx-go"] == "" || listed["std"] == "" {
		t.Errorf("it lists %v", listed)
	}
	if err := run("", []string{"main.go"}, &out); err == nil {
		t.Error("a file that is no program has a bill of materials")
	}
	if err := run("", nil, &out); err == nil {
		t.Error("no program has a bill of materials")
	}
}
