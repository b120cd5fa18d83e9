package process_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/process"
)

// The program rowkeeper serves CustomResourceDefinitions until the test ends. In a test, t is at
// hand.
func ExampleStart() {
	var t *testing.T
	server := process.Start(t, process.Options{})
	_ = server.Kubeconfig // for clients, and for kubectl
}
