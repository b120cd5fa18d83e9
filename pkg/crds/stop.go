package crds

import (
	"fmt"
	"sync/atomic"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/client-go/tools/cache"
)

// definitionsKnown is what upstream's hook signals when it has seen the informer of the definitions
// synced.
const definitionsKnown = "CRDInformerHasNotSynced"

// stopWhileStarting lets a server stop before the definitions are known. Upstream's hook, which
// waits for them, fails when the server stops, and a hook that fails ends the process at once, by a
// fatal line in the log. So before the server stops, the hook is told that the informer is synced,
// and has time to see it.
//
// Nobody is misled: a server that is told to stop while it starts is never ready, and no longer
// says that its discovery is complete.
func stopWhileStarting(definitions *apiextensionsserver.CustomResourceDefinitions) error {
	stopping := &atomic.Bool{}
	definitions.Informers = definitionsFactory{definitions.Informers, stopping}
	known, ok := definitions.GenericAPIServer.MuxAndDiscoveryCompleteSignals()[definitionsKnown]
	if !ok {
		return fmt.Errorf("the server of definitions has no signal %s", definitionsKnown)
	}
	return definitions.GenericAPIServer.AddPreShutdownHook("definitions-known", func() error {
		stopping.Store(true)
		<-known // upstream's hook looks every 100 ms
		return nil
	})
}

// These four are the way from a factory to the informer of the definitions.
type (
	definitionsFactory struct {
		externalversions.SharedInformerFactory
		stopping *atomic.Bool
	}
	definitionsGroup struct {
		apiextensions.Interface
		stopping *atomic.Bool
	}
	definitionsVersion struct {
		apiextensionsv1.Interface
		stopping *atomic.Bool
	}
	definitionsResource struct {
		apiextensionsv1.TypedCustomResourceDefinitionInformer
		stopping *atomic.Bool
	}
)

func (f definitionsFactory) Apiextensions() apiextensions.Interface {
	return definitionsGroup{f.SharedInformerFactory.Apiextensions(), f.stopping}
}

func (g definitionsGroup) V1() apiextensionsv1.Interface {
	return definitionsVersion{g.Interface.V1(), g.stopping}
}

func (v definitionsVersion) CustomResourceDefinitions() apiextensionsv1.TypedCustomResourceDefinitionInformer {
	return definitionsResource{v.Interface.CustomResourceDefinitions(), v.stopping}
}

func (r definitionsResource) Informer() cache.SharedIndexInformer {
	return definitionsInformer{r.TypedCustomResourceDefinitionInformer.Informer(), r.stopping}
}

// definitionsInformer says that it is synced when the server stops.
type definitionsInformer struct {
	cache.SharedIndexInformer
	stopping *atomic.Bool
}

func (i definitionsInformer) HasSynced() bool {
	return i.SharedIndexInformer.HasSynced() || i.stopping.Load()
}
