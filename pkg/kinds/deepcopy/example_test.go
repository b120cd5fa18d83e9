package deepcopy_test

import (
	"fmt"

	"github.com/rowkeeper/rowkeeper/pkg/kinds/deepcopy"
)

// A copy shares nothing with what it was made of.
func ExampleOf() {
	type bookmark struct{ Tags []string }
	original := &bookmark{Tags: []string{"language"}}
	deepcopy.Of(original).Tags[0] = "other"
	fmt.Println(original.Tags)
	// Output: [language]
}
