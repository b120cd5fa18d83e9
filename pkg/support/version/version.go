// Package version is for the commands of a program. It tells which version the program is, which
// version of Rowkeeper it is made with, and which release of Kubernetes its API machinery comes
// from.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
)

// Set by the linker, as -X github.com/rowkeeper/rowkeeper/pkg/support/version.version=v1.2.3.
// Variables that it leaves empty get their values from the build information that go writes.
var (
	version   string
	gitCommit string
	buildDate string
)

// Info is what the command version prints.
type Info struct {
	// Version is the program's own, "devel" for a build from a working tree.
	Version string `json:"version"`
	// Rowkeeper is the version of Rowkeeper that the program is made with. It is empty for
	// Rowkeeper itself.
	Rowkeeper string `json:"rowkeeper,omitempty"`
	// Kubernetes is the release that the API machinery belongs to.
	Kubernetes string `json:"kubernetes"`
	// GitCommit and BuildDate are empty where the build does not know them.
	GitCommit string `json:"gitCommit,omitempty"`
	BuildDate string `json:"buildDate,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

func (i Info) String() string {
	made := ""
	if i.Rowkeeper != "" {
		made = "Rowkeeper " + i.Rowkeeper + ", "
	}
	return fmt.Sprintf("%s (%sKubernetes %s, %s, %s)", i.Version, made, i.Kubernetes, i.GoVersion,
		i.Platform)
}

// library is Rowkeeper's module.
const library = "github.com/rowkeeper/rowkeeper"

// devel is the version of what was built from a working tree.
const devel = "devel"

// Get returns the version of the running program.
var Get = sync.OnceValue(func() Info {
	i := Info{
		Version:    version,
		Kubernetes: "v" + baseversion.DefaultKubeBinaryVersion + ".0",
		GitCommit:  gitCommit,
		BuildDate:  buildDate,
		GoVersion:  runtime.Version(),
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	for _, m := range build.Deps {
		// The libraries' v0.x.y belongs to the release v1.x.y.
		if rest, ok := strings.CutPrefix(m.Version, "v0."); ok && m.Path == "k8s.io/apiserver" {
			i.Kubernetes = "v1." + rest
		}
		if m.Path == library && build.Main.Path != library+"/cmd/rowkeeper" {
			i.Rowkeeper = m.Version
			if m.Replace != nil {
				i.Rowkeeper = cmp.Or(m.Replace.Version, devel)
			}
		}
	}
	for _, s := range build.Settings {
		switch {
		case s.Key == "vcs.revision" && i.GitCommit == "":
			i.GitCommit = s.Value
		case s.Key == "vcs.time" && i.BuildDate == "":
			i.BuildDate = s.Value
		}
	}
	if i.Version == "" {
		i.Version = strings.Trim(build.Main.Version, "()")
	}
	i.Version = cmp.Or(i.Version, devel)
	return i
})

// Effective is the version that the API machinery works by: that of its own Kubernetes release, so
// that feature gates have that release's defaults and kubectl finds the version skew that there is.
// Its Info, which is served at /version, names Rowkeeper too.
func Effective() basecompatibility.EffectiveVersion {
	return effective{compatibility.DefaultBuildEffectiveVersion()}
}

type effective struct {
	basecompatibility.EffectiveVersion
}

func (e effective) Info() *apimachineryversion.Info {
	i := Get()
	info := e.EffectiveVersion.Info()
	info.GitVersion = i.Kubernetes + "+rowkeeper." +
		strings.ReplaceAll(cmp.Or(i.Rowkeeper, i.Version), "+", ".")
	info.GitCommit = i.GitCommit
	info.BuildDate = i.BuildDate
	info.GitTreeState = ""
	info.Major = fmt.Sprint(e.BinaryVersion().Major())
	info.Minor = fmt.Sprint(e.BinaryVersion().Minor())
	return info
}
