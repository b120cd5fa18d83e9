package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

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
