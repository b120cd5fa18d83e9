// Package examples embeds the example objects that `rowkeeper serve --example` creates.
package examples

import _ "embed"

// Hello is a Pipeline, in YAML.
//
//go:embed hello.yaml
var Hello []byte
