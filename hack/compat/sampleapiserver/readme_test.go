package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/verify/markdown"
)

// TestReadme compares the difference that the page shows with the lines that are marked in main.go,
// of which there are at most a dozen.
func TestReadme(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	var all, own []string
	for line := range strings.Lines(read("main.go")) {
		code, _, marked := strings.Cut(line, "// +")
		code = strings.Join(strings.Fields(code), " ")
		all = append(all, code)
		if marked {
			own = append(own, code)
		}
	}
	if len(own) == 0 || len(own) > 12 {
		t.Errorf("%d lines of main.go are our own, want at most 12", len(own))
	}
	block, err := markdown.Marked([]byte(read("../../../docs/how-to/replace-etcd.md")),
		"sampleapiserver: the difference")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for line := range strings.Lines(block) {
		code := strings.Join(strings.Fields(line[1:]), " ")
		if !slices.Contains(all, code) {
			t.Errorf("the page shows a line that main.go does not have: %s", code)
		}
		if line[0] == '+' {
			shown = append(shown, code)
		}
	}
	if !slices.Equal(shown, own) {
		t.Errorf("the page shows\n%s\nand main.go marks\n%s", strings.Join(shown, "\n"),
			strings.Join(own, "\n"))
	}
}
