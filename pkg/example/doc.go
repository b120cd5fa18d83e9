// Package example is for readers: an API of pipelines and their runs, whole and in one place, to be
// copied from. Each part shows one thing that a CustomResourceDefinition cannot do, or does badly.
// docs/tutorials/example-api.md says which part shows what, and walks through it.
//
//	apis         the types, in each version; defaults, conversions, validation
//	registry     how each resource is stored and served, with its subresources
//	admission    a plugin with an informer
//	apiserver    all of it in one server
//	generated    OpenAPI definitions, clients, informers, listers, apply configurations
//	clients      programs that use the API, in a few lines each
//	controller   a controller on controller-runtime, a module of its own
//	exampletest  the server inside go test
//
// The program cmd/rowkeeper serves it with --example, and behind an APIService.
package example
