package kinds_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
)

// base is embedded without being exported, so that its exported fields are those of the struct
// around it.
type base struct {
	Words  []string
	Inner  *leaf
	ByName map[string]*leaf
	deeper
}

type deeper struct{ Numbers map[string][]int }

type leaf struct {
	Text string
	More []leaf
}

// methodical copies itself.
type methodical struct {
	Values []int
	copied bool
}

func (m *methodical) DeepCopyInto(out *methodical) {
	out.Values, out.copied = append([]int(nil), m.Values...), m.copied
}

// byValue copies itself in another way.
type byValue map[string][]int

func (b byValue) DeepCopy() byValue {
	if b == nil {
		return nil
	}
	c := byValue{}
	for key, values := range b {
		c[key] = append([]int(nil), values...)
	}
	return c
}

// Everything has every kind of field that leads somewhere.
type Everything struct {
	metav1.ObjectMeta
	base
	Any       any
	Anything  map[string]any
	Anythings []any
	Arrays    [2][2]*leaf
	Array     [2]any
	Pointers  **leaf
	Maps      map[string]map[int][]leaf
	Structs   map[string]leaf
	Unnamed   struct {
		Slice []struct{ Map map[string]string }
	}
	Named    leaf
	Bytes    []byte
	Int      int
	String   string
	Time     time.Time
	MetaTime *metav1.Time
	Quantity resource.Quantity
	Port     *intstr.IntOrString
	Raw      runtime.RawExtension
	Big      big.Int
	Address  netip.Addr
	Methods  methodical
	Method   *methodical
	ByValue  byValue
	Next     *Everything
}

// fill makes a value from random numbers: the same one from the same numbers.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if v.CanInterface() && fillKnown(r, v.Addr().Interface()) {
		return
	}
	if depth > 6 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(5) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth+1)
		}
	case reflect.Interface:
		for _, some := range []any{map[string]any(nil), []any(nil), (*leaf)(nil), leaf{},
			byValue(nil), (**big.Int)(nil), [1]any{}, "", int64(0), true} {
			if r.IntN(5) == 0 {
				value := reflect.New(reflect.TypeOf(some)).Elem()
				fill(r, value, depth+1)
				v.Set(value)
				return
			}
		}
	case reflect.Slice:
		if n := r.IntN(4); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key, depth+1)
			fill(r, value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() || f.Anonymous {
				fill(r, v.Field(i), depth+1)
			}
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(r.Int32N(1000)))
	case reflect.Uint8:
		v.SetUint(r.Uint64N(256))
	case reflect.String:
		v.SetString(fmt.Sprint(r.IntN(1000)))
	case reflect.Bool:
		v.SetBool(true)
	}
}

// fillKnown does this for types that are not made of their fields.
func fillKnown(r *rand.Rand, pointer any) bool {
	switch p := pointer.(type) {
	case *time.Time:
		*p = time.Unix(r.Int64N(1e9), 0)
	case *metav1.Time:
		*p = metav1.Unix(r.Int64N(1e9), 0)
	case *resource.Quantity:
		*p = *resource.NewQuantity(r.Int64(), resource.BinarySI)
		p.Add(resource.MustParse("1E"))
	case *big.Int:
		p.SetUint64(r.Uint64()).Mul(p, p)
	case *netip.Addr:
		*p = netip.AddrFrom4([4]byte{1, 2, 3, byte(r.IntN(256))})
	case *methodical:
		p.Values = []int{r.Int()}
	case *metav1.ObjectMeta:
		p.Labels = map[string]string{"a": fmt.Sprint(r.Int())}
		p.OwnerReferences = []metav1.OwnerReference{{Name: fmt.Sprint(r.Int()),
			Controller: new(bool)}}
	case *runtime.RawExtension:
		p.Raw = fmt.Appendf(nil, "%d", r.Int())
	default:
		return false
	}
	return true
}

// spoil changes everything that can be reached from a value, where it is, and returns the number of
// changes.
func spoil(v reflect.Value) (changes int) {
	if v.CanAddr() && v.CanSet() {
		switch p := v.Addr().Interface().(type) {
		case *big.Int:
			for i := range p.Bits() {
				p.Bits()[i]++
			}
			return 1
		case *resource.Quantity:
			p.Add(resource.MustParse("1Ei"))
			return 1
		case *time.Time, *metav1.Time, *netip.Addr:
			v.SetZero()
			return 1
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			changes += spoil(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			changes += spoil(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			changes += spoil(v.MapIndex(key))
			v.SetMapIndex(key, reflect.Value{})
			changes++
		}
		if !v.IsNil() {
			v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
			changes++
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() || f.Anonymous {
				changes += spoil(v.Field(i))
			}
		}
	}
	if v.CanSet() && v.Kind() != reflect.Struct && v.Kind() != reflect.Array {
		v.SetZero()
		changes++
	}
	return changes
}

// The original stays as it was, whatever is done to a copy: another value that was made alike says
// how it was.
func TestCopiesShareNothing(t *testing.T) {
	changes := 0
	for seed := range uint64(300) {
		made := func() *Everything {
			e := &Everything{}
			fill(rand.New(rand.NewPCG(seed, 1)), reflect.ValueOf(e).Elem(), 0)
			return e
		}
		original, twin := made(), made()
		c := kinds.DeepCopy(original)
		if !reflect.DeepEqual(c, original) {
			t.Fatalf("seed %d: the copy is\n%+v\nof\n%+v", seed, c, original)
		}
		changes += spoil(reflect.ValueOf(c))
		if !reflect.DeepEqual(original, twin) {
			t.Fatalf("seed %d: a change of the copy has changed the original", seed)
		}
		// The other way round as well: who changes the original does not change the copy.
		c = kinds.DeepCopy(original)
		spoil(reflect.ValueOf(original))
		if !reflect.DeepEqual(c, twin) {
			t.Fatalf("seed %d: a change of the original has changed the copy", seed)
		}
	}
	if changes < 100_000 {
		t.Errorf("only %d changes were made: the test has seen too little", changes)
	}
}

// BenchmarkDeepCopy copies a bookmark with a few tags.
func BenchmarkDeepCopy(b *testing.B) {
	obj := &Bookmark{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}},
		Spec: BookmarkSpec{URL: "https://go.dev", Tags: []Tag{{Name: "a"}, {Name: "b"}},
			Children: []BookmarkSpec{{URL: "x"}, {URL: "y"}}},
	}
	for b.Loop() {
		kinds.DeepCopy(obj)
	}
}
