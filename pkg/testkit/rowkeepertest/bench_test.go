package rowkeepertest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

func BenchmarkStart(b *testing.B) {
	for name, database := range map[string]testkit.Database{"sqlite": {}, "memory": testkit.Memory} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := Start(b, testkit.Options{Database: database})
				client := dynamic.NewForConfigOrDie(s.Config)
				if _, err := client.Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).List(b.Context(), metav1.ListOptions{}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				s.Stop()
				b.StartTimer()
			}
		})
	}
}
