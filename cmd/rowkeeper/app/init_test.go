package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInitRefuses: what is wrong is one line on stderr, and nothing is written.
func TestInitRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("go.mod", []byte("module example.com/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const names = " --group ci.example.com --kind Pipeline"
	for args, test := range map[string]struct {
		code int
		want string
	}{
		"init" + names:                                {exitUsage, "name a directory"},
		"init a b" + names:                            {exitUsage, `unexpected argument "b"`},
		"init My_API" + names:                         {exitUsage, `"My_API"`},
		"init my-api --group ci --kind Pipeline":      {exitUsage, `"ci"`},
		"init my-api --group a.example.com":           {exitUsage, "the kind has no name"},
		"init my-api" + names + " --versions 1":       {exitUsage, `"1"`},
		"init my-api" + names + " --module my-api":    {exitUsage, `"my-api"`},
		"init my-api" + names + " --replace .":        {exitUsage, "is no clone of Rowkeeper"},
		"init my-api" + names + " --variant crd":      {exitUsage, `no variant "crd"`},
		"init ../001" + names + " --module x.y/other": {exitUsage, `"001"`},
		"add":                           {exitOK, ""},
		"add it":                        {exitUsage, `unknown command "it"`},
		"add kind":                      {exitUsage, "name a kind"},
		"add kind Task":                 {exitFailure, "the project has no group"},
		"add kind Task --dir elsewhere": {exitFailure, "elsewhere is no project"},
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), strings.Fields(args), &out, &errs)
		if code != test.code || !strings.Contains(errs.String(), test.want) ||
			strings.Count(errs.String(), "\n") != min(code, 1) {
			t.Errorf("rowkeeper %s: exit code %d, %q", args, code, errs.String())
		}
	}
	found, err := filepath.Glob("*")
	if err != nil || len(found) != 1 {
		t.Errorf("there are %v, %v", found, err)
	}
}
