package v1

import (
	"log"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	crewv1 "example.com/harbor/api/v1"
	crewv2 "example.com/harbor/api/v2"
)

// The scaffold's suite starts the webhooks and has no spec. These are what somebody writes first.
var _ = Describe("The API server asks", func() {
	It("the webhooks that default and validate", func() {
		said := gbytes.NewBuffer()
		GinkgoWriter.TeeTo(said)
		DeferCleanup(GinkgoWriter.ClearTeeWriters)
		captain := &crewv1.Captain{ObjectMeta: metav1.ObjectMeta{Name: "ahab", Namespace: "default"}}
		Expect(k8sClient.Create(ctx, captain)).To(Succeed())
		Expect(said).To(gbytes.Say("Defaulting for Captain"))
		Expect(said).To(gbytes.Say("Validation for Captain upon creation"))
	})

	It("the webhook that converts", func() {
		said := gbytes.NewBuffer()
		log.SetOutput(said)
		DeferCleanup(log.SetOutput, os.Stderr)
		foo := "whale"
		mate := &crewv1.Mate{ObjectMeta: metav1.ObjectMeta{Name: "starbuck", Namespace: "default"},
			Spec: crewv1.MateSpec{Foo: &foo}}
		Expect(k8sClient.Create(ctx, mate)).To(Succeed())
		converted := &crewv2.Mate{}
		Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(mate), converted)).To(Succeed())
		Expect(said).To(gbytes.Say("Converting Mate from Hub version v1 to Spoke version v2"))
		Expect(converted.Spec.Foo).To(BeNil(), "the scaffold's conversion takes over metadata alone")
	})
})

// envtest asks the webhook for those kinds alone whose versions are all in the scheme. The scaffold
// adds one.
func init() {
	if err := crewv2.AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
}
