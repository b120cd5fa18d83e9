// Package examples has examples of the API's objects.
package examples

import _ "embed"

// Hello is a Pipeline, in YAML.
//
//go:embed hello.yaml
var Hello []byte
