package builtin

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
)

// Nobody has a right before the roles were read. It is an error, so that clients try again.
func TestRolesBeforeTheyAreRead(t *testing.T) {
	never := informers.NewSharedInformerFactory(nil, 0)
	roles := NewKnownRoles(never.Rbac().V1())
	decision, _, err := roles.Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Path: "/apis"})
	if decision != authorizer.DecisionNoOpinion || err == nil ||
		!strings.Contains(err.Error(), "has not read the roles yet: try again") {
		t.Errorf("got %v, %v", decision, err)
	}
}
