package object

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

func TestSize(t *testing.T) {
	for _, name := range []string{"a", Name("group", 123456)} {
		pod := New(name)
		for i := range 3 {
			data, err := runtime.Encode(Codec, pod)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) != Size {
				t.Errorf("object %q is %d bytes long after %d updates, want %d", name, len(data), i,
					Size)
			}
			if _, _, err := Touch(i*1000+1)(pod, storage.ResponseMeta{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
