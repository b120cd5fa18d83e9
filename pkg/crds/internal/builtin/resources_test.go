package builtin

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
)

// Leases are refused for the same reasons as in a cluster.
func TestLeases(t *testing.T) {
	for _, c := range []struct {
		spec coordinationv1.LeaseSpec
		want string
	}{
		{coordinationv1.LeaseSpec{HolderIdentity: ptr.To("x"),
			LeaseDurationSeconds: ptr.To[int32](1), LeaseTransitions: ptr.To[int32](0)}, ""},
		{coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](0)},
			"[spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0]"},
		{coordinationv1.LeaseSpec{LeaseTransitions: ptr.To[int32](-1)},
			"[spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0]"},
	} {
		got := ""
		if err := leases.validate(&coordinationv1.Lease{Spec: c.spec},
			nil).ToAggregate(); err != nil {
			got = "[" + err.Error() + "]"
		}
		if got != c.want {
			t.Errorf("%v: got %s, want %s", c.spec, got, c.want)
		}
	}
}
