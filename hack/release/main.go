// Release writes the bill of materials of a Go program to standard output, in CycloneDX's form:
//
//	release -version v0.1.0 bin/image/linux-amd64/rowkeeper
//
// The linker has recorded in the program which modules it is made of. Nothing else is asked.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the program, if it was not built from a "+
		"module of that version")
	flag.Parse()
	if err := run(*version, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(version string, programs []string, out io.Writer) error {
	if len(programs) != 1 {
		return errors.New("name one program")
	}
	info, err := buildinfo.ReadFile(programs[0])
	if err != nil {
		return err
	}
	if version == "" {
		version = info.Main.Version
	}
	program := component(cdx.ComponentTypeApplication, info.Main.Path, version)
	libraries := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", info.GoVersion)}
	for _, m := range info.Deps {
		switch {
		case m.Path == library || strings.HasPrefix(m.Path, library+"/"):
			m.Version = version // it is a part of the same release
		case m.Replace != nil:
			m = m.Replace
		}
		libraries = append(libraries, component(cdx.ComponentTypeLibrary, m.Path, m.Version))
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &program}
	bom.Components = &libraries
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// library is the module that the program uses, and what begins the paths of the others.
const library = "github.com/rowkeeper/rowkeeper"

func component(kind cdx.ComponentType, path, version string) cdx.Component {
	url := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	return cdx.Component{BOMRef: url, Type: kind, Name: path, Version: version, PackageURL: url}
}
