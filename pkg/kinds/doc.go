// Package kinds is for authors of API servers whose kinds are plain: stored, listed, watched,
// validated. It makes the server out of Go types. You write the type, what is special about it, and
// a main function of one call:
//
//	type Bookmark struct {
//		metav1.TypeMeta   `json:",inline"`
//		metav1.ObjectMeta `json:"metadata,omitempty"`
//
//		Spec BookmarkSpec `json:"spec"`
//	}
//
//	func (b *Bookmark) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }
//
//	type BookmarkSpec struct {
//		URL string `json:"url" description:"Where the bookmark leads."`
//	}
//
//	func main() {
//		kinds.Main("bookmarks", []storage.Driver{sqlite.Driver}, kinds.Group{
//			Name:     "example.com",
//			Versions: []string{"v1"},
//			Kinds:    []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{})},
//		})
//	}
//
// The program keeps bookmarks in the database that --database names, and serves them to kubectl and
// all other clients, with server-side apply, watches and OpenAPI documents. No code has to be
// generated: the package copies objects and writes OpenAPI documents by reflection. Types whose
// methods are generated work as well.
//
// # What a kind has by itself
//
// The version that [Group.Versions] names first is the one in which objects are stored. A version
// that has another Go type is made by [Converted]. If the type has a field Status, the kind gets
// the subresource status. The spec and the status are then written separately. The generation
// counts the changes of everything but the metadata and the status. Names are DNS subdomains,
// unless [Strategy.ValidateName] says otherwise.
//
// # Beyond a program of its own
//
// [New] returns the parts: a scheme, a configuration and a server. A test starts them by package
// testkit:
//
//	api, err := kinds.New(group)
//	server := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs, NewConfig: api.NewConfig, New: api.New}, testkit.Options{})
//
// A server with other groups adds the kinds by [API.GroupInfos]. A kind that needs more than this
// package has changes its registry by [Kind.Store], and has [Kind.Subresources] of its own. A kind
// whose resource itself is to behave otherwise is better written with the generic registry, to
// which package options gives the storage.
package kinds
