package kinds_test

import (
	"context"
	"fmt"
	"log"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Bookmark remembers a page.
type Bookmark struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BookmarkSpec   `json:"spec"`
	Status BookmarkStatus `json:"status,omitempty"`
}

// BookmarkSpec is what the owner of a bookmark wants.
type BookmarkSpec struct {
	URL      string           `json:"url" description:"Where the bookmark leads."`
	Title    string           `json:"title,omitempty" description:"What it is called. Default: the host of the URL."`
	Tags     []Tag            `json:"tags,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	KeepFor  *metav1.Duration `json:"keepFor,omitempty" description:"How long it is kept after it was changed."`
	Children []BookmarkSpec   `json:"children,omitempty"`
}

// Tag is a word with a weight.
type Tag struct {
	Name   string `json:"name"`
	Weight int32  `json:"weight,omitempty"`
}

// BookmarkStatus is what was found out about the page.
type BookmarkStatus struct {
	Reachable bool        `json:"reachable,omitempty" description:"Whether the page answered."`
	Checked   metav1.Time `json:"checked,omitempty"`
}

// DeepCopyObject makes bookmarks objects of the API machinery.
func (b *Bookmark) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }

// BookmarkV1alpha1 is how bookmarks looked at first.
type BookmarkV1alpha1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Address string         `json:"address" description:"Where the bookmark leads."`
	Rest    BookmarkSpec   `json:"rest,omitempty"`
	Status  BookmarkStatus `json:"status,omitempty"`
}

// DeepCopyObject makes them objects, too.
func (b *BookmarkV1alpha1) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }

var example = kinds.Group{
	Name:     "example.com",
	Versions: []string{"v1", "v1alpha1"},
	Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{
		ShortNames: []string{"bm"},
		Categories: []string{"pages"},
		Versions: []kinds.Version[Bookmark]{kinds.Converted("v1alpha1",
			func(in *BookmarkV1alpha1, out *Bookmark) error {
				out.Spec, out.Status = in.Rest, in.Status
				out.Spec.URL = in.Address
				return nil
			},
			func(in *Bookmark, out *BookmarkV1alpha1) error {
				out.Address, out.Rest, out.Status = in.Spec.URL, in.Spec, in.Status
				out.Rest.URL = ""
				return nil
			},
		)},
		Strategy: kinds.Strategy[Bookmark]{
			Default: func(b *Bookmark) {
				if u, err := url.Parse(b.Spec.URL); err == nil && b.Spec.Title == "" {
					b.Spec.Title = u.Host
				}
			},
			Validate: func(_ context.Context, b *Bookmark) field.ErrorList {
				if u, err := url.Parse(b.Spec.URL); err != nil || u.Host == "" {
					return field.ErrorList{field.Invalid(field.NewPath("spec", "url"), b.Spec.URL,
						"has to be a URL with a host")}
				}
				return nil
			},
			Warnings: func(_ context.Context, b *Bookmark) []string {
				if u, err := url.Parse(b.Spec.URL); err == nil && u.Scheme == "http" {
					return []string{"spec.url: pages without TLS can be read on the way"}
				}
				return nil
			},
			ValidateUpdate: func(_ context.Context, b, old *Bookmark) field.ErrorList {
				if b.Spec.KeepFor == nil && old.Spec.KeepFor != nil {
					return field.ErrorList{field.Forbidden(field.NewPath("spec", "keepFor"),
						"cannot be taken away")}
				}
				return nil
			},
			ValidateStatus: func(_ context.Context, b, _ *Bookmark) field.ErrorList {
				if b.Status.Reachable && b.Status.Checked.IsZero() {
					return field.ErrorList{field.Required(field.NewPath("status", "checked"),
						"when was it reached?")}
				}
				return nil
			},
			TimeToLive: func(b *Bookmark) time.Duration {
				if b.Spec.KeepFor == nil {
					return 0
				}
				return b.Spec.KeepFor.Duration
			},
		},
		Columns: []kinds.Column[Bookmark]{
			{Name: "Title", Value: func(b *Bookmark) any { return b.Spec.Title }},
			{Name: "Tags", Type: "integer",
				Value: func(b *Bookmark) any { return len(b.Spec.Tags) }},
			{Name: "URL", Wide: true, Value: func(b *Bookmark) any { return b.Spec.URL }},
		},
		Fields: map[string]func(*Bookmark) string{
			"spec.title": func(b *Bookmark) string { return b.Spec.Title },
		},
		Indexes: []string{"label:team", "field:spec.title"},
	})},
}

// A program that serves bookmarks from a SQLite file or from the database that --database names.
func ExampleMain() {
	kinds.Main("bookmarks", []storage.Driver{sqlite.Driver}, kinds.Group{
		Name:     "example.com",
		Versions: []string{"v1"},
		Kinds:    []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{ShortNames: []string{"bm"}})},
	})
}

// The kinds of a group are in a scheme, from which an author makes clients, and all that else works
// on schemes.
func ExampleNew() {
	api, err := kinds.New(example)
	if err != nil {
		log.Fatal(err)
	}
	for _, version := range api.Scheme.PrioritizedVersionsForGroup("example.com") {
		fmt.Println(version, api.Scheme.Recognizes(version.WithKind("Bookmark")))
	}
	// Output:
	// example.com/v1 true
	// example.com/v1alpha1 true
}
