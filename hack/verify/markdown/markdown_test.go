package markdown

import (
	"slices"
	"testing"
)

func TestItems(t *testing.T) {
	page := "# Title\n" +
		"<!-- a mark -->\n" +
		"```console\n$ ls\n```\n" +
		"1. In a list:\n   <!-- another -->\n   ```go\n   one\n     two\n   ```\n" +
		"Text <!-- inline --> and text.\n\n" +
		"    ``` in code\n\n" +
		"~~~\nplain\n~~~\n"
	want := []Item{
		{Line: 2, Comment: "a mark"},
		{Line: 4, Language: "console", Code: "$ ls\n"},
		{Line: 7, Comment: "another"},
		{Line: 9, Language: "go", Code: "one\n  two\n"},
		{Line: 12, Comment: "inline", Inline: true},
		{Line: 17, Code: "plain\n"},
	}
	if got := Items([]byte(page)); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestMarked(t *testing.T) {
	page := []byte("<!-- one -->\n```sh\nls\n```\n<!-- two -->\nText.\n<!-- three -->\n")
	if code, err := Marked(page, "one"); err != nil || code != "ls\n" {
		t.Errorf("got %q, %v", code, err)
	}
	for _, comment := range []string{"two", "three", "four"} {
		if code, err := Marked(page, comment); err == nil {
			t.Errorf("%s marks %q", comment, code)
		}
	}
}
