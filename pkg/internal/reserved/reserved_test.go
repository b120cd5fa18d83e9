package reserved

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TestSigningKeys: no definition can have the plural of the keys, whichever server takes it.
func TestSigningKeys(t *testing.T) {
	if validation.IsDNS1035Label(SigningKeys.Resource) == nil {
		t.Errorf("a definition may have the plural %s", SigningKeys.Resource)
	}
}
