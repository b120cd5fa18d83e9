package install

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/fuzzer"
	ciinstall "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
)

// Every internal pipeline comes back as it was from this group, too.
func TestRoundTrip(t *testing.T) {
	*roundtrip.FuzzIters = 200
	roundtrip.RoundTripTestForAPIGroup(t, func(scheme *runtime.Scheme) {
		ciinstall.Install(scheme)
		Install(scheme)
	}, fuzzer.Funcs)
}
