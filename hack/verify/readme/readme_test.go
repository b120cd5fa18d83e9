package readme

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/verify/markdown"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// patience is how long a walk may take.
const patience = 15 * time.Minute

// pages returns the Markdown pages of a clone by their paths, those of RESULTS.md and the like
// included.
func pages(t *testing.T, clone string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	err := filepath.WalkDir(clone, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(clone, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (name == "bin" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && name != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) == ".md" {
			found[filepath.ToSlash(name)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLinks: each link of a page within the repository leads to a file, and to a heading if it
// names one.
func TestLinks(t *testing.T) {
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	all := pages(t, clone)
	for name, page := range all {
		for _, link := range markdown.Linked(page).Links {
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			to, anchor, _ := strings.Cut(link, "#")
			target := name
			if to != "" {
				target = path.Join(path.Dir(name), to)
			}
			if _, err := os.Stat(filepath.Join(clone, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s, which is not there", name, link)
			}
			if other, ok := all[target]; anchor != "" &&
				(!ok || !markdown.Linked(other).Anchors[anchor]) {
				t.Errorf("%s links to %s, and there is no such heading", name, link)
			}
		}
	}
}

// TestQuotedErrors: what a page about errors quotes is in the program.
func TestQuotedErrors(t *testing.T) {
	const clone = "../../.."
	page, err := os.ReadFile(filepath.Join(clone, "docs/operate/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, errors, _ := strings.Cut(string(page), "\n## Starting")
	quoted := regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(errors, -1)
	if len(quoted) < 15 {
		t.Errorf("%d sentences are quoted", len(quoted))
	}
	var source strings.Builder
	torn := regexp.MustCompile(`"\s*\+\s*"`) // a text over several lines
	for _, dir := range []string{"storage", "pkg", "cmd"} {
		err := filepath.WalkDir(filepath.Join(clone, dir), func(path string, d fs.DirEntry,
			err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			source.Write(torn.ReplaceAll(text, nil))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range quoted {
		if sentence := strings.Join(strings.Fields(q[1]), " "); !strings.Contains(source.String(), sentence) {
			t.Errorf("no error has the text %q", sentence)
		}
	}
}

// TestEveryBlock: each block of a language that can run is a part of a walk, or it is marked as
// tested elsewhere, or the page says that it was not run.
func TestEveryBlock(t *testing.T) {
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	recipes := regexp.MustCompile(`<!-- (recipe|sampleapiserver): .* -->$`) // read by tests of their own
	walked, elsewhere, untested := 0, 0, 0
	for name, page := range pages(t, clone) {
		if name != "README.md" && !strings.HasPrefix(name, "docs/") && path.Dir(name) != "deploy" {
			continue
		}
		p, err := parse(string(page))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, walk := range p.walks {
			for _, step := range walk.Steps {
				walked += len(step.Commands)
			}
		}
		lines := strings.Split(string(page), "\n")
		for _, block := range p.others {
			commands := len(regexp.MustCompile(`(?m)^\$ `).FindAllString(block.Code, -1))
			switch {
			case block.Language == "text":
			case block.Mark == "tested":
				elsewhere += commands
				test, err := os.ReadFile(filepath.Join(clone, filepath.FromSlash(block.By)))
				if err != nil {
					t.Errorf("%s, line %d: %v", name, block.Line, err)
				}
				for line := range strings.Lines(block.Code) {
					line, _, _ = strings.Cut(strings.TrimSpace(line), " // ")
					if block.Language == "go" && !strings.Contains(string(test), line) {
						t.Errorf("%s, line %d: %s does not have %q", name, block.Line, block.By, line)
					}
				}
			case block.Mark == "untested":
				untested += commands
				if !strings.Contains(string(page), "not run here") {
					t.Errorf("%s, line %d: the page does not say that this was not run here", name,
						block.Line)
				}
			case recipes.MatchString(strings.TrimSpace(lines[block.Line-3])):
				elsewhere += commands
			default:
				t.Errorf("%s, line %d: nothing tells whether a test runs this block", name, block.Line)
			}
		}
	}
	t.Logf("%d commands are followed, other tests run %d, and %d are said not to be run", walked,
		elsewhere, untested)
}

// TestCommandLines: the commands of rowkeeper that pages name have the flags that they name.
func TestCommandLines(t *testing.T) {
	const clone = "../../.."
	reference, err := os.ReadFile(filepath.Join(clone, "docs/reference/cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("^- (?:`-.`, )?`(--[^`]+)`")
	listed := regexp.MustCompile("`(--[^`]+)`[,.]")
	flags := map[string]map[string]bool{}   // of each command
	command, list := "that are many", false // list: of flags that are only named
	flags[command] = map[string]bool{}
	for line := range strings.Lines(string(reference)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## rowkeeper "); ok {
			command = name
			flags[command] = map[string]bool{"--help": true}
		} else if flag := named.FindStringSubmatch(line); flag != nil {
			flags[command][flag[1]] = true
		} else if list = list && line != "" || strings.HasPrefix(line, "[Flags of many commands]"); list {
			for _, flag := range listed.FindAllStringSubmatch(line, -1) {
				flags[command][flag[1]] = true
			}
		}
	}
	if len(flags) < 15 {
		t.Fatalf("the reference has %d commands", len(flags))
	}
	// A command and its arguments, up to the end of the line, of a pipe, or of code in a text.
	called := regexp.MustCompile(`(?:^|[ /]|\x60)rowkeeper ([a-z][^\x60|;&>]*)`)
	checked := 0
	for name, page := range pages(t, clone) {
		text := strings.ReplaceAll(string(page), "\\\n", " ")
		for line := range strings.Lines(text) {
			for _, call := range called.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
				words := strings.Fields(call[1])
				known, ok := flags[words[0]]
				if len(words) > 1 && flags[words[0]+" "+words[1]] != nil {
					known, ok = flags[words[0]+" "+words[1]], true
				}
				if !ok {
					continue // prose
				}
				for _, word := range words {
					flag, _, _ := strings.Cut(strings.TrimRight(word, ".,:)"), "=")
					if !strings.HasPrefix(flag, "--") {
						continue
					}
					checked++
					if !known[flag] {
						t.Errorf("%s: rowkeeper %s has no flag %s", name, words[0], flag)
					}
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d flags were checked, the pages are no longer understood", checked)
	}
}

// TestURLParameters: the reference has the parameters of database URLs that the drivers know, and
// no others. PostgreSQL's driver passes on what it does not know, so its documentation is compared.
func TestURLParameters(t *testing.T) {
	const clone = "../../.."
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(clone, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	reference := read("docs/reference/database.md")
	name := regexp.MustCompile(`[a-z][a-z_-]*[a-z]`)
	for database, source := range map[string]struct{ file, pattern string }{
		"SQLite":     {"storage/sqlite/url.go", `(?m)^\t"(\w+)": +func\(c \*config`},
		"MySQL":      {"storage/mysql/url.go", `(?m)^\tcase "([\w-]+)":`},
		"PostgreSQL": {"storage/postgres/doc.go", `(?m)^//\t([a-z_]+(?:, [a-z_]+)*)(?: .*)?$`},
	} {
		known := map[string]bool{}
		for _, found := range regexp.MustCompile(source.pattern).FindAllStringSubmatch(
			read(source.file), -1) {
			for _, parameter := range name.FindAllString(found[1], -1) {
				known[parameter] = true
			}
		}
		if len(known) < 3 {
			t.Errorf("%s has the parameters %v", source.file, known)
		}
		documented := map[string]bool{}
		for row := range strings.Lines(reference) {
			cells := strings.Split(row, "|")
			if len(cells) < 5 || !strings.Contains(cells[2], database) {
				continue
			}
			for _, code := range regexp.MustCompile("`([a-z][a-z_-]*[a-z])[`=]").FindAllStringSubmatch(
				cells[1]+cells[3], -1) {
				documented[code[1]] = true
			}
			for _, code := range regexp.MustCompile("`([a-z][a-z_-]*[a-z])[`=]").FindAllStringSubmatch(
				cells[1], -1) {
				if !known[code[1]] {
					t.Errorf("the reference has the parameter %s of %s, which %s has not", code[1],
						database, source.file)
				}
			}
		}
		for parameter := range known {
			if !documented[parameter] {
				t.Errorf("the reference does not have the parameter %s of %s", parameter, database)
			}
		}
	}
}

// words are those that no page uses, as another word stands for the thing everywhere. A word in
// code or in a path is none of these.
var words = map[string]*regexp.Regexp{
	"authority, as in the glossary":           regexp.MustCompile(`\bCA\b`),
	"they, as it can be anybody":              regexp.MustCompile(`(?i)\b(he|she|his|him)\b`),
	"without a cluster, or not aggregated":    regexp.MustCompile(`(?i)\bstandalone\b`),
	"definition, or CustomResourceDefinition": regexp.MustCompile(`\bCRDs?\b`),
	"the server's log, as the log is a table": regexp.MustCompile(`(?i)\bthe log (?:says|tells)\b`),
	"the noun for which it stands":            regexp.MustCompile(`(?:^|\. )Those (?:that|of|who|which)\b`),
}

var inlineCode = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)")

// TestWords: the pages call a thing by one word.
func TestWords(t *testing.T) {
	for name, page := range pages(t, "../../..") {
		if name == "docs/glossary.md" || strings.HasPrefix(name, "hack/") {
			continue
		}
		for _, p := range paragraphs(string(page)) {
			for instead, word := range words {
				if found := word.FindString(p.text); found != "" {
					t.Errorf("%s:%d: the paragraph has %q: write %s", name, p.line, found, instead)
				}
			}
		}
	}
}

// paragraph is text between empty lines, as one line and without code, and the number of its first
// line.
type paragraph struct {
	line int
	text string
}

func paragraphs(page string) (all []paragraph) {
	var lines []string
	end := func(next int) {
		text := inlineCode.ReplaceAllString(strings.Join(lines, " "), "")
		if text = strings.Join(strings.Fields(text), " "); text != "" {
			all = append(all, paragraph{next - len(lines), text})
		}
		lines = nil
	}
	code := false
	for i, line := range strings.Split(page+"\n", "\n") {
		number, fence := i+1, strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence || strings.TrimSpace(line) == "" {
			end(number)
		}
		if fence {
			code = !code
		} else if !code && strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return all
}

func TestParagraphs(t *testing.T) {
	got := paragraphs("A line\n  goes `on\nhere` now.\n\n```text\ncode\n\ncode\n```\nThe end.")
	want := []paragraph{{1, "A line goes now."}, {10, "The end."}}
	if !slices.Equal(got, want) {
		t.Errorf("the paragraphs are %v, want %v", got, want)
	}
}

// All instructions of the pages work, from an empty directory.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles what the pages write, for minutes")
	}
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	kubectl := t.TempDir()
	// Without a version, kubectl cannot tell whether it fits the server.
	build := exec.CommandContext(t.Context(), "go", "build", "-C",
		filepath.Join(clone, "hack", "tools", "kubectl"), "-ldflags",
		"-X k8s.io/component-base/version.gitVersion=v1.37.2", "-o",
		filepath.Join(kubectl, "kubectl"), ".")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	followed := 0
	for name, page := range pages(t, clone) {
		walks, err := Walks(string(page))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, walk := range walks {
			followed++
			t.Run(walk.Name, func(t *testing.T) {
				switch walk.Name {
				case "cluster":
					t.Skip("it needs a cluster: TestAuthor in hack/e2e follows it")
				case "machines":
					t.Skip("it needs several machines: hack/e2e/failover follows it")
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				guide := Guide{
					Clone: clone,
					Env:   environment(t, kubectl),
					// The ports that servers listen on without being told so may be in use.
					Replace: map[string]string{"8443": freePort(t), "8444": freePort(t),
						"2379": freePort(t)},
					Log: t.Logf,
				}
				below := t.TempDir()
				if walk.Name == "release" {
					guide.Replace["v0.1.0"] = released(t, clone, filepath.Join(below, "walk"))
				}
				if err := guide.Follow(ctx, walk, below); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	if followed == 0 {
		t.Fatal("there is nothing to follow: the marks are no longer understood")
	}
}

// released puts links to the files of a release that the page names into a directory, and returns
// the version. "make release" has made the files, which the nightly job requires.
func released(t *testing.T, clone, dir string) (version string) {
	t.Helper()
	made := filepath.Join(clone, "bin", "release")
	programs, err := filepath.Glob(filepath.Join(made, "rowkeeper_*_linux_amd64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if len(programs) == 0 && os.Getenv("ROWKEEPER_TEST_RELEASE") == "" {
		t.Skip("make release has made nothing; the nightly job runs it first")
	}
	if len(programs) != 1 {
		t.Fatalf("make release has made the programs %v, and not one for Linux on amd64", programs)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Base(programs[0])
	stem := strings.TrimSuffix(program, "_linux_amd64.tar.gz")
	for _, name := range []string{"SHA256SUMS", "install.yaml", program, stem + "_image.tar.gz",
		stem + "_sbom.cdx.json"} {
		if err := os.Symlink(filepath.Join(made, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return strings.TrimPrefix(stem, "rowkeeper_")
}

// environment is that of somebody who has Go and kubectl, and nothing of ours.
func environment(t *testing.T, kubectl string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOPROXY",
		"GOSUMDB", "GONOSUMDB", "GOTOOLCHAIN").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + t.TempDir(), "PATH=" +
		kubectl + string(os.PathListSeparator) + os.Getenv("PATH")}
	values := strings.Split(string(out), "\n")
	for i, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GONOSUMDB",
		"GOTOOLCHAIN"} {
		env = append(env, name+"="+values[i])
	}
	// Without tables for debuggers, linking takes a third less time, and nothing else differs.
	env = append(env, "GOFLAGS=-ldflags=-w")
	// How this machine reaches the world.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
		"https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// A page whose marks make no sense is not followed in part.
func TestWrongPages(t *testing.T) {
	for name, tc := range map[string]struct{ page, want string }{
		"no end": {"<!-- readme: walk a -->\n", `the walk "a" has no end`},
		"nothing in it": {"<!-- readme: walk a -->\n<!-- readme: end -->\n",
			`line 2: there is nothing to follow in the walk "a"`},
		"tested within a walk": {"<!-- readme: walk a -->\n<!-- readme: tested a_test.go -->\n",
			"line 2: the mark"},
		"untested with text": {"<!-- readme: untested why -->\n", "line 1: the mark"},
		"unknown mark": {"<!-- readme: stroll a -->\n",
			`line 1: the mark "<!-- readme: stroll a -->" makes no sense here`},
		"file without walk":    {"<!-- readme: file a -->\n", "makes no sense here"},
		"machine without walk": {"<!-- readme: on a -->\n", "makes no sense here"},
		"absolute file on no machine": {"<!-- readme: walk a -->\n<!-- readme: file /a -->\n",
			"line 2: the mark"},
		"file elsewhere": {"<!-- readme: walk a -->\n<!-- readme: file ../a -->\n",
			"line 2: the mark"},
		"mark in a line": {"See <!-- readme: walk a -->\n",
			"line 1: a mark is a line of its own"},
		"mark with text":   {"<!-- readme: walk a --> text\n", "line 1: a mark is a line of its own"},
		"mark for nothing": {"<!-- readme: walk a -->\n<!-- readme: serve -->\n<!-- readme: end -->\n", `line 3: the mark "serve" has no block`},
		"no language": {"<!-- readme: walk a -->\n```go\nx\n```\n",
			"the block is neither a session (console) nor marked"},
		"no command": {"<!-- readme: walk a -->\n```console\nls\n```\n",
			`the session begins with "ls"`},
		"no answer": {"<!-- readme: walk a -->\n<!-- readme: serve -->\n```console\n$ cat\n```\n",
			"is not shown to print anything"},
		"no end of block": {"<!-- readme: walk a -->\n```console\n$ ls\n",
			`the walk "a" has no end`},
		"two of a name": {"<!-- readme: walk a -->\n```console\n$ ls\n```\n<!-- readme: end -->\n<!-- readme: walk a -->\n", `line 6: there are two walks "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			if walks, err := Walks(tc.page); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v and %v, want %q", walks, err, tc.want)
			}
		})
	}
}

const good = "Text.\n```go\nnot followed\n```\n<!-- readme: walk all of it -->\n" +
	"```console\n$ mkdir d && cd d\n$ X=1\n$ ls ../../rowkeeper | grep '^there$'\nthere\n```\n" +
	"1. In a list:\n   <!-- readme: file e/f.txt -->\n   ```text\n   one\n     two\n   ```\n" +
	"<!-- readme: skip nobody has it -->\n```sh\nfrobnicate\n```\n" +
	"```console\n$ cat e/f.txt; echo $X 17m3s\none\n  two\n1 2ms\n$ printf 'a\\nb\\nc'\n...\nc\n" +
	"$ cat <<E\n> in  it\n> E\nin it\n$ echo 8443 x >port && ls nothing\nError: ...\n```\n" +
	"<!-- readme: serve -->\n```console\n$ echo noise; echo ready at 1s; exec sleep 1000\nready at 0s\n```\n" +
	"```console\n$ pwd; cat d/port; echo $X\n.../walk\n4242 x\n\n```\n<!-- readme: end -->\n"

// The shown output comes, and any other is an error.
func TestFollow(t *testing.T) {
	follow := func(page string) error {
		t.Helper()
		walks, err := Walks(page)
		if err != nil {
			t.Fatal(err)
		}
		clone := t.TempDir()
		if err := os.WriteFile(filepath.Join(clone, "there"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		guide := Guide{Clone: clone, Env: os.Environ(), Replace: map[string]string{"8443": "4242"},
			Log: t.Logf}
		return guide.Follow(t.Context(), walks[0], t.TempDir())
	}
	page := strings.ReplaceAll(good, "ls nothing\nError: ...",
		"{ echo Error: it; false; }\nError: ...")
	if err := follow(page); err != nil {
		t.Fatal(err)
	}
	for old, wrong := range map[string]string{
		"\none\n  two\n1":                "\none\n  three\n1",
		"grep '^there$'":                 "grep '^nowhere$'",
		"...\nc\n":                       "...\nb\n",
		"false; }":                       "true; }",
		"; exec sleep 1000\nready at 0s": "\nsteady at 0s",
		"$ X=1":                          "$ false",
		"$ mkdir d":                      "$ exit 0",
	} {
		if err := follow(strings.Replace(page, old, wrong, 1)); err == nil {
			t.Errorf("nobody noticed %q in place of %q", wrong, old)
		} else if !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q is reported without its line: %v", wrong, err)
		}
	}
}

// Machines have directories, terminals and replacements of their own.
func TestMachines(t *testing.T) {
	page := "<!-- readme: walk a -->\n<!-- readme: on one two -->\n" +
		"<!-- readme: file /etc/name -->\n```text\nI am NAME\n```\n" +
		"<!-- readme: on one -->\n```console\n$ X=1; cat /etc/name\nI am 1\n$ pwd\n.../walk/one\n```\n" +
		"<!-- readme: on two -->\n```console\n$ echo \"$X\"; cat /etc/name\n\nI am 2\n```\n" +
		"<!-- readme: on one -->\n```console\n$ echo $X LONGNAME\n1 longer\n```\n<!-- readme: end -->\n"
	walks, err := Walks(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	on := func(name, etc string) map[string]string {
		return map[string]string{"NAME": name, "/etc": etc}
	}
	guide := Guide{Clone: t.TempDir(), Env: os.Environ(), Log: t.Logf,
		Replace: map[string]string{"LONGNAME": "longer"},
		On: map[string]map[string]string{"one": on("1", filepath.Join(dir, "walk", "one")),
			"two": on("2", filepath.Join(dir, "walk", "two"))}}
	if err := guide.Follow(t.Context(), walks[0], dir); err != nil {
		t.Fatal(err)
	}
	guide.On["two"] = on("2", t.TempDir())
	err = guide.Follow(t.Context(), walks[0], t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "is outside of the walk") {
		t.Errorf("a file was written outside of the walk: %v", err)
	}
}

// The part of a walk before it serves leaves its files, and starts nothing that goes on.
func TestBeforeServe(t *testing.T) {
	page := "<!-- readme: walk a -->\n```console\n$ echo 1 >one\n```\n" +
		"<!-- readme: serve -->\n```console\n$ echo 2 >two\n$ echo 3 >three; exec sleep 1000\nready\n```\n" +
		"```console\n$ echo 4 >four\n```\n<!-- readme: end -->\n"
	walks, err := Walks(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	guide := Guide{Clone: t.TempDir(), Env: os.Environ(), Log: t.Logf}
	if err := guide.Follow(t.Context(), walks[0].BeforeServe(), dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(dir, "walk"))
	if err != nil || len(files) != 2 || files[0].Name() != "one" || files[1].Name() != "two" {
		t.Errorf("before it serves, the walk has made %v, %v, want one and two", files, err)
	}
	if again := walks[0].Steps[1]; len(again.Commands) != 2 || !again.Serves {
		t.Errorf("the walk itself has changed: %+v", again)
	}
}
