package scaffold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

// library is the module that all projects need.
const library = "github.com/rowkeeper/rowkeeper"

// Source says where Go finds the library: at a version, or in a directory.
type Source struct{ Version, Dir string }

// Module is where another module of Rowkeeper is in a clone.
func (s Source) Module(path string) string { return filepath.Join(s.Dir, filepath.FromSlash(path)) }

// Command runs the program, of the same version as the library. It is no tool of the projects'
// modules, which would then have all modules that the program has. In a clone it runs in the
// clone's directory.
func (s Source) Command() string {
	if s.Dir != "" {
		return "go run -C " + modfile.AutoQuote(s.Dir) + " ./cmd/rowkeeper"
	}
	return "go run " + library + "/cmd/rowkeeper@" + s.Version
}

// Clone is the library in a directory.
func Clone(dir string) (Source, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Source{}, err
	}
	if !isClone(dir) {
		return Source{}, fmt.Errorf("%s is no clone of Rowkeeper: it has no go.mod of the module "+
			"%s", dir, library)
	}
	return Source{Version: "v0.0.0", Dir: dir}, nil
}

func isClone(dir string) bool {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && modfile.ModulePath(mod) == library
}

// Built is the library that this program was built from. A build of a clone, between releases, is
// known to nobody else: its projects take the library from the clone.
func Built() (Source, error) {
	build, ok := debug.ReadBuildInfo()
	ofClone := ok && slices.ContainsFunc(build.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "vcs.revision"
	})
	_, file, _, _ := runtime.Caller(0)
	return built(version.Get().Version, ofClone, filepath.Join(filepath.Dir(file), "../../../.."))
}

// built decides by the program's version, and by whether it was built in a clone; dir was the
// clone's directory then.
func built(version string, ofClone bool, dir string) (Source, error) {
	// Go can ask for releases, and for the commits of go install PACKAGE@COMMIT.
	if semver.IsValid(version) && semver.Build(version) == "" && !described.MatchString(version) &&
		(!ofClone || !module.IsPseudoVersion(version)) {
		return Source{Version: version}, nil
	}
	if filepath.IsAbs(dir) && isClone(dir) {
		return Source{Version: "v0.0.0", Dir: dir}, nil
	}
	return Source{}, errors.New("this build of Rowkeeper is not released, and its source is not " +
		"on this machine: name a clone by --replace")
}

// described is what git describe says of a commit after a tag, which is no version for Go.
var described = regexp.MustCompile(`-[0-9]+-g[0-9a-f]+$`)
