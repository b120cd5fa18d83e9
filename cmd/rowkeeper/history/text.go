package history

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/pmezard/go-difflib/difflib"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/server"
)

const (
	// longestLine is how many bytes of a line a diff shows, and mostLines of how many lines of an
	// object a diff is made. To compare more would take minutes.
	longestLine = 300
	mostLines   = 10_000
)

// encode writes something in a format.
func encode(w io.Writer, format string, what any) error {
	data, err := json.MarshalIndent(what, "", "    ")
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(string(data), "\n"))
	return err
}

// checkFormat refuses a value of --output that a command does not know.
func checkFormat(format string, known ...string) error {
	for _, k := range append(known, "") {
		if format == k {
			return nil
		}
	}
	return server.UsageError{Err: fmt.Errorf("--output is one of %s, not %q", strings.Join(known, ", "),
		format)}
}

// printable escapes what would move the cursor of a terminal, or end a cell of a table.
func printable(text string) string {
	if !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// lines is an object as a diff shows it: without what the server alone writes at each change.
func lines(object map[string]any) []string {
	if object == nil {
		return nil
	}
	shown := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(object)}
	shown.SetManagedFields(nil)
	shown.SetResourceVersion("")
	data, err := yaml.Marshal(shown.Object)
	if err != nil {
		return []string{err.Error() + "\n"}
	}
	text := difflib.SplitLines(strings.TrimSuffix(string(data), "\n"))
	for i, line := range text {
		if len(line) > longestLine {
			// Lines that differ further on have other checksums.
			text[i] = fmt.Sprintf("%s… (%d bytes, checksum %08x)\n",
				strings.ToValidUTF8(line[:longestLine], ""), len(line)-1, crc32.ChecksumIEEE([]byte(line)))
		}
	}
	return text
}

// writeDiff shows the difference between two objects, of which nil is none. It tells whether there
// is one.
func writeDiff(w io.Writer, from, to string, before, after map[string]any) (bool, error) {
	a, b := lines(before), lines(after)
	if len(a) > mostLines || len(b) > mostLines {
		if strings.Join(a, "") == strings.Join(b, "") {
			return false, nil
		}
		_, err := fmt.Fprintf(w, "--- %s\n+++ %s\nThe objects have %d and %d lines, too many to compare: "+
			"read them with --output yaml\n", from, to, len(a), len(b))
		return true, err
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: a, B: b, FromFile: from,
		ToFile: to, Context: 3})
	if err != nil || text == "" {
		return false, err
	}
	_, err = io.WriteString(w, text)
	return true, err
}
