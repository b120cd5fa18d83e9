package contract

import (
	"slices"
	"strings"
	"testing"
)

func TestUnrecorded(t *testing.T) {
	pods := Directory{Path: "/registry/pods/", Resource: "pods", Scope: Namespaced}
	with := func(change func(*Directory)) Directory { d := pods; change(&d); return d }
	unknown := with(func(d *Directory) { d.Scope = "" })
	nodes := Directory{Path: "/registry/nodes/", Resource: "nodes", Scope: ClusterScoped}
	for _, tc := range []struct {
		name                   string
		recorded, served, want []Directory
	}{
		{name: "nothing"},
		{name: "new ones", served: []Directory{pods, nodes}, want: []Directory{pods, nodes}},
		{name: "one is there", recorded: []Directory{pods}, served: []Directory{pods, nodes},
			want: []Directory{nodes}},
		{name: "twice", served: []Directory{pods, pods}, want: []Directory{pods}},
		{name: "the scope becomes known", recorded: []Directory{unknown}, served: []Directory{pods},
			want: []Directory{pods}},
		{name: "the scope becomes known at once", served: []Directory{unknown, pods},
			want: []Directory{pods}},
		{name: "the scope stays known", recorded: []Directory{pods}, served: []Directory{unknown}},
		{name: "another resource", recorded: []Directory{pods},
			served: []Directory{{Path: pods.Path, Resource: "beans"}},
			want:   []Directory{{Path: pods.Path, Resource: "beans"}}},
		{name: "within another one", recorded: []Directory{pods},
			served: []Directory{with(func(d *Directory) { d.Path += "a/" })}},
		{name: "around another one", recorded: []Directory{pods},
			served: []Directory{with(func(d *Directory) { d.Path = "/registry/" })}},
		{name: "around one that is new", served: []Directory{pods,
			with(func(d *Directory) { d.Path = "/" + "registry/" })}, want: []Directory{pods}},
		{name: "beside one with a longer name", recorded: []Directory{pods},
			served: []Directory{with(func(d *Directory) { d.Path = "/registry/podsx/" })},
			want:   []Directory{with(func(d *Directory) { d.Path = "/registry/podsx/" })}},
		{name: "all keys", served: []Directory{with(func(d *Directory) { d.Path = "/" })}},
		{name: "no directory", served: []Directory{with(func(d *Directory) { d.Path = "/pods" })}},
		{name: "other characters", served: []Directory{
			with(func(d *Directory) { d.Path = "/é/" }), with(func(d *Directory) { d.Path = "/\\/" }),
			with(func(d *Directory) { d.Path = "/\x00/" }), with(func(d *Directory) { d.Group = "\xff" })}},
		{name: "long ones", served: []Directory{
			with(func(d *Directory) { d.Path = Key("/" + strings.Repeat("a", directoryBytes-1) + "/") }),
			with(func(d *Directory) { d.Resource = strings.Repeat("a", nameBytes+1) })}},
	} {
		if got := unrecorded(tc.recorded, tc.served); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v is written, want %+v", tc.name, got, tc.want)
		}
	}
	if end := pods.Beyond(); end != "/registry/pods0" {
		t.Errorf("the directory ends before %q", end)
	}
}
