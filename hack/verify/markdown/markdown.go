// Package markdown finds what tests look for in Markdown pages: blocks of code, and the comments
// that mark them. Nobody who reads a page sees the comments.
package markdown

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// Item is a block of code, or a comment.
type Item struct {
	// Line is the number of its first line in the page, from 1; of a block, that of its first line
	// of code.
	Line int
	// Comment is the text of a comment, without blanks around it. It is empty for a block.
	Comment string
	// Inline tells that a comment is not a line of its own.
	Inline bool
	// Language and Code are those of a block. Each line of code ends with a line break.
	Language, Code string
}

// Items returns those of a page, in order.
func Items(page []byte) []Item {
	line := func(at int) int { return bytes.Count(page[:at], []byte("\n")) + 1 }
	var items []Item
	comment := func(at int, html string, inline bool) {
		text, found := strings.CutPrefix(strings.TrimSpace(html), "<!--")
		if !found {
			return
		}
		text, after, _ := strings.Cut(text, "-->")
		items = append(items, Item{Line: line(at), Comment: strings.TrimSpace(text),
			Inline: inline || after != ""})
	}
	walk := func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.FencedCodeBlock:
			at := 0
			if n.Info != nil {
				at = line(n.Info.Segment.Start) + 1
			} else if n.Lines().Len() > 0 {
				at = line(n.Lines().At(0).Start)
			}
			items = append(items, Item{
				Line: at, Language: string(n.Language(page)), Code: string(n.Lines().Value(page)),
			})
		case *ast.HTMLBlock:
			html := string(n.Lines().Value(page))
			if n.HasClosure() {
				html += string(n.ClosureLine.Value(page))
			}
			if n.Lines().Len() > 0 {
				comment(n.Lines().At(0).Start, html, false)
			}
		case *ast.RawHTML:
			if n.Segments.Len() > 0 {
				comment(n.Segments.At(0).Start, string(n.Segments.Value(page)), true)
			}
		}
		return ast.WalkContinue, nil
	}
	// The walk fails only if the function above does.
	_ = ast.Walk(goldmark.DefaultParser().Parse(text.NewReader(page)), walk)
	return items
}

// Page is what links need: the destinations that a page has, and the anchors that others may name.
type Page struct {
	Links   []string
	Anchors map[string]bool
}

// Linked reads the links and the anchors of a page.
func Linked(page []byte) Page {
	p := Page{Anchors: map[string]bool{}}
	parsed := goldmark.New(goldmark.WithParserOptions(parser.WithAutoHeadingID())).Parser().
		Parse(text.NewReader(page))
	_ = ast.Walk(parsed, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				p.Links = append(p.Links, string(n.Destination))
			}
		case *ast.Image:
			if entering {
				p.Links = append(p.Links, string(n.Destination))
			}
		case *ast.Heading:
			if id, ok := n.AttributeString("id"); ok {
				p.Anchors[string(id.([]byte))] = true
			}
		}
		return ast.WalkContinue, nil
	})
	return p
}

// Marked returns the code of the block after the comment.
func Marked(page []byte, comment string) (string, error) {
	items := Items(page)
	for i, item := range items {
		if item.Comment == comment && i+1 < len(items) && items[i+1].Comment == "" {
			return items[i+1].Code, nil
		}
	}
	return "", fmt.Errorf("the page has no block after a comment %q", comment)
}
