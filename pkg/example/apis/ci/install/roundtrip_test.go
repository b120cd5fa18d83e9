package install

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/fuzzer"
)

// Every internal object comes back as it was from each version, in each encoding.
func TestRoundTrip(t *testing.T) {
	*roundtrip.FuzzIters = 500
	roundtrip.RoundTripTestForAPIGroup(t, Install, fuzzer.Funcs)
}
