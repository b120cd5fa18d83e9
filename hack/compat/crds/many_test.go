package crds

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

func newReader(content []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(content)) }

// many makes n definitions, each as large as cert-manager's Certificate.
func many(t testing.TB, n int) []*apiextensionsv1.CustomResourceDefinition {
	var like *apiextensionsv1.CustomResourceDefinition
	for _, d := range definitions(t, "github.com/cert-manager/cert-manager") {
		if d.Spec.Names.Kind == "Certificate" {
			like = d
		}
	}
	all := make([]*apiextensionsv1.CustomResourceDefinition, n)
	for i := range all {
		d := like.DeepCopy()
		d.Spec.Group = fmt.Sprintf("group%d.example.com", i/10)
		plural := fmt.Sprintf("things%d", i)
		d.Name = plural + "." + d.Spec.Group
		d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural,
			Kind: fmt.Sprintf("Thing%d", i)}
		all[i] = d
	}
	return all
}

// BenchmarkReal creates eight copies of each project's definitions, one after the other, as kubectl
// does, and prints the live heap when all are established, and after a restart. Of the former it
// writes a profile into the file that ROWKEEPER_HEAP_PROFILE names.
func BenchmarkReal(b *testing.B) {
	var all []*apiextensionsv1.CustomResourceDefinition
	for module := range projects {
		for _, d := range definitions(b, module) {
			for i := range 8 {
				d := d.DeepCopy()
				if i > 0 {
					d.Spec.Group = fmt.Sprintf("copy%d.%s", i, d.Spec.Group)
				}
				d.Name = d.Spec.Names.Plural + "." + d.Spec.Group
				metav1.SetMetaDataAnnotation(&d.ObjectMeta,
					apiextensionsv1.KubeAPIApprovedAnnotation, "unapproved, a benchmark")
				all = append(all, d)
			}
		}
	}
	before := inUse() // the definitions, as the client has them
	for b.Loop() {
		dir := b.TempDir()
		s := crdstest.Start(b, testkit.Options{Dir: dir})
		install(b, s.Config, all)
		b.ReportMetric(inUse()-before, "MiB-established")
		if file := os.Getenv("ROWKEEPER_HEAP_PROFILE"); file != "" {
			var profile bytes.Buffer
			if err := errors.Join(pprof.WriteHeapProfile(&profile),
				os.WriteFile(file, profile.Bytes(), 0o600)); err != nil {
				b.Fatal(err)
			}
		}
		s.Stop()
		s = crdstest.Start(b, testkit.Options{Dir: dir})
		established(b, s.Config, len(all))
		b.ReportMetric(inUse()-before, "MiB-restarted")
		s.Stop()
	}
	b.ReportMetric(float64(len(all)), "definitions")
	b.ReportMetric(0, "ns/op")
}

func inUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkMany creates 500 definitions at once, and prints how long it takes until all are
// established, the memory that they take, and how long a server with them takes to start again,
// until it is ready, compared with one that has none.
func BenchmarkMany(b *testing.B) {
	const n = 500
	all := many(b, n)
	for b.Loop() {
		dir := b.TempDir()
		began := time.Now()
		s := crdstest.Start(b, testkit.Options{Dir: dir})
		b.ReportMetric(time.Since(began).Seconds(), "s-start-empty")
		before := inUse()
		began = time.Now()
		client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
		var group errgroup.Group
		group.SetLimit(32)
		for _, d := range all {
			group.Go(func() error {
				_, err := client.Create(b.Context(), d, metav1.CreateOptions{})
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		established(b, s.Config, n)
		b.ReportMetric(time.Since(began).Seconds(), "s-established")
		b.ReportMetric(inUse()-before, "MiB")
		s.Stop()
		began = time.Now()
		s = crdstest.Start(b, testkit.Options{Dir: dir})
		b.ReportMetric(time.Since(began).Seconds(), "s-restart")
		established(b, s.Config, n)
		s.Stop()
	}
	b.ReportMetric(0, "ns/op")
}

// All of many definitions are there after a restart.
func TestManyAfterRestart(t *testing.T) {
	dir := t.TempDir()
	all := many(t, 50)
	s := crdstest.Start(t, testkit.Options{Dir: dir})
	install(t, s.Config, all)
	s.Stop()
	s = crdstest.Start(t, testkit.Options{Dir: dir})
	established(t, s.Config, len(all))
}
