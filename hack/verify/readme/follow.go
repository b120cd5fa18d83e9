package readme

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	// that may be in use. It is replaced in commands, files and answers. Of two texts that begin
	// at the same place, the longer one is replaced.
	Replace map[string]string
	// On has the same for what is done on a machine, besides Replace.
	On map[string]map[string]string
	// Log is told what is done.
	Log func(format string, args ...any)
}

// Follow follows a walk below a directory, in which it makes a link to the clone. The walk's files
// are in its directory "walk", those of a machine in a directory of its name there. Follow returns
// an error that says which line of the page is wrong. All that was started has ended when it
// returns.
func (g Guide) Follow(ctx context.Context, walk Walk, below string) error {
	if err := os.Symlink(g.Clone, filepath.Join(below, "rowkeeper")); err != nil {
		return err
	}
	machines := map[string]*machine{}
	defer func() {
		for _, m := range machines {
			m.close()
		}
	}()
	for _, step := range walk.Steps {
		for _, name := range step.machines() {
			if machines[name] == nil {
				machines[name] = g.machine(name, filepath.Join(below, "walk"))
			}
			if err := machines[name].step(ctx, step); err != nil {
				return fmt.Errorf("%s%w", machines[name].where, err)
			}
		}
	}
	return nil
}

// machine is where steps of a walk are done.
type machine struct {
	Guide
	where   string // which one, for messages
	walk    string // the walk's directory
	dir     string // where the walk begins on this machine
	replace *strings.Replacer
	// terminals are the terminals that were opened. The last one is in use.
	terminals []*terminal
}

func (g Guide) machine(name, walk string) *machine {
	m := &machine{Guide: g, walk: walk, dir: filepath.Join(walk, name)}
	if name != "" {
		m.where = "on " + name + ", "
	}
	all := map[string]string{}
	maps.Copy(all, g.Replace)
	maps.Copy(all, g.On[name])
	var pairs []string
	for _, old := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	}) {
		pairs = append(pairs, old, all[old])
	}
	m.replace = strings.NewReplacer(pairs...)
	return m
}

// open opens another terminal.
func (m *machine) open(ctx context.Context) error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	t, err := openTerminal(ctx, m.dir, m.Env)
	if err == nil {
		m.terminals = append(m.terminals, t)
	}
	return err
}

func (m *machine) close() {
	for _, t := range m.terminals {
		t.close()
	}
}

// step does what a step says.
func (m *machine) step(ctx context.Context, step Step) error {
	if len(m.terminals) == 0 {
		if err := m.open(ctx); err != nil {
			return err
		}
	}
	t := m.terminals[len(m.terminals)-1]
	if step.File != "" {
		m.Log("%sline %d: %s is written", m.where, step.Line, step.File)
		if err := m.write(t, step); err != nil {
			return fmt.Errorf("line %d: %w", step.Line, err)
		}
		return nil
	}
	for i, command := range step.Commands {
		serves := step.Serves && i == len(step.Commands)-1
		m.Log("%sline %d: %s", m.where, command.Line, command.Text)
		if err := m.command(t, command, serves); err != nil {
			return fmt.Errorf("line %d: %s: %w", command.Line, command.Text, err)
		}
	}
	if step.Serves {
		return m.open(ctx)
	}
	return nil
}

// write writes a file. Its name is from the directory in which the commands are.
func (m *machine) write(t *terminal, step Step) error {
	file := m.replace.Replace(step.File)
	if !filepath.IsAbs(file) {
		where, err := t.pwd()
		if err != nil {
			return err
		}
		file = filepath.Join(where, file)
	}
	if in, err := filepath.Rel(m.walk, file); err != nil || !filepath.IsLocal(in) {
		return fmt.Errorf("%s is outside of the walk", file)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(m.replace.Replace(step.Content)), 0o600)
}

// command types a command, and compares its answer.
func (m *machine) command(t *terminal, command Command, serves bool) error {
	var answer []string
	fails := false
	for _, line := range command.Answer {
		answer = append(answer, m.replace.Replace(line))
		fails = fails || strings.HasPrefix(line, "Error") || strings.HasPrefix(line, "error:") ||
			strings.Contains(line, " is invalid: ")
	}
	if err := t.send(m.replace.Replace(command.Text)); err != nil {
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

// same tells whether lines are the lines that are shown.
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
	// A command belongs to a group of its own, and its children end with it.
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
