package options

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/storage"
)

// ServeSortedLists makes a server sort lists by an index of the database, if the request asks for
// it:
//
//	GET /apis/ci.example.com/v1/namespaces/a/pipelines?sortBy=created&order=desc&limit=20
//
// sortBy is the name of an index, as [storage.Sort] has it. order is asc, the default, or desc. The
// next page is asked for by the continue token of the list, and the same parameters. The header
// Link has the URLs of the next and of the previous page (RFC 8288), where there are such. Other
// requests than lists of a resource cannot be sorted. A server without it, as any other API server,
// ignores the parameters, and sends no such header: its lists are in the order of keys.
//
// [StorageOptions.ApplyTo] does this. Call it for servers without these options, before the server
// is made.
func ServeSortedLists(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			if !query.Has("sortBy") {
				handler.ServeHTTP(w, r)
				return
			}
			by, err := sortOf(r, query)
			if err != nil {
				info, _ := request.RequestInfoFrom(r.Context())
				version := schema.GroupVersion{}
				if info != nil {
					version = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
				}
				responsewriters.ErrorNegotiated(err, c.Serializer, version, w, r)
				return
			}
			by.Pages = func(before, after string) {
				link(w, r.URL.Path, query, "prev", before)
				link(w, r.URL.Path, query, "next", after)
			}
			handler.ServeHTTP(w, r.WithContext(storage.WithSort(r.Context(), by)))
		}), c)
	}
}

// sortOf reads how the request is to be sorted.
func sortOf(r *http.Request, query url.Values) (*storage.Sort, error) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" {
		return nil, apierrors.NewBadRequest("sortBy is for lists of a resource: leave it out")
	}
	by := &storage.Sort{By: query.Get("sortBy")}
	switch order := query.Get("order"); order {
	case "", "asc":
	case "desc":
		by.Descending = true
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("order is asc or desc, not %q", order))
	}
	return by, nil
}

// link adds the URL of another page to the header, which is relative to the server.
func link(w http.ResponseWriter, path string, query url.Values, relation, token string) {
	if token == "" {
		return
	}
	page := url.Values{}
	for name, values := range query {
		if !strings.HasPrefix(name, "resourceVersion") {
			page[name] = values
		}
	}
	page.Set("continue", token)
	w.Header().Add("Link", fmt.Sprintf("<%s>; rel=%q",
		(&url.URL{Path: path, RawQuery: page.Encode()}).RequestURI(), relation))
}
