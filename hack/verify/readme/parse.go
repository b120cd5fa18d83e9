package readme

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/hack/verify/markdown"
)

// Walk is a part of a page that can be followed from beginning to end.
type Walk struct {
	Name  string
	Steps []Step
}

// Step is a block: either a file or a session.
type Step struct {
	// Line is the number of the block's first line in the page, from 1.
	Line int
	// On names the machines, if it is done on several: one after the other.
	On []string
	// File is the path of the file that is to be written, empty for a session.
	File, Content string
	// Commands are those of a session.
	Commands []Command
	// Serves says that the last of the commands goes on.
	Serves bool
}

// Command is what is typed, and what is shown as its answer.
type Command struct {
	Line int
	Text string
	// Answer has the lines that are shown.
	Answer []string
}

// machines are those on which the step is done. The one on which walks are without a mark has no
// name.
func (s Step) machines() []string {
	if len(s.On) == 0 {
		return []string{""}
	}
	return s.On
}

// BeforeServe is the walk without its first command that serves and all that comes after it. It
// ends with the program built.
func (w Walk) BeforeServe() Walk {
	for i, step := range w.Steps {
		if !step.Serves {
			continue
		}
		w.Steps = slices.Clone(w.Steps[:i])
		if n := len(step.Commands) - 1; n > 0 {
			step.Commands, step.Serves = step.Commands[:n], false
			w.Steps = append(w.Steps, step)
		}
		return w
	}
	return w
}

// Other is a block outside of walks.
type Other struct {
	Line           int
	Language, Code string
	// Mark is "tested", "untested" or empty. By is the file that tests it.
	Mark, By string
}

// Walks returns the walks of a page.
func Walks(page string) ([]Walk, error) {
	p, err := parse(page)
	return p.walks, err
}

// parse reads a page whole.
func parse(page string) (parser, error) {
	var p parser
	for _, item := range markdown.Items([]byte(page)) {
		if err := p.item(item); err != nil {
			return parser{}, fmt.Errorf("line %d: %w", item.Line, err)
		}
	}
	if p.walk != nil {
		return parser{}, fmt.Errorf("the walk %q has no end", p.walk.Name)
	}
	return p, nil
}

type parser struct {
	walks  []Walk
	others []Other
	walk   *Walk // the one that has begun
	// The mark of the next block, with its rest.
	next, rest string
	on         []string // the machines
}

func (p *parser) item(item markdown.Item) error {
	if item.Comment == "" {
		return p.block(item)
	}
	text, ours := strings.CutPrefix(item.Comment, "readme: ")
	if !ours {
		return nil
	}
	if item.Inline {
		return errors.New("a mark is a line of its own, as <!-- readme: serve -->")
	}
	verb, rest, _ := strings.Cut(text, " ")
	if p.next != "" {
		return fmt.Errorf("the mark %q has no block", p.next)
	}
	switch {
	case verb == "walk" && p.walk == nil && rest != "":
		for _, walk := range p.walks {
			if walk.Name == rest {
				return fmt.Errorf("there are two walks %q", rest)
			}
		}
		p.walk = &Walk{Name: rest}
	case verb == "end" && p.walk != nil && rest == "":
		if len(p.walk.Steps) == 0 {
			return fmt.Errorf("there is nothing to follow in the walk %q", p.walk.Name)
		}
		p.walks, p.walk, p.on = append(p.walks, *p.walk), nil, nil
	case verb == "on" && p.walk != nil && rest != "":
		p.on = strings.Fields(rest)
	case p.walk != nil && (verb == "serve" && rest == "" || verb == "skip" && rest != ""),
		p.walk == nil && (verb == "tested" && rest != "" || verb == "untested" && rest == ""):
		p.next, p.rest = verb, rest
	case p.walk != nil && verb == "file" && path.Clean(rest) == rest &&
		(filepath.IsLocal(rest) || len(p.on) > 0 && filepath.IsAbs(rest)):
		p.next, p.rest = verb, rest
	default:
		return fmt.Errorf("the mark %q makes no sense here", "<!-- "+item.Comment+" -->")
	}
	return nil
}

func (p *parser) block(item markdown.Item) error {
	next, rest := p.next, p.rest
	p.next, p.rest = "", ""
	switch {
	case p.walk == nil:
		p.others = append(p.others, Other{item.Line, item.Language, item.Code, next, rest})
		return nil
	case next == "skip":
		return nil
	case next == "file":
		p.walk.Steps = append(p.walk.Steps, Step{Line: item.Line, On: p.on, File: rest,
			Content: item.Code})
		return nil
	case item.Language != "console":
		return errors.New("the block is neither a session (console) nor marked as a file or as " +
			"skipped")
	}
	step := Step{Line: item.Line, On: p.on, Serves: next == "serve"}
	number := item.Line - 1
	for line := range strings.Lines(item.Code) {
		number++
		line = strings.TrimSuffix(line, "\n")
		last := len(step.Commands) - 1
		switch {
		case strings.HasPrefix(line, "$ "):
			step.Commands = append(step.Commands, Command{Line: number, Text: line[2:]})
		case last < 0:
			return fmt.Errorf("the session begins with %q, not with a command after \"$ \"", line)
		case strings.HasPrefix(line, "> ") && len(step.Commands[last].Answer) == 0:
			step.Commands[last].Text += "\n" + line[2:]
		default:
			step.Commands[last].Answer = append(step.Commands[last].Answer, line)
		}
	}
	if len(step.Commands) == 0 {
		return errors.New("the session has no command")
	}
	if step.Serves && len(step.Commands[len(step.Commands)-1].Answer) == 0 {
		return errors.New("the command that goes on is not shown to print anything by which one sees " +
			"that it is ready")
	}
	p.walk.Steps = append(p.walk.Steps, step)
	return nil
}
