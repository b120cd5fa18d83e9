package options

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// RewritePatchType is the media type of a patch that makes a server write an object exactly as it
// is, if it is stored otherwise than the server now stores it; see [ServeRewrites]. The patch has
// no content. A server that does not know the media type changes nothing and answers 415.
const RewritePatchType types.PatchType = "application/vnd.rowkeeper.rewrite"

// ServeRewrites makes a server accept patches of [RewritePatchType]. Call it last before the server
// is made: when AdmissionControl is complete.
//
// Such a patch is for clients that may patch the object. Admission does not see it, because there
// is nothing to admit: if anything of the object would change on its way into the store, the patch
// is refused with 403.
func ServeRewrites(c *genericapiserver.Config) {
	chain := c.AdmissionControl
	if chain == nil {
		chain = admission.NewChainHandler()
	}
	c.AdmissionControl = rewriteAdmission{chain}
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(rewriteHandler(handler), c)
	}
}

// rewriteHandler makes an empty merge patch of a rewrite, and notes in the context that it was one.
func rewriteHandler(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch &&
			r.Header.Get("Content-Type") == string(RewritePatchType) {
			r = r.Clone(context.WithValue(r.Context(), rewriteKey{}, true))
			r.Header.Set("Content-Type", string(types.MergePatchType))
			const nothing = "{}"
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte(nothing))),
				int64(len(nothing))
		}
		handler.ServeHTTP(w, r)
	})
}

type rewriteKey struct{}

func isRewrite(ctx context.Context) bool { return ctx.Value(rewriteKey{}) != nil }

// rewriteAdmission admits rewrites itself, and leaves everything else to the chain.
type rewriteAdmission struct{ admission.Interface }

var (
	_ admission.MutationInterface   = rewriteAdmission{}
	_ admission.ValidationInterface = rewriteAdmission{}
)

func (r rewriteAdmission) Handles(o admission.Operation) bool {
	// The chain comes first: it may want to know that it was asked.
	return r.Interface.Handles(o) || o == admission.Update
}

func (r rewriteAdmission) Admit(ctx context.Context, a admission.Attributes,
	o admission.ObjectInterfaces) error {
	if isRewrite(ctx) {
		return asItWas(a)
	}
	if chain, ok := r.Interface.(admission.MutationInterface); ok &&
		chain.Handles(a.GetOperation()) {
		return chain.Admit(ctx, a, o)
	}
	return nil
}

// Validate sees the object after the strategy, when it is about to be stored.
func (r rewriteAdmission) Validate(ctx context.Context, a admission.Attributes,
	o admission.ObjectInterfaces) error {
	if isRewrite(ctx) {
		return unchanged(a)
	}
	if chain, ok := r.Interface.(admission.ValidationInterface); ok &&
		chain.Handles(a.GetOperation()) {
		return chain.Validate(ctx, a, o)
	}
	return nil
}

// asItWas undoes what the way through the version and the media type of the request has made of the
// object. Conversions and JSON may lose something: JSON makes 1 of 1.0, for example.
func asItWas(a admission.Attributes) error {
	old := a.GetOldObject()
	if a.GetOperation() != admission.Update ||
		reflect.TypeOf(a.GetObject()) != reflect.TypeOf(old) {
		return notAsItIs(a)
	}
	reflect.ValueOf(a.GetObject()).Elem().Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
	return nil
}

// unchanged refuses a rewrite that would change the object.
func unchanged(a admission.Attributes) error {
	if a.GetOperation() != admission.Update ||
		!equality.Semantic.DeepEqual(a.GetObject(), a.GetOldObject()) {
		return notAsItIs(a)
	}
	return nil
}

func notAsItIs(a admission.Attributes) error {
	return admission.NewForbidden(a,
		errors.New("the object would not be written as it is: update it by hand"))
}
