package v1alpha1_test

import (
	"encoding/json"
	"fmt"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
)

// A client reads what GET …/history has answered.
func ExampleObjectHistory() {
	answer := []byte(`{"kind":"ObjectHistory","apiVersion":"history.rowkeeper.dev/v1alpha1",
		"metadata":{"resourceVersion":"91"},"oldest":"1","items":[
		{"revision":"91","time":"2026-11-29T12:00:00.000000Z","verb":"update","namespace":"default",
		"name":"hello","uid":"…","manager":"kubectl-patch","changed":["spec.maxParallelRuns"]}]}`)
	history := v1alpha1.ObjectHistory{}
	if err := json.Unmarshal(answer, &history); err != nil {
		panic(err)
	}
	for _, c := range history.Items {
		fmt.Println(c.Revision, c.Verb, c.Name, c.Manager, c.Changed)
	}
	// Output: 91 update hello kubectl-patch [spec.maxParallelRuns]
}
