package readme

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Guide says where and how walks are followed.
type Guide struct {
	// Clone is the directory of the clone of Rowkeeper. Commands find it as ../rowkeeper.
	Clone string
	// Env is the environment of the commands.
	Env []string
	// Replace has what is typed in place of what the page says, such as a free port in place of one
	// that may be in use. It is replaced in commands, files and answers.
	Replace map[string]string
	// Log is told what is done.
	Log func(format string, args ...any)
}

// Follow follows a walk below a directory, which must be empty. The walk's files are in its
// directory "walk". Follow returns an error that says which line of the page is wrong. Whatever was
// started has ended when it returns.
func (g Guide) Follow(ctx context.Context, walk Walk, below string) (err error) {
	if err := os.Symlink(g.Clone, filepath.Join(below, "rowkeeper")); err != nil {
		return err
	}
	dir := filepath.Join(below, "walk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var terminals []*terminal
	defer func() {
		for _, t := range terminals {
			t.close()
		}
	}()
	open := func() (*terminal, error) {
		t, err := openTerminal(ctx, dir, g.Env)
		if err == nil {
			terminals = append(terminals, t)
		}
		return t, err
	}
	current, err := open()
	if err != nil {
		return err
	}
	for _, step := range walk.Steps {
		if step.File != "" {
			// Files are named from the directory in which the commands are.
			where, err := current.pwd()
			if err != nil {
				return err
			}
			file := filepath.Join(where, g.replace(step.File))
			g.Log("line %d: %s is written", step.Line, step.File)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(g.replace(step.Content)), 0o600); err != nil {
				return err
			}
			continue
		}
		for i, command := range step.Commands {
			serves := step.Serves && i == len(step.Commands)-1
			g.Log("line %d: %s", command.Line, command.Text)
			if err := g.command(current, command, serves); err != nil {
				return fmt.Errorf("line %d: %s: %w", command.Line, command.Text, err)
			}
			if serves {
				if current, err = open(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// command types a command, and compares its answer.
func (g Guide) command(t *terminal, command Command, serves bool) error {
	var answer []string
	fails := false
	for _, line := range command.Answer {
		answer = append(answer, g.replace(line))
		fails = fails || strings.HasPrefix(line, "Error") || strings.HasPrefix(line, "error:") ||
			strings.Contains(line, " is invalid: ")
	}
	if err := t.send(g.replace(command.Text)); err != nil {
		return err
	}
	if serves {
		return t.until(answer)
	}
	got, status, err := t.receive()
	switch {
	case err != nil:
		return fmt.Errorf("%w:\n%s", err, strings.Join(got, "\n"))
	case fails != (status != 0):
		return fmt.Errorf("the exit status is %d:\n%s", status, strings.Join(got, "\n"))
	case len(answer) > 0 && !same(got, answer):
		return fmt.Errorf("the answer is\n%s\nand not as shown:\n%s", strings.Join(got, "\n"),
			strings.Join(answer, "\n"))
	}
	return nil
}

func (g Guide) replace(text string) string {
	for old, value := range g.Replace {
		text = strings.ReplaceAll(text, old, value)
	}
	return text
}

// same tells whether lines are those that are shown.
func same(got, shown []string) bool {
	if len(shown) == 0 {
		return len(got) == 0
	}
	if strings.TrimSpace(shown[0]) == "..." {
		for n := range len(got) + 1 {
			if same(got[n:], shown[1:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && sameLine(got[0], shown[0]) && same(got[1:], shown[1:])
}

var (
	blanks = regexp.MustCompile(`\s+`)
	times  = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|h|m|s))+\b`)
)

func sameLine(got, shown string) bool {
	plain := func(line string) string {
		return times.ReplaceAllString(blanks.ReplaceAllString(strings.TrimSpace(line), " "),
			"<time>")
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(plain(shown)), `\.\.\.`, ".*")
	matched, err := regexp.MatchString("^"+pattern+"$", plain(got))
	return err == nil && matched
}

// terminal is a bash that is given one command after another.
type terminal struct {
	cmd     *exec.Cmd
	scripts string // directory of the commands' files
	n       int
	files   *os.File // to bash: the names of the files
	output  *os.File
	lines   *bufio.Scanner
}

// done is what bash prints after a command, before its exit status.
const done = "@@ the command has ended: "

// loop reads the commands from files, so that none of them can read the next ones as its input.
const loop = `while IFS= read -r -u 3 file; do . "$file" </dev/null 3<&-; printf '\n` + done +
	`%d\n' $?; done`

func openTerminal(ctx context.Context, dir string, env []string) (*terminal, error) {
	scripts, err := os.MkdirTemp("", "readme")
	if err != nil {
		return nil, err
	}
	forBash, files, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer forBash.Close()
	output, ofBash, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ofBash.Close()
	t := &terminal{cmd: exec.CommandContext(ctx, "bash", "--norc", "-c", loop), scripts: scripts,
		files: files, output: output, lines: bufio.NewScanner(output)}
	t.lines.Buffer(nil, 16<<20)
	t.cmd.Dir = dir
	t.cmd.Env = env
	t.cmd.Stdout, t.cmd.Stderr = ofBash, ofBash
	t.cmd.ExtraFiles = []*os.File{forBash}
	// What is started belongs to a group of its own, and ends with it.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.cmd.Cancel = func() error { return syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL) }
	return t, t.cmd.Start()
}

// send has a command run.
func (t *terminal) send(command string) error {
	t.n++
	file := filepath.Join(t.scripts, strconv.Itoa(t.n))
	if err := os.WriteFile(file, []byte(command+"\n"), 0o600); err != nil {
		return err
	}
	_, err := fmt.Fprintln(t.files, file)
	return err
}

// receive returns what the command has printed, and its exit status.
func (t *terminal) receive() (got []string, status int, err error) {
	for t.lines.Scan() {
		if text, ok := strings.CutPrefix(t.lines.Text(), done); ok {
			// The line break before it belongs to it.
			if n := len(got); n > 0 && got[n-1] == "" {
				got = got[:n-1]
			}
			status, err = strconv.Atoi(text)
			return got, status, err
		}
		got = append(got, t.lines.Text())
	}
	return got, 0, errors.Join(errors.New("it did not end, or ended the shell"), t.lines.Err())
}

// until waits until the command has printed these lines, and reads on what else it prints.
func (t *terminal) until(answer []string) error {
	var got []string
	for len(answer) > 0 {
		if strings.TrimSpace(answer[0]) == "..." {
			answer = answer[1:]
			continue
		}
		if !t.lines.Scan() || strings.HasPrefix(t.lines.Text(), done) {
			return fmt.Errorf("it has ended, without %q:\n%s", answer[0], strings.Join(got, "\n"))
		}
		got = append(got, t.lines.Text())
		if sameLine(t.lines.Text(), answer[0]) {
			answer = answer[1:]
		}
	}
	go func() {
		for t.lines.Scan() { // so that it never waits for a reader
		}
	}()
	return nil
}

// pwd returns the directory in which the next command will be.
func (t *terminal) pwd() (string, error) {
	if err := t.send("pwd"); err != nil {
		return "", err
	}
	got, _, err := t.receive()
	if err != nil || len(got) != 1 {
		return "", fmt.Errorf("the directory of the shell is not known: %q %w", got, err)
	}
	return got[0], nil
}

// close ends the shell and whatever runs in it.
func (t *terminal) close() {
	t.files.Close()
	_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGTERM) // nothing may be there any more
	_ = t.cmd.Wait()                                      // it was told to end
	_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL) // what did not end with it
	t.output.Close()
	os.RemoveAll(t.scripts)
}
