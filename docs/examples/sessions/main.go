// Sessions serves a kind whose objects expire: a session goes an hour after it was written last.
// Its test shows how to test that without waiting for an hour.
package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Session is somebody who is signed in.
type Session struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SessionSpec `json:"spec"`
}

// SessionSpec says who it is.
type SessionSpec struct {
	User string `json:"user" description:"Who is signed in."`
}

// DeepCopyObject makes sessions objects of the API machinery.
func (s *Session) DeepCopyObject() runtime.Object { return kinds.DeepCopy(s) }

var group = kinds.Group{
	Name:     "example.com",
	Versions: []string{"v1"},
	Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Session]{
		Strategy: kinds.Strategy[Session]{
			Validate: func(_ context.Context, s *Session) field.ErrorList {
				if s.Spec.User == "" {
					return field.ErrorList{field.Required(field.NewPath("spec", "user"), "names who is signed in")}
				}
				return nil
			},
			TimeToLive: func(*Session) time.Duration { return time.Hour },
		},
		Columns: []kinds.Column[Session]{
			{Name: "User", Value: func(s *Session) any { return s.Spec.User }},
		},
	})},
}

func main() {
	kinds.Main("sessions", []storage.Driver{sqlite.Driver, postgres.Driver}, group)
}
