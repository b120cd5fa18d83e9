package builtin

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// The default objects are accepted as they are. Defaults would change them at every start.
func TestDefaultPriorities(t *testing.T) {
	check := func(name string, obj, copied runtime.Object, errs field.ErrorList) {
		if len(errs) > 0 {
			t.Errorf("%s: %v", name, errs.ToAggregate())
		}
		if Scheme.Default(copied); !unchanged(obj, copied) {
			t.Errorf("defaults change %s: %v", name, copied)
		}
	}
	for _, s := range append(append(bootstrap.MandatoryFlowSchemas[:0:0],
		bootstrap.MandatoryFlowSchemas...), bootstrap.SuggestedFlowSchemas...) {
		check("schema "+s.Name, s, s.DeepCopy(), checkFlowSchema(nil, s.Name, &s.Spec))
	}
	for _, l := range append(append(bootstrap.MandatoryPriorityLevelConfigurations[:0:0],
		bootstrap.MandatoryPriorityLevelConfigurations...),
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		check("level "+l.Name, l, l.DeepCopy(), checkPriorityLevel(nil, l.Name, &l.Spec))
	}
	changed := bootstrap.MandatoryPriorityLevelConfigurationCatchAll.DeepCopy()
	changed.Spec.Limited.NominalConcurrencyShares = nil
	if errs := checkPriorityLevel(nil, changed.Name, &changed.Spec); len(errs) == 0 {
		t.Error("the spec of catch-all can be changed")
	}
}
