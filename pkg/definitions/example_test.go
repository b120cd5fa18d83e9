package definitions_test

import (
	"fmt"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
)

// A webhook's Service is where a program on this machine listens.
func ExampleServices() {
	services := definitions.Services{"hooks/reviewer": "localhost:9443"}
	fmt.Println(services.Validate())
	address, err := services.ResolveEndpoint("hooks", "reviewer", 443)
	fmt.Println(address, err)
	// Output:
	// []
	// https://localhost:9443 <nil>
}
