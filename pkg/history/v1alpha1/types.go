// Package v1alpha1 has the answers of the subresource history, which package history serves, for
// clients of it.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind and APIVersion are those of an [ObjectHistory].
const (
	Kind       = "ObjectHistory"
	APIVersion = "history.rowkeeper.dev/v1alpha1"
)

// NoState is the cause in the details of a 404 that says that the object did not exist at the
// moment. A 404 without it is of a server without a history of the resource.
const NoState metav1.CauseType = "NoState"

// ObjectHistory is a page of changes, the newest first.
type ObjectHistory struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	// Oldest is the revision from which on the log is whole. Of the time before it, a page has the
	// changes that compaction has left, without gaps.
	Oldest string   `json:"oldest"`
	Items  []Change `json:"items"`
}

// Metadata is what a page says of itself.
type Metadata struct {
	// ResourceVersion is the newest revision of the store.
	ResourceVersion string `json:"resourceVersion"`
	// Continue is the token for the next page, "" if there is none. A page may have few changes, or
	// none, and a next one all the same.
	Continue string `json:"continue,omitempty"`
	// Omitted: there are changes of earlier objects of the same name, which the user may not see.
	Omitted bool `json:"omitted,omitempty"`
	// Since and Until are the revisions that these parameters have led to. Since is left out if
	// compaction has passed it, so that changes after it may be missing. That may happen from page
	// to page. Further pages should ask for the revisions of the first one.
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
}

// Verb is the kind of a change.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Update Verb = "update"
	Delete Verb = "delete"
)

// Change is one write of an object.
type Change struct {
	Revision string           `json:"revision"`
	Time     metav1.MicroTime `json:"time"`
	Verb     Verb             `json:"verb"`

	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Earlier: the object is not the one that has the name now.
	Earlier bool `json:"earlier"`

	// Manager is the field manager whose entry the change has written, "" if there is none.
	Manager string `json:"manager"`
	// User and AuditID are those of the request, "" if they were not recorded. A server records
	// them for the resources that its administrator names. The user is the one who is impersonated,
	// if one is. A name of more than 512 bytes is cut off, and ends with "…", and so does an ID of
	// more than 64.
	User    string `json:"user"`
	AuditID string `json:"auditID"`
	// Changed are the paths of the fields that differ from the state before, without those of
	// metadata.managedFields and metadata.resourceVersion. They are empty for a creation, a
	// deletion, and an update of which the state before is gone. If there are more than 100, the
	// last one is "…". A path of more than 256 bytes is cut off, and ends with "…". Between a
	// state as it is stored and one in the requested version, nothing is compared: there is no
	// manager and no path.
	Changed []string `json:"changed"`

	// AsStored: the stored version is served no more. The object is as it is stored.
	AsStored bool `json:"asStored"`
	// Error says why there is no object, or why it is as stored.
	Error string `json:"error,omitempty"`
	// Object is the object after the change, or if that is a deletion, before it. Changes of
	// several objects have it only if the request asks for it.
	Object map[string]any `json:"object,omitempty"`
}
